"""Tickets, checksums and the worker's half, without Ray and without vLLM."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from vllm_tpu_async_patch.channel.ticket import (LATER, Report, checksum, decode, encode,
                                                 scheduled_requests)
from vllm_tpu_async_patch.channel.worker import WorkerSteps

pytestmark = pytest.mark.unit


def scheduled(*ids):
    return SimpleNamespace(num_scheduled_tokens={i: 1 for i in ids})


class Runner:
    def __init__(self, output="output", first=None, error=None):
        self.output, self.first, self.error, self.calls = output, first, error, []

    def execute_model(self, scheduler_output, intermediate_tensors):
        self.calls.append("forward")
        if self.error is not None:
            raise self.error
        return self.first

    def sample_tokens(self, grammar_output):
        self.calls.append(grammar_output)
        return self.output


def test_a_checksum_depends_on_step_and_requests_and_not_on_order_or_process():
    here = checksum(7, ["a", "b"])
    assert here == checksum(7, ["b", "a"]) != checksum(8, ["a", "b"])
    assert here != checksum(7, ["ab"])
    assert checksum(7, None) is None and checksum(7, []) is not None
    code = "from vllm_tpu_async_patch.channel.ticket import checksum; print(checksum(7, ['a', 'b']))"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(there.stdout) == here


def test_requests_are_unknown_rather_than_wrong():
    assert set(scheduled_requests(scheduled("a"))) == {"a"}
    assert scheduled_requests(SimpleNamespace()) is None


def test_what_pickle_cannot_do_goes_through_cloudpickle():
    pytest.importorskip("cloudpickle")
    assert decode(encode(lambda: 5))() == 5


def test_tickets_count_per_call_and_answer_in_kind():
    steps = WorkerSteps(3, ships=False)
    first = steps.run(Runner(), (scheduled("a"), None))
    second = decode(steps.run(Runner(), encode((scheduled("b"), None))))
    assert (first.step, first.rank, first.checksum) == (1, 3, checksum(1, ["a"]))
    assert (second.step, second.checksum) == (2, checksum(2, ["b"]))


def test_forward_now_and_sampling_later_are_one_step():
    steps, runner = WorkerSteps(0, ships=True), Runner()
    begun = steps.run(runner, (scheduled("a"), LATER))
    assert runner.calls == ["forward"] and begun.failure is None
    sampled = steps.run(runner, (None, "grammar"))
    assert runner.calls == ["forward", "grammar"]
    assert begun.step == sampled.step == 1 and begun.checksum == sampled.checksum
    assert steps.take(1) == "output"


def test_an_output_of_the_forward_pass_alone_is_not_sampled():
    steps, runner = WorkerSteps(0, ships=True), Runner(first="nothing to sample")
    steps.run(runner, (scheduled("a"), LATER))
    steps.run(runner, (None, None))
    assert runner.calls == ["forward"] and steps.take(1) == "nothing to sample"


def test_sampling_without_forward_pass_is_refused():
    ticket = WorkerSteps(2, ships=False).run(Runner(), (None, "grammar"))
    assert "step 1 failed in phase graph on rank 2" in ticket.failure
    assert "without a forward pass" in ticket.failure


@pytest.mark.parametrize("halves", [False, True])
def test_a_failing_dispatch_is_an_answer_that_names_step_phase_and_rank(halves):
    steps = WorkerSteps(0, ships=True, node="host-a")
    runner = Runner(error=ValueError("boom"))
    if halves:
        ticket = steps.run(runner, (scheduled("a"), LATER))
        steps.run(runner, (None, None))
    else:
        ticket = steps.run(runner, (scheduled("a"), None))
    assert "step 1 failed in phase graph on rank 0 (node host-a): ValueError('boom')" in (
        ticket.failure)
    assert "in execute_model" in ticket.failure  # the traceback
    assert steps.outbox.settle(30) and steps.outbox.sizes()["kept"] == 1
    assert steps.run(Runner(), (scheduled("a"), None)).step == 2  # still in step


def test_a_lost_output_of_another_rank_is_told_with_the_next_step():
    class Bad:
        def get_output(self):
            raise ValueError("boom")

    steps = WorkerSteps(3, ships=False)
    assert steps.run(Runner(Bad()), (scheduled("a"), None)).failure is None
    assert steps.outbox.settle(30)
    ticket = steps.run(Runner(), (scheduled("a"), None))
    assert ticket.failure == "step 1 failed in phase output on rank 3: ValueError('boom')"


class Lazy:
    def __init__(self, output, inner=None):
        self.output = output
        if inner is not None:
            self._model_runner_output = inner

    def get_output(self):
        return self.output


def test_the_report_of_a_host_is_in_its_ticket():
    plain = SimpleNamespace(kv_connector_output="report")
    for output in (plain, Lazy(plain, inner=plain)):
        steps = WorkerSteps(1, ships=False, reports=True)
        assert steps.run(Runner(output), (scheduled("a"), None)).report == "report"
        assert steps.outbox.settle(30) and steps.outbox.sizes()["kept"] == 0


def test_a_lazy_output_of_an_unknown_class_is_resolved_for_its_report():
    steps = WorkerSteps(1, ships=False, reports=True)
    output = Lazy(SimpleNamespace(kv_connector_output="late report"))
    assert steps.run(Runner(output), (scheduled("a"), None)).report is Report.IN_OUTPUT
    assert steps.take_report(1) == "late report"
    assert steps.outbox.sizes()["kept"] == 0
