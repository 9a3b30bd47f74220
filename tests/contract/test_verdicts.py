"""Drift, unknown versions, FORCE, strict and doctor, on the real 0.13.3 (and 0.20.0)."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import child
import gate_child
import pytest
import wheels

pytestmark = pytest.mark.contract

BUILD = """
import json, logging, os, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.config.vllm import VllmConfig
outcome = "on"
if os.environ["VLLM_TPU_ASYNC_PATCH"] != "0":
    import vllm_tpu_async_patch
try:
    EngineArgs(model=sys.argv[1], max_model_len=64, distributed_executor_backend="ray",
               async_scheduling=eval(sys.argv[2])).create_engine_config()
except Exception as error:
    outcome = str(error)
print("@" + json.dumps({
    "outcome": outcome,
    "touched": hasattr(VllmConfig.__post_init__, "__wrapped__") or any(
        isinstance(c, tuple) and type(c) is not tuple
        for c in VllmConfig.__post_init__.__code__.co_consts)}))
"""


@pytest.fixture
def model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(gate_child.CONFIG))
    return str(tmp_path / "model")


def build(version, model, flag=True, overlays=(), **variables):
    done = child.run(version, "-c", BUILD, model, repr(flag), overlays=overlays,
                     TPU_MULTIHOST_BACKEND="ray", **variables)
    answers = [line for line in done.stdout.splitlines() if line.startswith("@")]
    assert answers, done.stderr[-3000:]
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "[tpu-async-patch]" in line]
    return json.loads(answers[-1][1:]), ours


def edited(version: str, directory: Path) -> Path:
    """A copy of the release's vllm in which somebody changed the gate by hand."""
    shutil.copytree(Path(wheels.unpacked(version)[0], "vllm"), directory / "vllm",
                    copy_function=os.link)
    gate = directory / "vllm" / "config" / "vllm.py"
    text = gate.read_text()
    gate.unlink()
    marked = text.replace("    def __post_init__(self):\n",
                          "    def __post_init__(self):\n        edited_by_hand = True\n", 1)
    assert marked != text
    gate.write_text(marked)
    return directory


def renumbered(version: str, directory: Path) -> Path:
    for name in ("vllm-tpu", "tpu-inference"):
        info = directory / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return directory


def test_an_edited_function_is_drift_and_nothing_is_touched(tmp_path, model):
    overlay = edited("0.13.3", tmp_path / "edited")
    answer, lines = build("0.13.3", model, overlays=(overlay,), VLLM_TPU_ASYNC_PATCH="1")
    assert not answer["touched"]
    assert "you chose `ray`" in answer["outcome"]
    assert len(lines) == 1 and "VllmConfig.__post_init__" in lines[0] and "expected" in lines[0]


def test_unknown_version_is_left_alone_with_one_line(tmp_path, model):
    overlay = renumbered("0.99.0", tmp_path / "versions")
    answer, lines = build("0.13.3", model, overlays=(overlay,), VLLM_TPU_ASYNC_PATCH="1")
    assert not answer["touched"] and "you chose `ray`" in answer["outcome"]
    assert len(lines) == 1 and "0.99.0 is not in the compatibility table" in lines[0]


def test_unknown_version_with_unchanged_modules_is_patched_under_force(tmp_path, model):
    overlay = renumbered("0.99.0", tmp_path / "versions")
    answer, lines = build("0.13.3", model, overlays=(overlay,), VLLM_TPU_ASYNC_PATCH="1",
                          VLLM_TPU_ASYNC_PATCH_FORCE="1")
    assert answer == {"outcome": "on", "touched": True}
    assert len(lines) == 1 and "0.99.0" in lines[0] and "0.13.3" in lines[0]


