"""KV connector with async scheduling: the reports of every host reach the scheduler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..channel.ticket import StepFailed
from ..future import StepFuture
from . import situation
from .ray_executor import expect_execute_dag
from .record import Change, Patch, change

_DAG = f"{situation.TPU_EXECUTOR}:RayDistributedExecutor._execute_dag"


def aggregator_of(executor: Any) -> Any:
    """The engine's KVOutputAggregator, to be asked for at every step; the engine sets it late.

    Raises:
        StepFailed: there is a KV connector and the engine has not set it.
    """
    if executor.kv_output_aggregator is None:
        raise StepFailed("a KV connector is configured but the engine has not set "
                         "kv_output_aggregator; reports of the other hosts would be lost")
    return executor.kv_output_aggregator


def _receive(refs: Any, workers: list[Any], aggregator: Any) -> Any:
    """The output of the first worker, carrying the reports of all.

    Mirrors ``AsyncResultFuture.result`` of tpu-inference 0.20.0
    (executors/ray_distributed_executor.py).
    """
    import ray

    outputs = [worker.execute_method.remote("get_execute_model_output", result_id)
               for worker, result_id in zip(workers, ray.get(refs))]
    return aggregator.aggregate(ray.get(outputs), output_rank=0)


def _probe(module: ModuleType) -> None:
    expect_execute_dag(module.RayDistributedExecutor)


def _with_reports(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _execute_dag(self: Any, scheduler_output: Any, grammar_output: Any,
                     non_block: bool = False) -> Any:
        if not (self.scheduler_config.async_scheduling and self.has_connector):
            return original(self, scheduler_output, grammar_output, non_block)
        aggregator = aggregator_of(self)
        if self.forward_dag is None:
            self.forward_dag = self._compiled_ray_dag(enable_asyncio=False)
        refs = self.forward_dag.execute((scheduler_output, grammar_output))
        future = StepFuture(functools.partial(_receive, refs, self.workers, aggregator))
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
