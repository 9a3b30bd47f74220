"""The stand-in workers: one actor class that speaks every protocol which is compared."""

from __future__ import annotations

import threading
from typing import Any

from ..channel.worker import WorkerSteps
from .device import Device, Runner


class BenchWorker:
    """One host: a stand-in device, and `WorkerSteps` as the real worker wrapper uses it."""

    def __init__(self, rank: int, step_s: float) -> None:
        self.rank = rank
        self.device = Device(step_s)
        self.renew()

    def renew(self) -> None:
        """Begin again at step 1."""
        self.runner = Runner(self.device)
        self.steps = WorkerSteps(self.rank, ships=self.rank == 0)
        self._fetchable: dict[int, Any] = {}
        self._ids = 0

    # patched: what worker.TPUAsyncRayWorkerWrapper does
    def execute_model_ray(self, step_input: Any) -> Any:
        """`WorkerSteps.run` on the stand-in runner."""
        return self.steps.run(self.runner, step_input)

    def execute_method(self, method: str, *args: Any) -> Any:
        """What vLLM's wrapper offers to the driver."""
        return getattr(self, method)(*args)

    def take_step_output(self, step: int, abandoned: Any = ()) -> Any:
        """See `WorkerSteps.take`."""
        return self.steps.take(step, abandoned)

    def take_step_report(self, step: int) -> Any:
        """See `WorkerSteps.take_report`."""
        return self.steps.take_report(step)

    def open_result_channel(self, path: str, token: bytes) -> str | None:
        """See `WorkerSteps.open_channel`."""
        return self.steps.open_channel(path, token)

    def step_outbox_sizes(self) -> dict[str, Any]:
        """See `Outbox.sizes`."""
        return {**self.steps.outbox.sizes(), "where": self.steps.where}

    # sync, stock-async: vLLM 0.12 to 0.17, the worker waits inside the graph
    def wait_in_graph(self, step_input: tuple[Any, Any]) -> Any:
        """Run a step and wait for the device."""
        return self._dispatch(step_input).get_output()

    # fetch: tpu-inference 0.18.0, ids through the graph, one actor call per worker
    def keep(self, step_input: tuple[Any, Any]) -> int:
        """Run a step, keep its output, answer with an id."""
        self._ids += 1
        self._fetchable[self._ids] = self._dispatch(step_input)
        return self._ids

    def fetch(self, result_id: int) -> Any:
        """The output of an id."""
        return self._fetchable.pop(result_id).get_output()

    # mq: vLLM's MultiprocExecutor and RayExecutorV2, a shared-memory queue each way
    def start_queue(self, handle: Any) -> Any:
        """Serve steps that come over a MessageQueue; only the output rank answers with outputs."""
        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

        steps = MessageQueue.create_from_handle(handle, self.rank)
        answers = MessageQueue(1, 1) if self.rank == 0 else None
        threading.Thread(target=self._serve, args=(steps, answers), daemon=True).start()
        return answers.export_handle() if answers is not None else None

    def _serve(self, steps: Any, answers: Any) -> None:
        import queue

        steps.wait_until_ready()
        if answers is not None:
            answers.wait_until_ready()
        waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def resolve() -> None:
            while (lazy := waiting.get()) is not None:
                output = lazy.get_output()
                if answers is not None:
                    answers.enqueue(output)

        threading.Thread(target=resolve, daemon=True).start()
        while (step_input := steps.dequeue(indefinite=True)) is not None:
            waiting.put(self._dispatch(step_input))
        waiting.put(None)

    def _dispatch(self, step_input: tuple[Any, Any]) -> Any:
        scheduler_output, grammar_output = step_input
        self.runner.execute_model(scheduler_output)
        return self.runner.sample_tokens(grammar_output)

    def figures(self) -> dict[str, float]:
        """See `Device.figures`."""
        return self.device.figures()

    def reset(self) -> None:
        """See `Device.reset`."""
        self.device.reset()
