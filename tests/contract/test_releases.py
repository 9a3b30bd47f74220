"""Each release's own source text against its row of the table; nothing is imported."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import wheels

from vllm_tpu_async_patch import compat, probe
from vllm_tpu_async_patch.compat import Versions, decide

pytestmark = pytest.mark.contract


@cache
def source(version: str) -> probe.Source:
    vllm, tpu_inference = wheels.unpacked(version)
    return probe.Source({"vllm": Path(vllm, "vllm"),
                         "tpu_inference": Path(tpu_inference, "tpu_inference")})


RELEASES = [pytest.param(v, marks=() if v in wheels.DEFAULT else pytest.mark.contract_all)
            for v in wheels.ALL]


@pytest.mark.parametrize("version", RELEASES)
def test_the_release_has_the_facts_and_bodies_of_its_row(version):
    row = compat.ROWS[compat.base(version)]
    found = source(version).facts(row.expected)
    assert found == row.expected
    verdict = decide(Versions(version, wheels.PAIRS.get(version, version)), found)
    assert (verdict.action, verdict.patches) == (row.action, row.patches)


@pytest.mark.parametrize("version", RELEASES)
def test_no_other_release_is_taken_for_it(version):
    """A release under another version number is found by its facts, or it is drift."""
    found = source(version).facts(compat.expectations())
    forced = decide(Versions("0.99.0", "0.99.0"), found, force=True)
    assert forced.row is not None
    row = compat.ROWS[compat.base(version)]
    assert (forced.action, forced.patches) == (row.action, row.patches)


def test_recording_all_releases_again_gives_the_same_table():
    """The maintainers' command is what wrote hashes.py."""
    from vllm_tpu_async_patch import hashes

    text = probe.record("0.13.3", "0.13.3", source("0.13.3"))
    assert text == Path(hashes.__file__).read_text()


def test_the_newest_release_reads_our_hooks(tmp_path):
    """Every module of the run-time half's patches imports beside the newest source."""
    vllm, tpu_inference = wheels.unpacked(wheels.ALL[-1])
    code = ("import sys; sys.path[:0] = sys.argv[1:]\n"
            "import vllm_tpu_async_patch as p\n"
            "from vllm_tpu_async_patch import compat\n"
            "p.apply(); print(compat.verdict().action, len(p.status()['patches']))\n"
            "assert not [m for m in sys.modules if m.partition('.')[0] in "
            "('vllm', 'tpu_inference', 'ray', 'jax')], 'imported by us'\n")
    info = tmp_path / "vllm_tpu-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-tpu\nVersion: 0.32.0\n")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), str(Path(compat.__file__).parents[1]), vllm,
         tpu_inference], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == "native", done.stdout + done.stderr
