"""The executor and the worker wrapper on the real vLLM and tpu-inference, with a graph that the
test answers itself."""

from __future__ import annotations

import concurrent.futures
import sys
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.ray
pytest.importorskip("tpu_inference.executors.ray_distributed_executor")

import ray  # noqa: E402

from vllm_tpu_async_patch import executor as executor_module  # noqa: E402
from vllm_tpu_async_patch import worker as worker_module  # noqa: E402
from vllm_tpu_async_patch.channel import StepFailed  # noqa: E402

RAY_DAG_IMPORTED = "ray.dag" in sys.modules


class Answer:
    """Stands for an object reference; `ray.get` is replaced so that it reads these."""

    def __init__(self, read):
        self.read = read


class Runner:
    """A model runner: samples in two calls, as tpu-inference's does."""

    def __init__(self, output="output"):
        self.output, self.calls = output, []

    def execute_model(self, scheduler_output, intermediate_tensors):
        self.calls.append(("execute_model", scheduler_output))
        return None if scheduler_output.total_num_scheduled_tokens else self.output

    def sample_tokens(self, grammar_output):
        self.calls.append(("sample_tokens", grammar_output))
        return self.output


class Lazy:
    def __init__(self, output):
        self.output, self.calls = output, 0

    def get_output(self):
        self.calls += 1
        return self.output


def make_worker(rank=0, runner=None, async_scheduling=True, connector=None):
    wrapper = worker_module.TPUAsyncRayWorkerWrapper.__new__(worker_module.TPUAsyncRayWorkerWrapper)
    wrapper.rpc_rank = rank
    wrapper.vllm_config = SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=async_scheduling),
        kv_transfer_config=connector)
    wrapper.worker = SimpleNamespace(model_runner=runner or Runner())
    wrapper.compiled_dag_cuda_device_set = True
    wrapper._steps = None
    return wrapper


class Actor:
    """The handle of a worker: `execute_method.remote` answers with what the worker returns."""

    def __init__(self, wrapper):
        self.wrapper, self.calls = wrapper, []
        self.execute_method = SimpleNamespace(remote=self._call)

    def _call(self, method, *args):
        self.calls.append(method)
        return Answer(lambda: getattr(self.wrapper, method)(*args))


class Graph:
    """A compiled graph over workers in this process."""

    def __init__(self, actors):
        self.actors, self.inputs = actors, []

    def execute(self, step_input):
        self.inputs.append(step_input)
        tickets = [actor.wrapper.execute_model_ray(step_input) for actor in self.actors]
        return [Answer(lambda t=t: t) for t in tickets]


@pytest.fixture
def make(monkeypatch):
    def get(refs, timeout=None):
        return [r.read() for r in refs] if isinstance(refs, list) else refs.read()

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setenv("VLLM_TPU_ASYNC_PATCH_CHANNEL", "ray")

    def make_executor(*workers, connector=False, async_scheduling=True):
        ours = executor_module.TPUAsyncRayExecutor.__new__(executor_module.TPUAsyncRayExecutor)
        actors = [Actor(w) for w in workers]
        ours.scheduler_config = SimpleNamespace(async_scheduling=async_scheduling)
        ours.parallel_config = SimpleNamespace(pipeline_parallel_size=1)
        ours.workers, ours.pp_tp_workers = actors, [actors]
        ours.has_connector, ours.kv_output_aggregator = connector, None
        ours.uses_sampler, ours.scheduler_output = True, None
        ours.forward_dag = Graph(actors)
        monkeypatch.setattr(type(ours), "shutdown", lambda self: None)
        return ours

    return make_executor


def scheduled(*request_ids, pending=False):
    return SimpleNamespace(
        total_num_scheduled_tokens=len(request_ids),
        num_scheduled_tokens={r: 1 for r in request_ids},
        pending_structured_output_tokens=pending)


def output(*request_ids, kv=None):
    return SimpleNamespace(req_ids=list(request_ids), kv_connector_output=kv)


def test_the_graph_gets_scheduler_output_and_grammar_output(make):
    ours, so = make(make_worker()), scheduled()
    ours._execute_dag(so, "grammar", non_block=True)
    assert ours.forward_dag.inputs == [(so, "grammar")]


