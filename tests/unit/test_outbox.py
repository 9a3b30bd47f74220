"""Outputs on a worker: resolved in order, once, and gone after they were taken."""

from __future__ import annotations

import threading

import pytest

from vllm_tpu_async_patch.channel import Outbox, StepFailed, StepTicket

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
    with outbox._changed:
        assert outbox._changed.wait_for(
            lambda: not outbox._unresolved and not outbox._resolving, 30)
    return outbox.sizes()


def test_ids_increase_by_one_per_call():
    outbox = Outbox(rank=3)
    assert [outbox.put(i, keep=True) for i in range(3)] == [
        StepTicket(1, 3), StepTicket(2, 3), StepTicket(3, 3)]


def test_plain_and_lazy_outputs_are_resolved_once_in_order_and_then_gone():
    outbox, log = Outbox(0), []
    lazy = [Lazy(value, log) for value in "abc"]
    tickets = [outbox.put(out, keep=True) for out in (*lazy, "plain")]
    assert [outbox.take(t.step) for t in reversed(tickets)] == ["plain", "c", "b", "a"]
    assert log == ["a", "b", "c"] and {out.calls for out in lazy} == {1}
    assert settled(outbox) == {"rank": 0, "steps": 4, "unresolved": 0, "kept": 0, "dropped": 0}


def test_every_output_is_resolved_also_where_nobody_takes_it():
    outbox, log = Outbox(2), []
    for value in range(5):
        outbox.put(Lazy(value, log), keep=False)
    assert settled(outbox)["kept"] == 0
    assert log == [0, 1, 2, 3, 4]


def test_a_timeout_leaves_the_output_where_it_is():
    outbox, lazy = Outbox(0), Lazy("a", ready=False)
    ticket = outbox.put(lazy, keep=True)
    with pytest.raises(TimeoutError, match="step 1 is not ready on rank 0"):
        outbox.take(ticket.step, timeout=0.01)
    lazy.ready.set()
    assert outbox.take(ticket.step, timeout=30) == "a"


def test_taken_twice_or_unknown_is_an_error_that_tells_what_is_there():
    outbox = Outbox(0)
    ticket = outbox.put("a", keep=True)
    outbox.take(ticket.step)
    for step in (ticket.step, 77):
        with pytest.raises(StepFailed, match=f"step {step} has no output on rank 0"):
            outbox.take(step)


def test_a_failing_output_is_raised_to_the_taker_and_the_next_one_is_fine():
    outbox = Outbox(0)
    bad, good = outbox.put(Lazy(ValueError("boom")), True), outbox.put(Lazy("b"), True)
    with pytest.raises(ValueError, match="boom"):
        outbox.take(bad.step)
    assert outbox.take(good.step) == "b"
    assert settled(outbox)["kept"] == 0


def test_a_failing_output_that_nobody_takes_fails_the_next_step():
    outbox = Outbox(3)
    outbox.put(Lazy(ValueError("boom")), keep=False)
    settled(outbox)
    with pytest.raises(StepFailed, match="step 1: .* rank 3: .*boom"):
        outbox.put("b", keep=False)


def test_unread_outputs_do_not_pile_up():
    outbox = Outbox(0, limit=4)
    for value in range(100):
        outbox.put(value, keep=True)
    sizes = settled(outbox)
    assert (sizes["kept"], sizes["dropped"]) == (4, 96)
    with pytest.raises(StepFailed, match="dropped unread: 96"):
        outbox.take(1)
