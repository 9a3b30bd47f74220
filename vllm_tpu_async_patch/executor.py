"""The driver half: tpu-inference's Ray executor with an asynchronous step."""

from __future__ import annotations

import os
from typing import Any

import tpu_inference.executors.ray_distributed_executor as stock

from . import doors, envs, notes
from .channel.driver import BytesGraph, DriverSteps
from .patches.kv_reports import aggregator_of
from .patches.ray_executor import stock_executor


class TPUAsyncRayExecutor(stock_executor(stock)):  # type: ignore[misc]
    """tpu-inference's Ray executor, two batches in flight without a gap on the device.

    Mirrors ``RayDistributedExecutor._execute_dag`` and ``AsyncResultFuture`` of tpu-inference
    0.18.0 (executors/ray_distributed_executor.py).  With async scheduling off it does what its
    parent does.
    """

    _steps: DriverSteps | None = None

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """True: vLLM may schedule a step while the one before it runs."""
        return True

    def _init_executor(self) -> None:
        envs.channel()  # a wrong value fails here, before weights are loaded
        if doors.switched_off():
            raise RuntimeError(
                f"{envs.TOGGLE.name}=0 in the engine's process ({os.getpid()}), but the process that "
                f"made its configuration was patched; set the same value for both")
        super()._init_executor()
        if self.scheduler_config.async_scheduling:
            self._driver_steps()

    def _init_workers_ray(self, placement_group: Any, **ray_remote_kwargs: Any) -> None:
        try:
            super()._init_workers_ray(placement_group, **ray_remote_kwargs)
        except Exception as error:
            explained = notes.explain(error, notes.survey)
            if explained is error:
                raise
            raise explained from error

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        """As the parent; before the workers are made their nodes are compared with this one.

        Raises:
            NotesDiffer: a node has other versions of what matters.
        """
        if method == "init_worker":
            notes.compare(notes.installation(), super().collective_rpc("installation_notes"))
        return super().collective_rpc(method, *args, **kwargs)

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """As the parent; but a forward pass whose sampling has to wait is sent at once.

        vLLM defers sampling until the step before is processed when the grammar needs its tokens
        (``pending_structured_output_tokens``, v1/engine/core.py 0.12 to 0.32).  The forward pass
        does not depend on them: tpu-inference takes them from the device.
        """
        answer = super().execute_model(scheduler_output, non_block)
        if (self.scheduler_output is scheduler_output
                and self.scheduler_config.async_scheduling
                and getattr(scheduler_output, "pending_structured_output_tokens", False)):
            self._driver_steps().begin(self._graph(), scheduler_output)
        return answer

    def shutdown(self) -> None:
        """As the parent; futures in flight fail."""
        if self._steps is not None:
            self._steps.close()
        super().shutdown()

    def _execute_dag(self, scheduler_output: Any, grammar_output: Any,
                     non_block: bool = False) -> Any:
        if not self.scheduler_config.async_scheduling:
            return super()._execute_dag(scheduler_output, grammar_output, non_block)
        aggregator = aggregator_of(self) if self.has_connector else None
        future = self._driver_steps().submit(self._graph(), scheduler_output, grammar_output,
                                             aggregator)
        return future if non_block else future.result()

    def _compiled_ray_dag(self, enable_asyncio: bool) -> Any:
        graph = super()._compiled_ray_dag(enable_asyncio)
        return BytesGraph(graph) if self.scheduler_config.async_scheduling else graph

    def _graph(self) -> Any:
        if self.forward_dag is None:
            self.forward_dag = self._compiled_ray_dag(enable_asyncio=False)
        return self.forward_dag

    def _driver_steps(self) -> DriverSteps:
        if self._steps is None:
            self._steps = DriverSteps(self.pp_tp_workers[-1], envs.channel())
        return self._steps
