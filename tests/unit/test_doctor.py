"""What doctor makes of what it found; and the table against README.rst."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vllm_tpu_async_patch import cli, compat, doctor, reasons, table

pytestmark = pytest.mark.unit

README = Path(__file__).parents[2] / "README.rst"


def answer(**changes):
    return {"version": "1", "python": "3.11.9", "distribution": "vllm-tpu", "vllm": "0.13.3",
            "tpu_inference": "0.13.3", "action": "backport", "reason": "because", "row": "0.13.3",
            "facts": [{"fact": "gate", "expected": "tuple", "found": "tuple"}],
            "toggle": {"value": "1", "source": "environment variable", "on": True}, "doors": [],
            "patches": [{"name": "gate", "state": "applied", "reason": "", "target": "t"}],
            **changes}


def command(**changes):
    return {"requested": "on", "effective": "on", "executor": "E", "reason": "why", "error": None,
            "action": "backport", **changes}


@pytest.mark.parametrize(("changes", "expected"), [
    ({}, 0),
    ({"action": "drift"}, 1),
    ({"action": "unknown"}, 1),
    ({"action": "refuse"}, 1),
    ({"action": "unknown", "toggle": {"value": None, "source": "unset", "on": False}}, 0),
    ({"action": "stand-aside"}, 0),
    ({"patches": [{"name": "gate", "state": "drift", "reason": "r", "target": "t"}]}, 1),
    ({"patches": [{"name": "gate", "state": "disabled", "reason": "r", "target": "t"}]}, 0),
    ({"command": command()}, 0),
    ({"command": command(effective="off")}, 1),
    ({"command": command(requested="off", effective="off")}, 0),
    ({"command": command(requested="auto", effective="off")}, 0),
    ({"command": command(requested="auto", effective="off", error="vLLM says no")}, 1),
    ({"nodes": [{"node": "10.0.0.2", "differences": []}]}, 0),
    ({"nodes": [{"node": "10.0.0.2", "differences": ["vllm is '0.12.0', here '0.13.3'"]}]}, 1),
])
def test_exit_code(monkeypatch, capsys, changes, expected):
    found = answer(**changes)
    found["problems"] = doctor.problems(found)
    monkeypatch.setattr(doctor, "diagnose", lambda *_: found)
    assert cli.main(["doctor", "--json"]) == expected
    assert json.loads(capsys.readouterr().out) == found
    assert cli.main(["doctor"]) == expected
    assert ("PROBLEM" in capsys.readouterr().out) == bool(expected)


@pytest.mark.parametrize("arguments", [["--", "python", "x.py"], ["--", "vllm", "bench"],
                                       ["vllm"], ["--", "vllm", "serve"]])
def test_usage(monkeypatch, capsys, arguments):
    monkeypatch.setattr(doctor, "diagnose", lambda *_: pytest.fail("should not get here"))
    assert cli.main(["doctor", *arguments]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--", "vllm", "serve", "m", "--x"],
                                   ["vllm", "serve", "m", "--x"],
                                   ["--", "/opt/bin/vllm", "serve", "m", "--x"]])
def test_command_line(words):
    assert doctor.serve_arguments(words) == ["m", "--x"]


def test_nodes_are_compared_by_versions_and_facts():
    here = answer()
    assert doctor.differences(here, answer()) == []
    there = answer(vllm="0.12.0", facts=[{"fact": "gate", "expected": "tuple", "found": "absent"}])
    found = doctor.differences(here, there)
    assert len(found) == 2 and "0.12.0" in found[0] and "absent" in found[1]
    assert doctor.differences(here, {"error": "cannot be imported"}) == ["cannot be imported"]


def test_the_real_report_needs_no_vllm():
    report = doctor.node_report()
    assert json.dumps(report) and report["action"]


def test_table_names_every_row_once(capsys):
    assert cli.main(["table", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["vllm"] for row in rows] == list(compat.ROWS)


def _block(name: str) -> str:
    text = README.read_text()
    begin, end = f".. {name}-begin", f".. {name}-end"
    assert begin in text and end in text, f"README.rst lacks the markers {begin} and {end}"
    return text.partition(begin)[2].partition(end)[0].strip()


def test_readme_has_this_table():
    assert _block("compat-table") == table.as_rst().strip(), (
        "README.rst is out of date: vllm-tpu-async-patch table --rst")


def test_readme_has_every_reason_with_its_cure():
    block = _block("reasons")
    assert block == table.reasons_as_rst().strip(), (
        "README.rst is out of date: vllm-tpu-async-patch table --reasons")
    for reason in reasons.REASONS:
        assert reason.cure in block
