"""The decision: which versions, which facts, which answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_tpu_async_patch import compat, probe, reasons
from vllm_tpu_async_patch.compat import Versions, decide
from vllm_tpu_async_patch.patches import PATCHES

pytestmark = pytest.mark.unit

ROW = compat.ROWS["0.13.3"]


@pytest.mark.parametrize(("vllm", "tpu_inference", "action"), [
    ("0.13.3", "0.13.3", "backport"),
    ("0.13.3.post1", "0.13.3", "backport"),
    ("0.13.2.post6", "0.13.2.post6", "backport"),
    ("0.13.3+tpu", "0.13.3.dev4+g12ab", "backport"),
    ("0.12.0", "0.12.0", "backport"),
    ("0.13.3", "0.12.0", "drift"),
    ("0.13.3", None, "stand-aside"),
    (None, "0.13.3", "stand-aside"),
    (None, None, "stand-aside"),
    ("0.9.3", None, "stand-aside"),
    ("0.11.1", "0.11.1", "refuse"),
    ("0.99.0", "0.99.0", "unknown"),
    ("0.1.dev12+gabc", "0.13.3", "unknown"),
    ("a nightly", "0.13.3", "unknown"),
])
def test_every_kind_of_version_is_answered(vllm, tpu_inference, action):
    verdict = decide(Versions(vllm, tpu_inference))
    assert verdict.action == action
    assert verdict.reason
    assert bool(verdict.patches) == (action in ("backport", "repair", "native"))


def test_a_wrong_pair_names_both_versions():
    reason = decide(Versions("0.13.3", "0.12.0")).reason
    assert "0.13.3" in reason and "0.12.0" in reason


def test_agreeing_facts_change_nothing():
    assert decide(Versions("0.13.3", "0.13.3"), ROW.expected).patches == ROW.patches


@pytest.mark.parametrize("fact", list(ROW.expected))
def test_any_differing_fact_is_drift_and_nothing_is_patched(fact):
    verdict = decide(Versions("0.13.3", "0.13.3"), {**ROW.expected, fact: "something else"})
    assert verdict.action == "drift" and verdict.patches == ()
    assert verdict.drift == compat.Drift(fact, ROW.expected[fact], "something else")
    assert fact in verdict.reason and "something else" in verdict.reason


def test_unknown_version_with_known_facts_needs_force():
    versions = Versions("0.99.0", "0.99.0")
    assert decide(versions, ROW.expected).action == "unknown"
    forced = decide(versions, ROW.expected, force=True)
    assert forced.patches == ROW.patches and forced.forced
    assert "0.99.0" in forced.reason and "0.13" in forced.reason


def test_force_does_not_help_where_a_fact_differs():
    verdict = decide(Versions("0.99.0", "0.99.0"), {**ROW.expected, "gate": "absent"}, force=True)
    assert verdict.action == "drift" and verdict.patches == ()
    assert verdict.drift is not None and verdict.drift.fact == "gate"


def test_force_wants_every_fact_looked_at():
    facts = dict(ROW.expected)
    facts.popitem()
    assert decide(Versions("0.99.0", "0.99.0"), facts, force=True).patches == ()


def test_force_does_not_open_a_known_row():
    verdict = decide(Versions("0.13.3", "0.13.3"), {**ROW.expected, "gate": "absent"}, force=True)
    assert verdict.action == "drift"


def test_rows_name_existing_patches_and_have_a_hash_for_all_they_rely_on():
    known = {patch.name: patch for patch in PATCHES}
    for row in compat.ROWS.values():
        for name in row.patches:
            missing = [t for t in known[name].relies_on if t not in row.hashes]
            assert not missing, (row.vllm, name, missing)


def test_rows_state_every_fact_and_their_evidence():
    for row in compat.ROWS.values():
        assert row.evidence, row.vllm
        if row.patches:
            assert list(row.facts) == list(probe.FACTS), row.vllm


def test_every_patch_is_used_by_some_row():
    used = {name for row in compat.ROWS.values() for name in row.patches}
    assert used == {patch.name for patch in PATCHES}


def test_reasons_are_unique():
    texts = [reason.text for reason in reasons.REASONS]
    keys = [reason.key for reason in reasons.REASONS]
    assert len(set(texts)) == len(texts) and len(set(keys)) == len(keys)
    assert all(reason.cure for reason in reasons.REASONS)
    declared = [r for r in vars(reasons).values() if isinstance(r, reasons.Reason)]
    assert sorted(r.key for r in declared) == sorted(keys)


def _distribution(directory: Path, name: str, version: str) -> None:
    info = directory / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize(("installed", "expected"), [
    ({"vllm-tpu": "0.13.2.post6", "tpu-inference": "0.13.2"},
     ["0.13.2.post6", "0.13.2", "vllm-tpu"]),
    ({"vllm": "0.16.0+cpu", "tpu-inference": "0.1.dev3"}, ["0.16.0+cpu", "0.1.dev3", "vllm"]),
    ({"vllm-tpu": "0.12.0", "vllm": "0.16.0"}, ["0.12.0", None, "vllm-tpu"]),
    ({}, [None, None, ""]),
])
def test_versions_come_from_either_distribution(tmp_path, installed, expected):
    for name, version in installed.items():
        _distribution(tmp_path, name, version)
    package = Path(compat.__file__).parents[1]
    code = (f"import sys; sys.path = [p for p in sys.path if 'site-packages' not in p]; "
            f"sys.path[:0] = [{str(package)!r}, {str(tmp_path)!r}]; import json; "
            f"from vllm_tpu_async_patch import compat; "
            f"v = compat.installed(); print(json.dumps([v.vllm, v.tpu_inference, v.distribution]))")
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True,
                          env={**os.environ, "VLLM_TPU_ASYNC_PATCH": "0"})
    assert json.loads(done.stdout) == expected
