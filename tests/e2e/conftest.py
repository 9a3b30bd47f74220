from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from vllm_tpu_async_patch.emulation.model import write_tiny_model

    folder: Path = tmp_path_factory.mktemp("model")
    write_tiny_model(str(folder))
    return str(folder)
