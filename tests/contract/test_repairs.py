"""Each defect on the real function, then the same with the patch."""

from __future__ import annotations

import json
from pathlib import Path

import child
import gate_child
import pytest

pytestmark = pytest.mark.contract

SCRIPT = str(Path(__file__).with_name("repair_child.py"))
EVERY = (*child.OLD, *child.NEW)


def ask(version, patched, *arguments, **variables):
    done = child.run(version, SCRIPT, *arguments, TPU_MULTIHOST_BACKEND="ray",
                     VLLM_TPU_ASYNC_PATCH="1" if patched else "0", **variables)
    answers = [line for line in done.stdout.splitlines() if line.startswith("@")]
    assert answers, done.stderr[-3000:]
    return json.loads(answers[-1][1:])


def _some(*versions):
    return [pytest.param(v, marks=() if v in versions else pytest.mark.contract_all)
            for v in EVERY]


@pytest.mark.parametrize("version", _some("0.13.3", "0.20.0"))
def test_empty_step_leaves_no_token_behind(version):
    stock = ask(version, False, "empty_step")
    # Position 4, the prompt's last token, would be overwritten by token 0 of the step before.
    assert stock == {"substituted": [[4], [0]], "token": 0, "cleared": False}
    assert ask(version, True, "empty_step") == {"substituted": [], "token": 7, "cleared": True}


@pytest.mark.parametrize(("version", "stock"), [
    ("0.18.0", ["AssertionError: async scheduling with connector not yet supported"] * 2),
    # The first host's report alone, a step before the second host has finished.
    ("0.19.0", [["r"], []]),
])
def test_kv_reports_of_all_hosts(version, stock):
    assert ask(version, False, "reports")["finished_recving"] == stock
    assert ask(version, True, "reports")["finished_recving"] == [[], ["r"]]


@pytest.mark.parametrize("version", _some("0.13.3", "0.20.0"))
def test_stand_ins_for_executor_classes_change_nothing(version):
    assert ask(version, True, "get_class") == {
        "partial": [False, False], "factory": [False, False], "proxy": [False, False]}


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(gate_child.CONFIG))
    return str(tmp_path)


@pytest.mark.parametrize(("version", "arguments", "expected"), [
    ("0.13.3", {"async_scheduling": True}, "requested=on effective=on"),
    ("0.13.3", {}, "requested=off effective=off"),
    ("0.20.0", {}, "requested=auto effective=on"),
    ("0.20.0", {"pipeline_parallel_size": 2}, "requested=auto effective=off"),
])
def test_one_line_per_engine(model, version, arguments, expected):
    lines = [line for line in ask(version, True, "engine", model, json.dumps(arguments))["lines"]
             if "async scheduling: requested" in line]
    assert len(lines) == 1
    assert expected in lines[0] and f"vllm-tpu={version}" in lines[0]
    for part in ("executor=", "action=", "reason=", "patch=", "tpu-inference="):
        assert part in lines[0]


def test_a_scheduler_without_overlap_gets_one_warning(model):
    arguments = {"async_scheduling": True, "scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"}
    lines = ask("0.13.3", True, "engine", model, json.dumps(arguments))["lines"]
    assert len([line for line in lines if "is no AsyncScheduler" in line]) == 1
