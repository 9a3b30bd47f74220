"""Workers and engines for the tests; imported by name in the workers, too."""

from __future__ import annotations

import os
import threading
import time
from types import SimpleNamespace

import ray

from vllm_tpu_async_patch.bench.actors import BenchWorker
from vllm_tpu_async_patch.channel.worker import WorkerSteps
from vllm_tpu_async_patch.channel.driver import BytesGraph, DriverSteps


class Scheduled:
    """A SchedulerOutput; ``plan`` tells the stand-in runner what to do."""

    def __init__(self, *request_ids, plan=None, pending=False):
        self.num_scheduled_tokens = dict.fromkeys(request_ids, 1)
        self.total_num_scheduled_tokens = len(request_ids)
        self.pending_structured_output_tokens = pending
        self.plan = plan or {}


class Lazy:
    """Unpicklable until it is resolved, like an output that is still on a device."""

    def __init__(self, runner, output, plan):
        self.runner, self.output, self.plan = runner, output, plan
        self.handle = threading.Lock()

    def get_output(self):
        time.sleep(self.plan.get("output_s", 0))
        if self.plan.get("output_dies"):
            os.kill(os.getpid(), 9)
        if "output_fails" in self.plan:
            raise ValueError(self.plan["output_fails"])
        self.runner.resolved += 1
        return self.output


class Known(Lazy):
    """As tpu-inference's: holds the output that it will complete."""

    def __init__(self, runner, output, plan):
        super().__init__(runner, output, plan)
        self._model_runner_output = output


class Runner:
    """Does what the plan of a step says for its rank: ``{rank or "all": {...}}``."""

    lazy = Known

    def __init__(self, rank):
        self.rank, self.steps, self.resolved, self.forwards = rank, 0, 0, 0
        self.state = None

    def execute_model(self, scheduler_output, intermediate_tensors=None):
        assert self.state is None, "execute_model twice without sample_tokens"
        plan = {**scheduler_output.plan.get("all", {}), **scheduler_output.plan.get(self.rank, {})}
        time.sleep(plan.get("dispatch_s", 0))
        if plan.get("dies"):
            os.kill(os.getpid(), 9)
        if "fails" in plan:
            raise ValueError(plan["fails"])
        if plan.get("needs_resolved"):
            # The output of a step must be resolved before the step after next is dispatched.
            end = time.monotonic() + 30
            while self.resolved < self.steps - 1:
                assert time.monotonic() < end, "an earlier output was not resolved"
                time.sleep(0.001)
        self.forwards += 1
        self.state = (scheduler_output, plan)
        return None

    def sample_tokens(self, grammar_output):
        (scheduler_output, plan), self.state = self.state, None
        self.steps += 1
        requests = plan.get("requests", list(scheduler_output.num_scheduled_tokens))
        output = SimpleNamespace(
            req_ids=list(reversed(requests)), rank=self.rank, step=self.steps,
            grammar=grammar_output, forwards=self.forwards, data=b"x" * plan.get("bytes", 0),
            kv_connector_output=plan.get("report"))
        return self.lazy(self, output, plan)


class UnknownRunner(Runner):
    lazy = Lazy


class Worker(BenchWorker):
    """`BenchWorker` with a runner that follows plans."""

    def __init__(self, rank):
        super().__init__(rank, 0.0)

    def renew(self, runner=Runner, reports=False):
        """Begin again at step 1, in the same process."""
        self.runner = runner(self.rank)
        self.steps = WorkerSteps(self.rank, ships=self.rank == 0, reports=reports)

    def look(self):
        """What a test wants to know."""
        settled = self.steps.outbox.settle(10)
        with open("/proc/self/statm") as statm:
            resident = int(statm.read().split()[1]) * 4096
        return {"pid": os.getpid(), "resolved": self.runner.resolved, "resident": resident,
                "settled": settled, **self.step_outbox_sizes()}


class Engine:
    """The driver: workers, a compiled graph, `DriverSteps`."""

    def __init__(self, workers):
        from ray.dag import InputNode, MultiOutputNode

        actor = ray.remote(num_cpus=0)(Worker)
        self.workers = [actor.remote(rank) for rank in range(workers)]
        with InputNode() as step_input:
            nodes = [w.execute_model_ray.bind(step_input) for w in self.workers]
        self.graph = BytesGraph(MultiOutputNode(nodes).experimental_compile())
        self.steps = None
        self.usable = True  # False: a worker is dead, or an answer was not read

    def renew(self, mode, options):
        ray.get([w.renew.remote(**options) for w in self.workers])
        self.steps = DriverSteps(self.workers, mode)

    def submit(self, *request_ids, grammar=None, aggregator=None, **plan):
        plan = plan.get("plan") or {"all": plan}
        return self.steps.submit(self.graph, Scheduled(*request_ids, plan=plan), grammar,
                                 aggregator)

    def look(self):
        return ray.get([w.execute_method.remote("look") for w in self.workers])

    def stop(self):
        self.graph.teardown(kill_actors=True)
