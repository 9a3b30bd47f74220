"""Further cases stay out of a run that does not ask for them by their marker."""

from __future__ import annotations

import pytest

FURTHER = ("contract_all", "e2e_all")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unasked = [marker for marker in FURTHER if marker not in config.option.markexpr]
    left_out = [item for item in items if any(map(item.get_closest_marker, unasked))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
