"""What anybody may do with a `concurrent.futures.Future` can be done with a `StepFuture`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import weakref

import pytest

from vllm_tpu_async_patch.future import StepFuture

pytestmark = pytest.mark.unit


class Step:
    """A step whose output comes when the test says so; counts how often it is brought back."""

    def __init__(self, outcome=None):
        self.outcome = object() if outcome is None else outcome
        self.arrived = threading.Event()
        self.asked = threading.Event()
        self.trips = 0

    def receive(self):
        self.trips += 1
        self.asked.set()
        assert self.arrived.wait(30)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def future(self):
        return StepFuture(self.receive)


def arrived(outcome=None):
    step = Step(outcome)
    step.arrived.set()
    return step


def test_it_is_a_future_of_the_standard_library():
    assert isinstance(arrived().future(), concurrent.futures.Future)


def test_result_any_number_of_times_is_one_trip():
    step = arrived()
    future = step.future()
    assert future.result() is future.result() is future.result() is step.outcome
    assert step.trips == 1


def test_an_error_any_number_of_times_is_one_trip():
    step = arrived(RuntimeError("boom"))
    future = step.future()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="boom"):
            future.result()
    assert future.exception() is step.outcome
    assert step.trips == 1


def test_two_threads_get_the_same_object():
    step = Step()
    future = step.future()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        got = [pool.submit(future.result) for _ in range(4)]
        assert step.asked.wait(30)
        step.arrived.set()
        assert {id(g.result(30)) for g in got} == {id(step.outcome)}
    assert step.trips == 1


def test_a_timeout_consumes_nothing():
    step = Step()
    future = step.future()
    for _ in range(3):
        with pytest.raises(concurrent.futures.TimeoutError):
            future.result(timeout=0.01)
    assert not future.done()
    step.arrived.set()
    assert future.result() is step.outcome
    assert step.trips == 1


def test_nobody_brings_the_output_back_before_it_is_asked_for():
    step = arrived()
    future = step.future()
    assert not step.asked.is_set() and not future.done()


def test_done_is_false_while_the_step_runs_and_true_afterwards():
    step = Step()
    future = step.future()
    assert not future.done() and future.running()
    step.arrived.set()
    future.result()
    assert future.done() and not future.running()


def test_callbacks_run_once_with_the_future_early_and_late():
    step, calls, early = Step(), [], threading.Event()
    future = step.future()
    future.add_done_callback(lambda f: (calls.append(("early", f)), early.set()))
    step.arrived.set()
    assert early.wait(30)
    future.add_done_callback(lambda f: calls.append(("late", f)))
    future.result()
    assert calls == [("early", future), ("late", future)]
    assert step.trips == 1


def test_callbacks_see_the_exception():
    step, seen, told = arrived(RuntimeError("boom")), [], threading.Event()
    step.future().add_done_callback(lambda f: (seen.append(f.exception()), told.set()))
    assert told.wait(30)
    assert seen == [step.outcome]


def test_a_submitted_step_cannot_be_cancelled():
    step = arrived()
    future = step.future()
    assert not future.cancel() and not future.cancelled()
    assert future.result() is step.outcome
    assert not future.cancel()


def test_wait_and_as_completed():
    steps = [Step() for _ in range(3)]
    futures = [step.future() for step in steps]
    done, pending = concurrent.futures.wait(futures, timeout=0.01)
    assert not done and len(pending) == 3
    for step in steps:
        step.arrived.set()
    done, pending = concurrent.futures.wait(futures, timeout=30)
    assert len(done) == 3 and not pending
    again = [arrived().future() for _ in range(3)]
    assert set(concurrent.futures.as_completed(again, timeout=30)) == set(again)


def test_wrap_future():
    step = arrived()

    async def main():
        return await asyncio.wait_for(asyncio.wrap_future(step.future()), 30)

    assert asyncio.run(main()) is step.outcome


def test_a_dropped_future_is_gone_at_once_and_silent(recwarn):
    step = Step()
    ref = weakref.ref(step.future())
    gc.collect()
    assert ref() is None and not step.asked.is_set()
    assert not list(recwarn)


def test_an_interrupt_reaches_the_thread_that_waits():
    future = arrived(KeyboardInterrupt()).future()
    with pytest.raises(KeyboardInterrupt):
        future.result()
    assert future.done()


def test_done_is_honest_where_it_can_be_known():
    step, here = arrived(), []
    future = StepFuture(step.receive, ready=lambda: bool(here))
    assert not future.done() and step.trips == 0
    here.append(True)
    assert future.done() and step.trips == 1
    assert future.result() is step.outcome


def test_done_does_not_wait_where_another_worker_may_be_late():
    step = Step()
    future = StepFuture(step.receive, ready=lambda: True, prompt=False)
    assert not future.done()  # being received
    assert step.asked.wait(30)
    step.arrived.set()
    while not future.done():
        pass
    assert future.result() is step.outcome and step.trips == 1
