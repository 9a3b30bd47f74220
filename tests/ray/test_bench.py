"""One small run of ``bench overhead`` with everything real but the device."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.ray
pytest.importorskip("ray")


def test_overhead_prints_a_table_and_writes_the_figures(tmp_path):
    file = tmp_path / "figures.json"
    done = subprocess.run(
        [sys.executable, "-m", "vllm_tpu_async_patch", "bench", "overhead", "--device-ms", "1",
         "--host-ms", "0", "--steps", "20", "--rounds", "1", "--workers", "2",
         "--strategies", "sync,stock-async,fetch,patched,patched-ray", "--json", str(file)],
        capture_output=True, text=True, env={**os.environ, "VLLM_TPU_ASYNC_PATCH": "0"})
    assert done.returncode == 0, done.stderr
    found = json.loads(file.read_text())
    assert (found["workers"], found["device_ms"], found["host_ms"]) == (2, 1, 0)
    assert list(found["strategies"]) == ["sync", "stock-async", "fetch", "patched", "patched-ray"]
    for row in found["strategies"].values():
        assert 0 < row["device_busy"] <= 1.001 and row["ms_per_step"] > 0
        assert row["driver_cpu_ms"] >= 0
    assert [line.split()[0] for line in done.stdout.splitlines()[-6:]] == [
        "strategy", *found["strategies"]]
    assert "round 1/1" in done.stderr
