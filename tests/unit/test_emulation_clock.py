"""The emulated device: in order, one step at a time, no result early, no dispatch waiting."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from vllm_tpu_async_patch.emulation.device import DeviceClock, Interval, Step, busy, read_record

pytestmark = pytest.mark.unit


def run_steps(clock: DeviceClock, count: int, tokens: int = 7) -> list[Step]:
    steps = []
    for _ in range(count):
        clock.dispatch(tokens, lambda: None)
        assert clock.last is not None
        steps.append(clock.last)
    return steps


def test_steps_take_the_device_in_order_and_one_at_a_time() -> None:
    steps = run_steps(DeviceClock(30, ready=lambda _: None), 4)
    steps[-1].wait()
    for step in steps:
        assert step.end - step.start >= 0.030 - 1e-9
        assert step.start >= step.submitted
    for before, after in zip(steps, steps[1:]):
        assert after.start >= before.end


def test_dispatch_returns_while_the_device_is_busy_with_what_came_before() -> None:
    steps = run_steps(DeviceClock(200, ready=lambda _: None), 3)
    # All of them were handed over before the first one was over, and nobody was told early.
    assert steps[-1].submitted < steps[0].submitted + 0.200
    assert not steps[-1].over()
    steps[-1].wait()
    assert time.monotonic() >= steps[0].submitted + 3 * 0.200


def test_waiting_takes_until_the_end_and_uses_no_cpu() -> None:
    (step,) = run_steps(DeviceClock(300, ready=lambda _: None), 1)
    used = time.thread_time()
    step.wait()
    assert time.monotonic() >= step.end >= step.submitted + 0.300
    assert time.thread_time() - used < 0.1
    assert step.over()


def test_an_idle_device_starts_at_once() -> None:
    clock = DeviceClock(10, ready=lambda _: None)
    (first,) = run_steps(clock, 1)
    first.wait()
    time.sleep(0.05)
    (second,) = run_steps(clock, 1)
    second.wait()
    assert second.start >= second.submitted > first.end
    assert second.end == pytest.approx(second.start + 0.010)


def test_the_device_begins_when_a_step_is_computed() -> None:
    computed = threading.Event()
    clock = DeviceClock(10, ready=lambda results: computed.wait())
    steps = run_steps(clock, 2)
    time.sleep(0.1)
    assert not steps[0].over()
    done = time.monotonic()
    computed.set()
    steps[1].wait()
    assert steps[0].start >= done
    # The second was computed meanwhile: no gap.
    assert steps[1].start == steps[0].end


def test_computation_inside_dispatch_is_the_hosts_time() -> None:
    clock = DeviceClock(100, ready=lambda _: None)
    clock.dispatch(1, lambda: time.sleep(0.05))
    assert clock.last is not None
    clock.last.wait()
    assert clock.last.start >= clock.last.submitted + 0.05
    assert clock.last.end == pytest.approx(clock.last.start + 0.100)


def test_dispatch_returns_all_results_and_waits_for_the_named_part() -> None:
    seen: list[object] = []
    clock = DeviceClock(ready=seen.append)
    assert clock.dispatch(1, lambda: ("cache", "hidden"), lambda results: results[1]) == (
        "cache", "hidden")
    assert clock.last is not None
    clock.last.wait()
    assert seen == ["hidden"]


def test_a_failed_computation_does_not_stop_the_device() -> None:
    def fail(results: object) -> None:
        raise RuntimeError("computed wrongly")

    steps = run_steps(DeviceClock(1, ready=fail), 2)
    steps[1].wait()
    assert steps[1].over()


def test_a_failed_dispatch_is_no_step() -> None:
    clock = DeviceClock(1, ready=lambda _: None)
    with pytest.raises(ZeroDivisionError):
        clock.dispatch(1, lambda: 1 // 0)
    assert clock.last is None


def test_the_record_has_one_readable_line_per_step(tmp_path: Path) -> None:
    folder = tmp_path / "record"
    clock = DeviceClock(5, str(folder), host=3, ready=lambda _: None)
    steps = run_steps(clock, 3, tokens=11)
    steps[-1].wait()
    while len(record := read_record(str(folder))) < 3:  # written just after the step is settled
        time.sleep(0.01)
    assert [(i.host, i.step, i.tokens, i.start, i.end) for i in record] == [
        (3, s.number, 11, s.start, s.end) for s in steps]


def test_a_record_is_kept_without_a_clock(tmp_path: Path) -> None:
    clock = DeviceClock(0, str(tmp_path), ready=lambda _: time.sleep(0.02))
    run_steps(clock, 2)[-1].wait()
    while len(record := read_record(str(tmp_path))) < 2:
        time.sleep(0.01)
    assert record[1].start >= record[0].end > record[0].start


def line(host: int, start: float, end: float) -> str:
    return (f'{{"host": {host}, "pid": 1, "step": 1, "start": {start}, "end": {end}, '
            '"tokens": 1}\n')


def test_reading_a_record_while_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "host0-1.jsonl").write_text(line(0, 2, 3) + line(0, 4, 5)[:-9])
    (tmp_path / "host1-2.jsonl").write_text(line(1, 1, 2))
    (tmp_path / "notes.txt").write_text("not a record")
    assert [(i.host, i.start) for i in read_record(str(tmp_path))] == [(1, 1), (0, 2)]
    assert [(i.host, i.start) for i in read_record(str(tmp_path), host=1)] == [(1, 1)]
    assert read_record(str(tmp_path / "nothing")) == []


@pytest.mark.parametrize("intervals, share", [
    ([], 0.0),
    ([(1, 1)], 0.0),
    ([(5, 9)], 1.0),
    ([(0, 1), (1, 2), (3, 4)], 0.75),
    ([(3, 4), (0, 1)], 0.5),
    ([(0, 4), (1, 2), (7, 8)], 5 / 8),  # the same time twice is the same time
])
def test_busy_is_the_share_of_the_whole_span(intervals: list[tuple[float, float]],
                                             share: float) -> None:
    assert busy(Interval(0, 1, 1, start, end, 1) for start, end in intervals) == share
