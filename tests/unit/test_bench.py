"""What the bench prints, draws and refuses; its figures are not tested."""

from __future__ import annotations

import xml.dom.minidom

import pytest

from vllm_tpu_async_patch.bench import cli as bench_cli
from vllm_tpu_async_patch.bench.device import Device
from vllm_tpu_async_patch.bench.measure import Setting, step_bytes
from vllm_tpu_async_patch.bench.plot import svg
from vllm_tpu_async_patch.cli import main

pytestmark = pytest.mark.unit

ROW = {"ms_per_step": 2.0, "device_busy": 0.5, "driver_cpu_ms": 1.0, "worker_cpu_ms": 1.0,
       "bytes_per_step": 10, "rounds": []}


def figures(workers, device_ms):
    return {"workers": workers, "device_ms": device_ms, "host_ms": 2, "steps": 1, "requests": 64,
            "load": 0.0, "strategies": {"sync": ROW, "patched": ROW}}


def test_the_device_executes_in_order_one_at_a_time():
    device = Device(0.5)
    first, second = device.launch(), device.launch()
    assert second == pytest.approx(first + 0.5)
    found = device.figures()
    assert found["busy"] == 1.0 and found["span"] == pytest.approx(1.0)


def test_the_table_has_a_line_per_strategy():
    lines = bench_cli.table(figures(1, 6)).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["sync", "patched"] and "50.0%" in lines[2]


def test_the_drawing_is_xml_with_a_line_per_panel_and_strategy():
    drawing = svg([figures(w, d) for w in (1, 2) for d in (0, 4)])
    document = xml.dom.minidom.parseString(drawing)
    assert len(document.getElementsByTagName("polyline")) == 4


def test_only_patched_sends_one_output_whatever_the_number_of_workers():
    one, four = step_bytes(Setting(workers=1)), step_bytes(Setting(workers=4))
    assert four["patched"] - one["patched"] < 300 < four["fetch"] - one["fetch"]


@pytest.mark.parametrize("arguments", [
    ["--workers", "0"], ["--device-ms", "-1"], ["--device-ms", "nan"], ["--steps", "x"]])
def test_wrong_usage_is_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as left:
        main(["bench", "overhead", *arguments])
    assert left.value.code == 2
