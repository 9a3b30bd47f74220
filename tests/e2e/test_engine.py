"""The real engine on one emulated host: the patched asynchronous path against the stock one."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import OFF, ON, run_program

pytestmark = pytest.mark.e2e


def test_aborts_in_between_change_no_token_and_leave_nothing(tiny_model: str, tmp_path: Path
                                                             ) -> None:
    sync = run_program("churn", {"model": tiny_model, "args": {}, "requests": 500,
                                 "abort_every": 0}, OFF, tmp_path)
    churned = run_program("churn", {
        "model": tiny_model, "requests": 500, "abort_every": 5,
        "args": {"async_scheduling": True, "distributed_executor_backend": "ray"}}, ON, tmp_path)

    assert sync["executor"] == "RayDistributedExecutor" and not sync["async"]
    assert churned["executor"] == "TPUAsyncRayExecutor" and churned["async"]
    assert len(sync["finished"]) == 500
    assert 380 <= len(churned["finished"]) < 500, "aborts did not happen, or hit too many"
    wrong = [name for name, tokens in churned["finished"].items()
             if tokens != sync["finished"][name]]
    assert wrong == []
    (outbox,) = churned["outbox"]
    assert outbox["steps"] > 300
    assert (outbox["kept"], outbox["unresolved"], outbox["dropped"]) == (0, 0, 0)
