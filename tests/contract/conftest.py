"""By default the oldest, the newest and each seam; with ``-m contract_all`` every release."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    if "contract_all" in config.option.markexpr:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.contract_all)
