"""The protocol over a real compiled graph; the workers are stand-ins, our halves are the real ones."""

from __future__ import annotations

import concurrent.futures
import os
import random
import tempfile
import time
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.ray
pytest.importorskip("ray")

from tests.ray.standin import Scheduled, UnknownRunner  # noqa: E402
from vllm_tpu_async_patch.channel import StepFailed  # noqa: E402
from vllm_tpu_async_patch.channel.local import PREFIX  # noqa: E402

MODES = pytest.mark.parametrize("mode", ["local", "ray"])


def own_sockets():
    mine = f"{PREFIX}{os.getpid()}-"
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith(mine)]


@MODES
def test_outputs_come_from_the_output_rank_and_nothing_is_left(engine, mode):
    e = engine(workers=2, mode=mode)
    assert not own_sockets()
    for step in range(1, 6):
        first, second = e.submit("a", "b"), e.submit("a")
        assert [first.result().step, second.result().step] == [2 * step - 1, 2 * step]
        assert first.result().rank == 0 and set(first.result().req_ids) == {"a", "b"}
    for worker in e.look():
        assert worker["settled"] and worker["kept"] == 0 and worker["resolved"] == 10


@MODES
def test_large_outputs_do_not_stall(engine, mode):
    e = engine(mode=mode)
    futures = [e.submit("a", bytes=6_000_000) for _ in range(2)]
    for _ in range(6):
        futures.append(e.submit("a", bytes=6_000_000))
        assert len(futures.pop(0).result().data) == 6_000_000


@MODES
def test_the_future_contract_over_ray(engine, mode):
    e = engine(mode=mode)
    slow = e.submit("a", output_s=0.5)
    assert not slow.done() and not slow.cancel()
    with pytest.raises(concurrent.futures.TimeoutError):
        slow.result(timeout=0.05)
    assert slow.result() is slow.result(timeout=5) and slow.done()
    futures = [e.submit("a") for _ in range(3)]
    assert not concurrent.futures.wait(futures, timeout=30).not_done
    late = e.submit("a"), e.submit("b")
    assert late[1].result().req_ids == ["b"] and late[0].result().req_ids == ["a"]


def test_done_tells_without_anybody_asking_for_the_result(engine):
    for workers in (1, 2):
        future = engine(workers=workers, mode="local").submit("a")
        end = time.monotonic() + 30
        while not future.done() and time.monotonic() < end:
            time.sleep(0.001)
        assert future.done()


@MODES
def test_dropped_futures_leave_nothing_and_do_not_block(engine, mode):
    e = engine(workers=2, mode=mode)
    for _ in range(50):
        e.submit("a")
        assert e.submit("b").result().req_ids == ["b"]
    assert e.submit("c").result().req_ids == ["c"]
    assert all(w["kept"] == 0 for w in e.look())
    if mode == "local":
        assert len(e.steps.inbox) == 0


@MODES
def test_any_number_of_dropped_futures_in_a_row(engine, mode):
    e = engine(workers=2, mode=mode)
    for _ in range(40):
        e.submit("a")
    assert e.submit("b").result().step == 41
    assert not e.graph._graph._result_buffer and not e.steps.unread


@pytest.mark.parametrize("rank", [0, 3])
def test_a_failing_dispatch_names_step_phase_and_rank(engine, rank):
    e = engine(workers=4)
    e.submit("a").result()
    future = e.submit("a", plan={rank: {"fails": "boom"}})
    with pytest.raises(StepFailed, match=rf"step 2 failed in phase graph on rank {rank}.*boom"):
        future.result()
    assert e.submit("a").result().req_ids == ["a"]
    assert len(e.steps.inbox) == 0


def test_a_failing_output_names_step_phase_and_rank(engine):
    e = engine(workers=4)
    with pytest.raises(StepFailed, match="step 1 failed in phase output on rank 0: .*boom"):
        e.submit("a", plan={0: {"output_fails": "boom"}}).result()
    e.submit("a", plan={3: {"output_fails": "boom"}}).result()
    e.look()  # it is resolved
    with pytest.raises(StepFailed, match="step 2 failed in phase output on rank 3: .*boom"):
        e.submit("a").result()


