"""By default what shows that it works; with ``-m e2e_all`` the further cases."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from vllm_tpu_async_patch.emulation.model import write_tiny_model

    folder: Path = tmp_path_factory.mktemp("model")
    write_tiny_model(str(folder))
    return str(folder)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "e2e_all" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("e2e_all")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
