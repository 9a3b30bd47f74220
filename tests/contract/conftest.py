"""By default the oldest, the newest and each seam; with ``-m contract_all`` every release."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    everything = "contract_all" in config.option.markexpr
    left_out = []
    for item in items:
        if HERE not in item.path.parents:
            continue
        if everything:
            item.add_marker(pytest.mark.contract_all)
        elif item.get_closest_marker("contract_all"):
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