def test_the_future_fetches_from_the_output_worker_only(make):
    expected = output("a")
    workers = [make_worker(0, Runner(expected)), make_worker(1, Runner("other"))]
    ours = make(*workers)
    future = ours._execute_dag(scheduled("a"), None, non_block=True)
    assert isinstance(future, concurrent.futures.Future)
    assert future.result() is future.result() is expected
    assert [a.calls.count("take_step_output") for a in ours.workers] == [1, 0]


def test_without_non_block_the_output_itself_is_returned(make):
    expected = output("a")
    assert make(make_worker(0, Runner(expected)))._execute_dag(scheduled("a"), None) is expected


def test_async_off_calls_the_parent(make, monkeypatch):
    ours, so = make(make_worker(), async_scheduling=False), scheduled("a")
    monkeypatch.setattr(executor_module.TPUAsyncRayExecutor.__mro__[1], "_execute_dag",
                        lambda self, *args: ("parent", *args))
    assert ours._execute_dag(so, "grammar", True) == ("parent", so, "grammar", True)
    wrapper = make_worker(async_scheduling=False)
    monkeypatch.setattr(worker_module.TPUAsyncRayWorkerWrapper.__mro__[1], "execute_model_ray",
                        lambda self, step_input: ("parent", step_input))
    assert wrapper.execute_model_ray((so, None)) == ("parent", (so, None))


def test_ids_increase_per_call_and_grammar_reaches_the_sampler():
    runner = Runner(output("a"))
    wrapper = make_worker(0, runner)
    tickets = [wrapper.execute_model_ray((scheduled("a"), f"grammar {i}")) for i in range(3)]
    assert [t.step for t in tickets] == [1, 2, 3]
    assert [c for c in runner.calls if c[0] == "sample_tokens"] == [
        ("sample_tokens", f"grammar {i}") for i in range(3)]


def test_a_step_without_tokens_is_not_sampled_and_has_an_output(make):
    runner = Runner(output())
    ours = make(make_worker(0, runner))
    assert ours.execute_model(scheduled(), non_block=True).result() is runner.output
    assert [name for name, _ in runner.calls] == ["execute_model"]


def test_get_output_is_called_once_on_every_worker(make):
    lazy = [Lazy(output("a")), Lazy(output("a"))]
    workers = [make_worker(rank, Runner(out)) for rank, out in enumerate(lazy)]
    ours = make(*workers)
    ours._execute_dag(scheduled("a"), None)
    ours._execute_dag(scheduled("a"), None)
    for wrapper in workers:
        sizes = wrapper.step_outbox_sizes()
        assert sizes["kept"] == 0 and sizes["steps"] == 2
    assert lazy[0].calls == 2  # one per step: both steps return the same object here


class Aggregator:
    def __init__(self):
        self.seen = []

    def aggregate(self, outputs, output_rank=0):
        self.seen.append([o.kv_connector_output for o in outputs])
        outputs[output_rank].kv_connector_output = "all hosts"
        return outputs[output_rank]


def test_reports_of_all_workers_go_through_the_aggregator_read_at_dispatch(make):
    workers = [make_worker(r, Runner(Lazy(output("a", kv=f"host {r}"))), connector=object())
               for r in range(3)]
    ours = make(*workers, connector=True)
    ours.kv_output_aggregator = aggregator = Aggregator()
    future = ours._execute_dag(scheduled("a"), None, non_block=True)
    ours.kv_output_aggregator = None  # too late to matter for this step
    assert future.result().kv_connector_output == "all hosts"
    assert future.result().req_ids == ["a"]
    assert aggregator.seen == [["host 0", "host 1", "host 2"]]


def test_a_connector_without_aggregator_is_an_error_before_anything_is_sent(make):
    ours = make(make_worker(0, connector=object()), connector=True)
    with pytest.raises(StepFailed, match="kv_output_aggregator"):
        ours._execute_dag(scheduled("a"), None, non_block=True)
    assert not ours.forward_dag.inputs


def test_two_steps_without_sampling_are_refused_as_upstream_does(make):
    ours = make(make_worker())
    assert ours.execute_model(scheduled("a"), non_block=True).result() is None
    with pytest.raises(RuntimeError, match=r"State error: sample_tokens\(\) must be called"):
        ours.execute_model(scheduled("a"), non_block=True)


def test_the_executor_says_that_it_can():
    assert executor_module.TPUAsyncRayExecutor.supports_async_scheduling() is True


def test_ray_dag_is_not_imported_early():
    # Ray reads RAY_CGRAPH_get_timeout when ray.dag is imported, and vLLM sets it just before.
    assert not RAY_DAG_IMPORTED
