"""Outputs on a worker: resolved in order, once, and gone after they were taken."""

from __future__ import annotations

import threading

import pytest

from vllm_tpu_async_patch.channel import Outbox, StepFailed

pytestmark = pytest.mark.unit


class Lazy:
    """An output that the device has not finished; any class with get_output() will do."""

    def __init__(self, value, log=None, ready=True):
        self.value, self.log, self.calls = value, log if log is not None else [], 0
        self.ready = threading.Event()
        self.lock = threading.Lock()  # cannot be pickled, like a handle of the device
        if ready:
            self.ready.set()

    def get_output(self):
        self.calls += 1
        assert self.ready.wait(30)
        self.log.append(self.value)
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def settled(outbox):
    """Sizes when nothing is left to resolve."""
    assert outbox.settle(30)
    return outbox.sizes()


def test_plain_and_lazy_outputs_are_resolved_once_in_order_and_then_gone():
    outbox, log = Outbox(0), []
    lazy = [Lazy(value, log) for value in "abc"]
    for step, out in enumerate((*lazy, "plain"), 1):
        outbox.put(step, out, keep=True)
    assert [outbox.take(step) for step in (4, 3, 2, 1)] == ["plain", "c", "b", "a"]
    assert log == ["a", "b", "c"] and {out.calls for out in lazy} == {1}
    assert settled(outbox) == {"rank": 0, "steps": 4, "unresolved": 0, "kept": 0, "dropped": 0}


def test_every_output_is_resolved_also_where_nobody_takes_it():
    outbox, log = Outbox(2), []
    for value in range(5):
        outbox.put(value + 1, Lazy(value, log), keep=False)
    assert settled(outbox)["kept"] == 0
    assert log == [0, 1, 2, 3, 4]


def test_a_timeout_leaves_the_output_where_it_is():
    outbox, lazy = Outbox(0), Lazy("a", ready=False)
    outbox.put(1, lazy, keep=True)
    with pytest.raises(TimeoutError, match="step 1 is not ready on rank 0"):
        outbox.take(1, timeout=0.01)
    lazy.ready.set()
    assert outbox.take(1, timeout=30) == "a"


def test_taken_twice_or_unknown_is_an_error_that_tells_what_is_there():
    outbox = Outbox(0)
    outbox.put(1, "a", keep=True)
    outbox.take(1)
    for step in (1, 77):
        with pytest.raises(StepFailed, match=f"step {step} has no output on rank 0"):
            outbox.take(step)


def test_a_failing_output_is_raised_to_the_taker_and_the_next_one_is_fine():
    outbox = Outbox(0)
    outbox.put(1, Lazy(ValueError("boom")), True)
    outbox.put(2, Lazy("b"), True)
    with pytest.raises(ValueError, match="boom"):
        outbox.take(1)
    assert outbox.take(2) == "b"
    assert settled(outbox)["kept"] == 0


def test_a_failing_output_that_nobody_takes_is_noted():
    outbox = Outbox(3)
    outbox.put(1, Lazy(ValueError("boom")), keep=False)
    settled(outbox)
    assert outbox.lost == "step 1 failed in phase output on rank 3: ValueError('boom')"


def test_unread_outputs_do_not_pile_up():
    outbox = Outbox(0, limit=4)
    for step in range(1, 101):
        outbox.put(step, step, keep=True)
    sizes = settled(outbox)
    assert (sizes["kept"], sizes["dropped"]) == (4, 96)
    with pytest.raises(StepFailed, match="dropped unread: 96"):
        outbox.take(1)


def test_abandoned_outputs_leave_with_the_next_one_taken():
    outbox = Outbox(0)
    for step in (1, 2, 3):
        outbox.put(step, f"output {step}", keep=True)
    assert settled(outbox)["kept"] == 3
    assert outbox.take(3, abandoned=[1, 2]) == "output 3"
    assert outbox.sizes()["kept"] == 0


def test_pushed_outputs_are_not_kept():
    outbox, pushed = Outbox(0), []
    outbox.push_to(lambda step, output: pushed.append((step, output)))
    outbox.put(1, Lazy("a"), keep=True)
    outbox.put(2, Lazy(ValueError("boom")), keep=True)
    outbox.put(3, "c", keep=False)
    assert settled(outbox)["kept"] == 0
    assert pushed[0] == (1, "a") and isinstance(pushed[1][1].error, ValueError)
    assert len(pushed) == 2
