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


@pytest.mark.parametrize(("version", "cases"), [
    ("0.13.3", [({"async_scheduling": True}, "requested=on effective=on"),
                ({}, "requested=off effective=off"),
                ({"async_scheduling": True,
                  "scheduler_cls": "vllm.v1.core.sched.scheduler.Scheduler"},
                 "requested=on effective=on")]),
    ("0.20.0", [({}, "requested=auto effective=on"),
                ({"pipeline_parallel_size": 2}, "requested=auto effective=off")]),
])
def test_one_line_per_engine_and_a_warning_where_the_scheduler_has_no_overlap(
        model, version, cases):
    answers = ask(version, True, "engine", model, json.dumps([c[0] for c in cases]))
    for (arguments, expected), lines in zip(cases, answers):
        line, = (text for text in lines if "async scheduling: requested" in text)
        assert expected in line and f"vllm-tpu={version}" in line
        for part in ("executor=", "action=", "reason=", "patch=", "tpu-inference="):
            assert part in line
        warnings = [text for text in lines if "is no AsyncScheduler" in text]
        assert len(warnings) == ("scheduler_cls" in arguments)