@MODES
@pytest.mark.parametrize("rank, plan", [(0, "dies"), (1, "dies"), (0, "output_dies")])
def test_a_dead_worker_is_an_error_that_names_it(engine, mode, rank, plan):
    e = engine(workers=2, mode=mode)
    e.usable = False
    e.submit("a").result()
    with pytest.raises(StepFailed, match=f"step 2 failed in phase .*rank {rank} is dead"):
        e.submit("a", plan={rank: {plan: True}, "all": {"output_s": 0.3}}).result()


def test_a_worker_that_dies_while_another_one_computes_is_noticed(engine):
    e = engine(workers=2)
    e.usable = False
    future = e.submit("a", plan={0: {"output_s": 60}, 1: {"output_dies": True}})
    with pytest.raises(StepFailed, match="rank 1 is dead"):
        future.result()


@pytest.mark.parametrize("phase, plan, reason", [
    ("graph", {1: {"dispatch_s": 15}}, "rank 1.* is at step 1: did not dispatch step 2"),
    ("output", {0: {"output_s": 15}}, "rank 0.* (waits for its device|does not answer)"),
])
@MODES
def test_a_step_over_the_limit_names_phase_rank_and_knob(engine, mode, phase, plan, reason,
                                                         monkeypatch):
    e = engine(workers=2, mode=mode)
    e.usable = False
    e.submit("a").result()
    monkeypatch.setenv("RAY_CGRAPH_get_timeout", "3")
    monkeypatch.setattr(e.graph._graph, "_get_timeout", 3)  # Ray reads it when it compiles
    with pytest.raises(StepFailed, match=f"phase {phase}: {reason}.*RAY_CGRAPH_get_timeout"):
        e.submit("a", plan=plan).result()


def test_outputs_of_other_requests_are_refused(engine):
    e = engine()
    with pytest.raises(StepFailed, match="belongs to other requests"):
        e.submit("a", requests=["b"]).result()


def test_workers_out_of_step_are_refused(engine):
    e = engine(workers=2)
    e.steps._step = 5
    with pytest.raises(StepFailed, match="ran step 1 .*not in step with the driver"):
        e.submit("a").result()


@MODES
def test_effects_of_resolving_are_there_for_the_step_after_next(engine, mode):
    e = engine(workers=3, mode=mode)
    futures = [e.submit("a", needs_resolved=True), e.submit("a", needs_resolved=True)]
    for _ in range(20):
        futures.append(e.submit("a", needs_resolved=True))
        futures.pop(0).result()


class Aggregator:
    """Counts as vLLM's does: a request is received when every worker has said so."""

    def __init__(self, workers):
        self.left = {}
        self.workers = workers

    def aggregate(self, outputs, output_rank=0):
        done = set()
        for out in outputs:
            for request in out.kv_connector_output or ():
                self.left[request] = self.left.get(request, self.workers) - 1
                if self.left[request] == 0:
                    done.add(request)
        outputs[output_rank].kv_connector_output = done
        return outputs[output_rank]


@MODES
@pytest.mark.parametrize("runner", [None, UnknownRunner])
def test_a_request_is_received_when_every_host_has_reported(engine, mode, runner):
    options = {} if runner is None else {"runner": runner}
    e = engine(workers=4, mode=mode, reports=True, **options)
    aggregator, seen = Aggregator(4), []
    for step in range(4):
        future = e.submit("a", plan={step: {"report": ["r"]}}, aggregator=aggregator)
        seen.append(future.result())
    assert [out.kv_connector_output for out in seen] == [set(), set(), set(), {"r"}]
    assert all(out.rank == 0 for out in seen)
    assert all(w["kept"] == 0 for w in e.look())


