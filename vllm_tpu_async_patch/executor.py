"""The driver half: tpu-inference's Ray executor with an asynchronous step."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import ray
import tpu_inference.executors.ray_distributed_executor as stock

from .channel import StepFailed, StepTicket
from .future import StepFuture
from .patches.ray_executor import stock_executor


class TPUAsyncRayExecutor(stock_executor(stock)):  # type: ignore[misc]
    """tpu-inference's Ray executor, two batches in flight without a gap on the device.

    Mirrors ``RayDistributedExecutor._execute_dag`` and ``AsyncResultFuture`` of tpu-inference
    0.18.0 (executors/ray_distributed_executor.py).  With async scheduling off it does what its
    parent does.
    """

    #: The compiled graph is read by one thread at a time.
    _graph_lock = threading.Lock()
    _steps_sent = 0

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """True: vLLM may schedule a step while the one before it runs."""
        return True

    def _execute_dag(self, scheduler_output: Any, grammar_output: Any,
                     non_block: bool = False) -> Any:
        if not self.scheduler_config.async_scheduling:
            return super()._execute_dag(scheduler_output, grammar_output, non_block)
        aggregator = None
        if self.has_connector:
            # Read at every step: the engine sets it after the executor has been made.
            aggregator = self.kv_output_aggregator
            if aggregator is None:
                raise StepFailed("a KV connector is configured but the engine has not set "
                                 "kv_output_aggregator; reports of the other hosts would be lost")
        if self.forward_dag is None:
            self.forward_dag = self._compiled_ray_dag(enable_asyncio=False)
        refs = self.forward_dag.execute((scheduler_output, grammar_output))
        self._steps_sent += 1
        step = _StepInFlight(self._steps_sent, refs, self.pp_tp_workers[-1], aggregator,
                             self._graph_lock)
        future: Future[Any] = StepFuture(step.receive)
        return future if non_block else future.result()


class _StepInFlight:
    """Brings the output of one step back: tickets through the graph, then outputs."""

    def __init__(self, step: int, refs: list[Any], workers: list[Any], aggregator: Any,
                 graph_lock: threading.Lock) -> None:
        self.step = step
        self.refs = refs
        self.workers = workers
        self.aggregator = aggregator
        self.graph_lock = graph_lock

    def receive(self) -> Any:
        tickets = self._phase("graph", self._tickets)
        # Without a connector only the output rank's data is needed.  With one, each host's
        # report counts, or a request starts while another host is still pulling.
        holders = self.workers if self.aggregator is not None else self.workers[:1]
        outputs = self._phase("output", lambda: ray.get([
            worker.execute_method.remote("take_step_output", ticket.step)
            for worker, ticket in zip(holders, tickets)
        ]))
        if self.aggregator is None:
            return outputs[0]
        return self.aggregator.aggregate(outputs, output_rank=0)

    def _tickets(self) -> list[StepTicket]:
        refs, self.refs = self.refs, []
        with self.graph_lock:
            tickets: list[StepTicket] = ray.get(refs)
        wrong = [t for t in tickets if not isinstance(t, StepTicket) or t.step != self.step]
        if wrong:
            raise StepFailed(f"step {self.step}: the compiled graph returned {wrong[0]!r}; "
                             f"the workers are not in step with the driver")
        return tickets

    def _phase(self, phase: str, run: Any) -> Any:
        try:
            return run()
        except StepFailed:
            raise
        except Exception as error:
            raise StepFailed(f"step {self.step} failed in phase {phase}: {error}") from error
