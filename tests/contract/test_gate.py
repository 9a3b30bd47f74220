"""The gate matrix on the real releases: real configs, with and without the patch.

Releases before 0.18 run with the dependencies of this interpreter (vllm-tpu 0.13.3).  Releases from
0.18 on need those of vllm-tpu 0.20.0: set VTAP_PYTHON_0200 to such an interpreter.

``pytest tests/contract -m contract_all -k matrix -s`` prints all of it as one table.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path

import child
import gate_child
import pytest
from child import NEW, OLD, PYTHON_0200

pytestmark = pytest.mark.contract

SCRIPT = str(Path(__file__).with_name("gate_child.py"))
ON_RAY = [c for c in gate_child.cells(short=False) if c[4] == "ray"]
ELSEWHERE = [c for c in gate_child.cells(short=False) if c[4] != "ray"]


#: 0.13.2.post6 differs from 0.13.3 in its version number only.
RELEASES = [pytest.param(v, marks=pytest.mark.contract_all if v == "0.13.2.post6" else ())
            for v in (*OLD, *NEW)]


@cache
def outcomes(version: str, v2: str = "", *arguments: str) -> dict:
    """What gate_child says for one release; skips where its interpreter is missing."""
    variables = {"VLLM_USE_RAY_V2_EXECUTOR_BACKEND": v2} if v2 else {}
    with tempfile.TemporaryDirectory() as directory:
        done = child.run(version, SCRIPT, directory, *arguments, **variables)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def word(outcome: list) -> str:
    """on, off, or who refuses: `error` (vLLM), `pipeline` or `speculation` (we)."""
    first, text = outcome
    if isinstance(first, bool):
        return "on" if first else "off"
    if "Async scheduling over Ray on TPU does not work with pipeline" in text:
        return "pipeline"
    return "speculation" if "does not work with speculative decoding" in text else "error"


def expected(version: str, cell: tuple, v2: str = "") -> str:
    """What is right on TPU hosts over Ray, by the documented behaviour and nothing else."""
    backend, flag, stages, spec, _ = cell
    old, knows_speculation = version in OLD, version == "0.21.0"
    if stages == 2 and backend in ("tpu-name", "our-name"):
        # vLLM takes a dotted name for an executor without pipeline parallelism.
        return "error"
    if flag is False or (old and flag is None):
        return "off"
    if spec == "ngram":
        return "error" if flag else "off"
    if stages == 2 and (old or backend == "other-ray-class"):
        # An executor that the gate does not know is refused in vLLM's words, as ever.
        return "error" if flag else "off"
    if stages == 2:
        return "pipeline" if flag else "off"
    if spec == "eagle" and not knows_speculation:
        return "speculation" if flag else "off"
    if backend == "other-ray-class":
        return "error" if flag else "off"
    return "on"


@pytest.mark.parametrize("version", RELEASES)
def test_patched_every_cell_over_ray_is_right(version):
    patched = outcomes(version)["patched"]
    wrong = {gate_child.name(c): (patched[gate_child.name(c)], expected(version, c))
             for c in ON_RAY if word(patched[gate_child.name(c)]) != expected(version, c)}
    assert not wrong


@pytest.mark.parametrize("version", RELEASES)
def test_every_cell_elsewhere_equals_unpatched_word_for_word(version):
    found = outcomes(version)
    for cell in ELSEWHERE:
        key = gate_child.name(cell)
        assert found["patched"][key] == found["unpatched"][key], key


@pytest.mark.parametrize("version", RELEASES)
def test_what_vllm_refuses_for_other_reasons_it_refuses_in_its_own_words(version):
    found = outcomes(version)
    for cell in ON_RAY:
        key = gate_child.name(cell)
        if word(found["patched"][key]) == "error":
            assert found["patched"][key] == found["unpatched"][key], key


@pytest.mark.parametrize("version", OLD[:1] + OLD[-1:])
def test_what_the_demo_asks_for_is_vllms_own_refusal_without_us(version):
    cell = "ray/on/pp1/-/ray"
    _, text = outcomes(version)["unpatched"][cell]
    assert "async scheduling only supports `mp`, `uni`" in text and "you chose `ray`" in text
    assert outcomes(version)["patched"][cell] == [True, gate_child.OUR_NAME]


@pytest.mark.parametrize("version", RELEASES)
def test_removed_equals_unpatched(version):
    found = outcomes(version)
    assert found["removed"]
    for key, outcome in found["removed"].items():
        assert outcome == found["unpatched"][key], key


@pytest.mark.parametrize("version", RELEASES)
def test_over_ray_the_executor_is_the_right_one(version):
    executor = gate_child.OUR_NAME if version in OLD else gate_child.TPU_NAME
    for key, (first, chosen) in outcomes(version)["patched"].items():
        if key.endswith("/ray") and isinstance(first, bool):
            assert chosen == executor, key


@pytest.mark.parametrize("version", RELEASES)
def test_no_patch_of_the_row_drifted_or_failed(version):
    from vllm_tpu_async_patch import compat

    status = outcomes(version)["status"]
    row = compat.ROWS[compat.base(version)]
    assert (status["action"], status["vllm"]) == (row.action, version)
    states = {patch["name"]: patch["state"] for patch in status["patches"]}
    assert not {"drift", "failed", "refused"} & set(states.values()), status
    late = {"multiproc-answer", "host-rank", "empty-step", "engine-line"}  # worker, engine core
    needed = {name for name in row.patches if name not in late}
    if version == "0.21.0":
        assert states["ray-name"] == "not needed"  # RayExecutorV2 is its default
        needed.remove("ray-name")
    assert {states[name] for name in needed} == {"applied"}, states


@pytest.mark.parametrize("v2", ["0", "1"])
@pytest.mark.parametrize("version", [
    pytest.param(v, marks=() if v == "0.21.0" else pytest.mark.contract_all) for v in NEW])
def test_either_ray_executor_generation(version, v2):
    found = outcomes(version, v2, "short")
    states = {patch["name"]: patch["state"] for patch in found["status"]["patches"]}
    assert states["ray-name"] == ("not needed" if v2 == "1" else "applied")
    for cell in gate_child.cells(short=True):
        key = gate_child.name(cell)
        # With RayExecutorV2 the class that `ray` stands for is a multiprocessing one.
        assert word(found["patched"][key]) == expected(version, cell, v2), key


def _table(versions: list[str]) -> str:
    width = max(len(gate_child.name(c)) for c in ON_RAY)
    lines = ["TPU over Ray: unpatched > patched (one word: no difference)",
             " ".join([f"{'backend/async/stages/speculation':{width}}",
                       *(f"{v:22}" for v in versions)])]
    for cell in ON_RAY:
        key, row = gate_child.name(cell), []
        for version in versions:
            before, after = (word(outcomes(version)[phase][key])
                             for phase in ("unpatched", "patched"))
            right = after == expected(version, cell)
            row.append((after if before == after else f"{before} > {after}")
                       + ("" if right else " WRONG"))
        lines.append(" ".join([f"{key.rpartition('/')[0]:{width}}",
                               *(f"{text:22}" for text in row)]))
    same = sum(outcomes(v)["unpatched"][gate_child.name(c)]
               == outcomes(v)["patched"][gate_child.name(c)]
               for v in versions for c in ELSEWHERE)
    lines.append(f"not over Ray: {same} of {len(versions) * len(ELSEWHERE)} cells equal unpatched")
    return "\n".join(lines)


def test_matrix(request):
    """The releases that can run here, as one table."""
    old = OLD if "contract_all" in request.config.option.markexpr else ("0.12.0", "0.13.3")
    versions = [*old, *(NEW if PYTHON_0200 else ())]
    table = _table(versions)
    print("\n" + table)
    assert "WRONG" not in table