@MODES
def test_forward_passes_are_sent_ahead_of_their_grammar(engine, mode):
    e, rng = engine(workers=2, mode=mode), random.Random(5)
    previous, waiting = None, []
    for step in range(1, 41):
        if rng.random() < 0.5:  # deferred, as vLLM does it: process the step before, then sample
            scheduled = Scheduled("a", "b")
            e.steps.begin(e.graph, scheduled)
            if previous is not None:
                waiting.append(previous.result())
            previous = e.steps.submit(e.graph, scheduled, f"grammar {step}")
        else:
            future = e.submit("a", "b", grammar=f"grammar {step}")
            if previous is not None:
                waiting.append(previous.result())
            previous = future
    waiting.append(previous.result())
    assert [(o.step, o.grammar, o.forwards) for o in waiting] == [
        (s, f"grammar {s}", s) for s in range(1, 41)]


def test_a_forward_pass_that_fails_is_told_with_its_step(engine):
    e = engine(workers=2)
    scheduled = Scheduled("a", plan={1: {"fails": "boom"}})
    e.steps.begin(e.graph, scheduled)
    with pytest.raises(StepFailed, match="step 1 failed in phase graph on rank 1.*boom"):
        e.steps.submit(e.graph, scheduled, None).result()


def test_without_a_way_to_the_driver_outputs_come_by_actor_calls_and_it_says_so(
        engine, monkeypatch, caplog):
    from vllm_tpu_async_patch.channel import driver

    class Elsewhere(driver.Listener):
        def __init__(self):
            super().__init__()
            self.path += "-on-another-machine"

    monkeypatch.setattr(driver, "Listener", Elsewhere)
    with caplog.at_level("WARNING", logger="vllm.vllm_tpu_async_patch"):
        e = engine(mode="auto")
        assert [e.submit("a").result().step for _ in range(3)] == [1, 2, 3]
    told = [r.getMessage() for r in caplog.records if "actor calls" in r.getMessage()]
    assert len(told) == 1 and "rank 0 cannot reach the driver's socket" in told[0]
    with pytest.raises(StepFailed, match="VLLM_TPU_ASYNC_PATCH_CHANNEL=local"):
        engine(mode="local")
    assert not own_sockets()


@MODES
def test_many_steps_with_drops_and_failures_leave_nothing(engine, mode):
    e, rng = engine(workers=2, mode=mode), random.Random(1)
    in_flight, failed = [], 0
    for step in range(int(os.environ.get("SOAK_STEPS", "1500"))):
        plan = {0: {"output_fails": "boom"}} if rng.random() < 0.01 else {}
        future = e.submit(f"r{step}", plan={"all": {}, **plan})
        if rng.random() >= 0.05:
            in_flight.append(future)
        del future
        if len(in_flight) == 2:
            try:
                in_flight.pop(0).result()
            except StepFailed:
                failed += 1
        if step == 500:
            before = e.look()
        if e.steps.inbox is not None and step % 50 == 0:
            assert len(e.steps.inbox) <= 3
    for future in in_flight:
        future.exception()
    assert e.submit("last").result().req_ids == ["last"]
    after = e.look()
    assert failed > 0 and all(w["kept"] == 0 for w in after)
    for one, two in zip(before, after):
        assert two["resident"] - one["resident"] < 8 << 20
    assert e.steps.inbox is None or len(e.steps.inbox) == 0
    assert not e.graph._graph._result_buffer and not e.steps.unread
    assert not own_sockets()


def test_shutdown_with_steps_in_flight(engine):
    e = engine(workers=2)
    e.usable = False
    futures = [e.submit("a", output_s=30), e.submit("a", output_s=30)]
    with pytest.raises(concurrent.futures.TimeoutError):
        futures[0].result(timeout=0.2)
    e.steps.close()
    with pytest.raises(StepFailed, match="shut down"):
        futures[0].result()
    assert isinstance(SimpleNamespace(f=futures).f[1].exception(timeout=30), StepFailed)