@pytest.mark.contract_all
def test_force_does_not_help_an_edited_unknown_version(tmp_path, model):
    overlays = (renumbered("0.99.0", tmp_path / "versions"), edited("0.13.3", tmp_path / "edited"))
    answer, lines = build("0.13.3", model, overlays=overlays, VLLM_TPU_ASYNC_PATCH="1",
                          VLLM_TPU_ASYNC_PATCH_FORCE="1")
    assert not answer["touched"] and len(lines) == 1 and "FORCE does not help" in lines[0]


@pytest.mark.parametrize("version", ["0.20.0"])
def test_strict_makes_a_refusal_a_configuration_error(tmp_path, model, version):
    """Left to vLLM (auto) the release would silently go without; strict says why it may not."""
    overlay = edited(version, tmp_path / "edited")
    answer, _ = build(version, model, None, overlays=(overlay,), VLLM_TPU_ASYNC_PATCH="strict")
    assert "VLLM_TPU_ASYNC_PATCH=strict" in answer["outcome"]
    assert "VllmConfig.__post_init__" in answer["outcome"]
    answer, _ = build(version, model, False, overlays=(overlay,), VLLM_TPU_ASYNC_PATCH="strict")
    assert answer["outcome"] == "on"  # nobody asked for async scheduling: no error
    answer, _ = build(version, model, None, overlays=(overlay,), VLLM_TPU_ASYNC_PATCH="1")
    assert answer == {"outcome": "on", "touched": False}


@pytest.mark.contract_all
def test_strict_on_the_old_gate(tmp_path, model):
    overlay = renumbered("0.99.0", tmp_path / "versions")
    answer, _ = build("0.13.3", model, True, overlays=(overlay,), VLLM_TPU_ASYNC_PATCH="strict")
    assert "you chose `ray`" in answer["outcome"]  # vLLM's own refusal comes first
    answer, _ = build("0.13.3", model, True, VLLM_TPU_ASYNC_PATCH="strict")
    assert answer["outcome"] == "on"


def doctor(version, *arguments, overlays=(), **variables):
    done = child.run(version, "-m", "vllm_tpu_async_patch", "doctor", "--json", *arguments,
                     overlays=overlays, TPU_MULTIHOST_BACKEND="ray", **variables)
    assert done.stdout.startswith("{"), done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


@pytest.mark.parametrize(("version", "action"), [("0.13.3", "backport"), ("0.20.0", "repair")])
def test_doctor_on_an_intact_release(model, version, action):
    code, answer = doctor(version, "--", "vllm", "serve", model, "--async-scheduling",
                          "--distributed-executor-backend", "ray", "--max-model-len", "64",
                          VLLM_TPU_ASYNC_PATCH="1")
    assert (code, answer["problems"]) == (0, []), answer
    assert (answer["action"], answer["row"], answer["vllm"]) == (action, version, version)
    assert {f["found"] == f["expected"] for f in answer["facts"]} == {True}
    assert {p["state"] for p in answer["patches"]} <= {"applied", "native", "not needed"}, answer
    command = answer["command"]
    assert (command["requested"], command["effective"]) == ("on", "on")
    assert command["executor"] == (gate_child.OUR_NAME if action == "backport"
                                   else gate_child.TPU_NAME)


def test_doctor_on_an_edited_release(tmp_path):
    code, answer = doctor("0.13.3", overlays=(edited("0.13.3", tmp_path / "edited"),),
                          VLLM_TPU_ASYNC_PATCH="1")
    assert code == 1 and answer["action"] == "drift"
    wrong = [f["fact"] for f in answer["facts"] if f["found"] != f["expected"]]
    assert wrong == ["vllm.config.vllm:VllmConfig.__post_init__"]
    assert {p["state"] for p in answer["patches"]} == {"drift"}


@pytest.mark.contract_all
def test_doctor_tells_what_a_command_gets_without_the_patch(model):
    code, answer = doctor("0.13.3", "--", "vllm", "serve", model, "--async-scheduling",
                          "--distributed-executor-backend", "ray")
    assert code == 1 and not answer["toggle"]["on"]
    assert answer["command"]["effective"] == "off" and "`ray`" in answer["command"]["reason"]
