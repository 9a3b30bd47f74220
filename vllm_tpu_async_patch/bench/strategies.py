"""Ways to run a step on several workers and to bring its output back."""

from __future__ import annotations

from typing import Any

import ray

from ..channel.driver import BytesGraph, DriverSteps
from .actors import BenchWorker


class Strategy:
    """One way.  ``depth`` steps may be in flight; ``send`` dispatches, ``receive`` waits."""

    name = ""
    depth = 2

    def __init__(self, workers: int, step_s: float) -> None:
        actor = ray.remote(num_cpus=0)(BenchWorker)
        self.workers = [actor.remote(rank, step_s) for rank in range(workers)]
        ray.get([w.figures.remote() for w in self.workers])
        self.start()

    def start(self) -> None:
        """Connect to the workers."""

    def send(self, step_input: tuple[Any, Any]) -> Any:
        """Dispatch a step."""
        raise NotImplementedError

    def receive(self, step: Any) -> Any:
        """Its output."""
        raise NotImplementedError

    def resume(self) -> None:
        """Begin a round."""

    def pause(self) -> None:
        """End a round: use no CPU until the next."""

    def stop(self) -> None:
        """End the workers."""
        for worker in self.workers:
            ray.kill(worker)

    def graph(self, method: str) -> Any:
        """A compiled graph that calls the method on every worker, as vLLM's does."""
        from ray.dag import InputNode, MultiOutputNode

        with InputNode() as step_input:
            nodes = [getattr(w, method).bind(step_input) for w in self.workers]
        return MultiOutputNode(nodes).experimental_compile()


class _Graph(Strategy):
    method = ""

    def resume(self) -> None:
        # The loops of an idle compiled graph use half a core per worker (Ray 2.60).
        ray.get([w.renew.remote() for w in self.workers])
        self.compiled = self.graph(self.method)

    def send(self, step_input: tuple[Any, Any]) -> Any:
        return self.compiled.execute(step_input)

    def receive(self, step: Any) -> Any:
        return step[0].get()

    def pause(self) -> None:
        self.compiled.teardown()


class Sync(_Graph):
    """Wait for every step before the next is scheduled."""

    name, method, depth = "sync", "wait_in_graph", 1


class StockAsync(_Graph):
    """vLLM-TPU 0.12 and 0.13 with async scheduling: two in flight, waiting inside the graph."""

    name, method = "stock-async", "wait_in_graph"


class Fetch(_Graph):
    """tpu-inference 0.18.0: ids through the graph, then one actor call per worker."""

    name, method = "fetch", "keep"

    def receive(self, step: Any) -> Any:
        ids = ray.get(step)
        refs = [w.fetch.remote(i) for w, i in zip(self.workers, ids)]
        return ray.get(refs[0])


class Patched(_Graph):
    """This package."""

    name, method, mode = "patched", "execute_model_ray", "local"

    def resume(self) -> None:
        super().resume()
        self.compiled = BytesGraph(self.compiled)
        self.steps = DriverSteps(self.workers, self.mode)

    def send(self, step_input: tuple[Any, Any]) -> Any:
        future = self.steps.submit(self.compiled, *step_input)
        future.done()  # as the engine does
        return future

    def receive(self, step: Any) -> Any:
        return step.result()

    def pause(self) -> None:
        self.steps.close()
        super().pause()


class PatchedByCalls(Patched):
    """This package where the output rank is on another machine."""

    name, mode = "patched-ray", "ray"


class MessageQueues(Strategy):
    """vLLM's MultiprocExecutor and its later RayExecutorV2: shared-memory queues both ways."""

    name = "mq"

    def start(self) -> None:
        # The first import of vLLM takes long; not in a round.
        self.resume()
        self.pause()

    def resume(self) -> None:
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

        self.steps = MessageQueue(len(self.workers), len(self.workers))
        handle = self.steps.export_handle()
        answers = ray.get([w.start_queue.remote(handle) for w in self.workers])[0]
        self.answers = MessageQueue.create_from_handle(answers, 0)
        self.steps.wait_until_ready()
        self.answers.wait_until_ready()

    def pause(self) -> None:
        self.steps.enqueue(None)  # a reader that waits would spin
        del self.steps, self.answers

    def send(self, step_input: tuple[Any, Any]) -> Any:
        self.steps.enqueue(step_input)

    def receive(self, step: Any) -> Any:
        return self.answers.dequeue()


STRATEGIES: dict[str, type[Strategy]] = {
    s.name: s for s in (Sync, StockAsync, Fetch, MessageQueues, Patched, PatchedByCalls)}
DEFAULT = ("sync", "stock-async", "fetch", "mq", "patched")
