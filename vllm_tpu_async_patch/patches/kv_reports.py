"""KV connector with async scheduling: the reports of every host reach the scheduler."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from concurrent.futures import Future
from types import ModuleType
from typing import Any

from . import situation
from .record import Change, Patch, Unexpected, change

_DAG = f"{situation.TPU_EXECUTOR}:RayDistributedExecutor._execute_dag"


class ReportsFuture(Future):  # type: ignore[type-arg]
    """Result of one step with the KV reports of all workers aggregated.

    Like ``AsyncResultFuture`` of tpu-inference 0.20.0 (executors/ray_distributed_executor.py), but
    the result may be asked for any number of times.

    Args:
        refs: what the compiled graph gave: one result id per worker.
        workers: the workers, in the same order.
        aggregator: the engine's ``kv_output_aggregator``.
    """

    def __init__(self, refs: Any, workers: list[Any], aggregator: Any) -> None:
        super().__init__()
        self._refs = refs
        self._workers = workers
        self._aggregator = aggregator
        self._outputs: list[Any] | None = None

    def result(self, timeout: float | None = None) -> Any:
        """The output of the first worker, carrying the reports of all.

        Raises:
            ray.exceptions.GetTimeoutError: it was not there in time; nothing is consumed.
        """
        if not self.done():
            from ray.exceptions import GetTimeoutError

            try:
                self.set_result(self._receive(timeout))
            except GetTimeoutError:
                raise
            except Exception as error:
                self.set_exception(error)
        return super().result()

    def _receive(self, timeout: float | None) -> Any:
        import ray

        # The graph's refs can be read once; a later call goes on where a timeout came.
        if self._outputs is None:
            ids = ray.get(self._refs, timeout=timeout)
            self._outputs = [
                worker.execute_method.remote("get_execute_model_output", result_id)
                for worker, result_id in zip(self._workers, ids)]
        return self._aggregator.aggregate(ray.get(self._outputs, timeout=timeout), output_rank=0)


def _probe(module: ModuleType) -> None:
    parameters = list(inspect.signature(module.RayDistributedExecutor._execute_dag).parameters)
    if parameters != ["self", "scheduler_output", "grammar_output", "non_block"]:
        raise Unexpected(f"_execute_dag takes {parameters}")


def _with_reports(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _execute_dag(self: Any, scheduler_output: Any, grammar_output: Any,
                     non_block: bool = False) -> Any:
        if not (self.scheduler_config.async_scheduling and self.has_connector):
            return original(self, scheduler_output, grammar_output, non_block)
        if self.kv_output_aggregator is None:
            raise RuntimeError("a KV connector is configured but the engine has not set "
                               "kv_output_aggregator; reports of the other hosts would be lost")
        if self.forward_dag is None:
            self.forward_dag = self._compiled_ray_dag(enable_asyncio=False)
        refs = self.forward_dag.execute((scheduler_output, grammar_output))
        future = ReportsFuture(refs, self.workers, self.kv_output_aggregator)
        return future if non_block else future.result()

    return _execute_dag


def _apply(module: ModuleType) -> list[Change]:
    executor = module.RayDistributedExecutor
    return [change(executor, "_execute_dag", _with_reports(vars(executor)["_execute_dag"]))]


KV_REPORTS = Patch(
    name="kv-reports",
    modules=(situation.TPU_EXECUTOR,),
    target=f"{situation.TPU_EXECUTOR}.RayDistributedExecutor._execute_dag",
    why="0.18.0 asserts that there is no KV connector, after it has sent the step; 0.19.0 reads "
    "the first worker only, so a request starts, or its blocks are freed, while other hosts are "
    "still transferring",
    how="with a connector and async scheduling the step is sent as before and its future collects "
    "the outputs of all workers through the engine's aggregator",
    upstream="tpu-inference #2139 and #2341, commit 728d253b0 (first in 0.20.0)",
    ends="tpu-inference 0.20.0",
    probe=_probe,
    apply=_apply,
    relies_on=(
        _DAG,
        f"{situation.TPU_EXECUTOR}:RayWorkerWrapper.execute_model_ray",
        f"{situation.TPU_EXECUTOR}:RayWorkerWrapper.get_execute_model_output",
        "vllm.v1.executor.ray_executor:RayDistributedExecutor._compiled_ray_dag",
        "vllm.distributed.kv_transfer.kv_connector.utils:KVOutputAggregator.aggregate",
    ),
)
