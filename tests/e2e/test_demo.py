"""The demo, as README.rst has a new user run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="needs vllm-tpu")
pytestmark = pytest.mark.e2e


def test_the_three_modes_generate_the_same_tokens_on_two_hosts(tmp_path: Path) -> None:
    hosts, file = 2, tmp_path / "demo.json"
    done = subprocess.run(
        [sys.executable, "-m", "vllm_tpu_async_patch", "demo", "--hosts", str(hosts),
         "--requests", "4", "--max-tokens", "12", "--json", str(file)],
        capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "tokens identical: yes"

    report = json.loads(file.read_text())
    assert (report["hosts"], report["device_ms"], report["identical"]) == (hosts, 40, True)
    assert all(report[name] for name in ("vllm", "tpu_inference", "ray", "jax"))
    runs = {run["mode"]: run for run in report["runs"]}
    assert list(runs) == ["sync", "stock-async", "patched"]
    assert [run["async_scheduling"] for run in runs.values()] == [False, True, True]
    stock = "tpu_inference.RayDistributedExecutor"
    assert [run["executor"] for run in runs.values()] == [
        stock, stock, "vllm_tpu_async_patch.TPUAsyncRayExecutor"]
    for run in runs.values():
        assert (run["requests"], run["output_tokens"]) == (4, 48)
        assert 12 <= run["steps"] < 48 and 0 < run["device_busy"] <= 1
    assert len({run["tokens_sha256"] for run in runs.values()}) == 1
    assert "with the patch `host-rank` alone" in done.stdout


def test_a_mode_that_fails_shows_its_last_lines_and_exits_with_1(tmp_path: Path) -> None:
    # A package that breaks vLLM's import stands in front of it.
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text("raise ImportError('this vllm is broken')")
    done = subprocess.run([sys.executable, "-m", "vllm_tpu_async_patch", "demo"],
                          capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "mode sync ended with exit code 1" in done.stderr
    assert "this vllm is broken" in done.stderr
