"""The executor that the TPU platform puts in place, and the worker wrapper that it starts."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType

from .record import Change, NotYet, Patch, Unexpected, change
from .situation import TPU_EXECUTOR as STOCK

RUNTIME = "vllm_tpu_async_patch.executor"


def expect_execute_dag(executor: type) -> None:
    """Check the one seam of vLLM's Ray executors that is patched.

    Raises:
        Unexpected: it takes other parameters than in 0.12 to 0.32.
    """
    parameters = list(inspect.signature(executor._execute_dag).parameters)  # type: ignore[attr-defined]
    if parameters != ["self", "scheduler_output", "grammar_output", "non_block"]:
        raise Unexpected(f"_execute_dag takes {parameters}")


def _probe(module: ModuleType) -> None:
    executor = module.RayDistributedExecutor
    if hasattr(module, "AsyncResultFuture") or "_execute_dag" in vars(executor):
        raise Unexpected("the executor has an async path of its own")
    if "RayWorkerWrapper" not in executor._init_workers_ray.__code__.co_names:
        raise Unexpected("_init_workers_ray does not start the module's RayWorkerWrapper")
    expect_execute_dag(executor)
    if not hasattr(module.RayWorkerWrapper, "execute_model_ray"):
        raise Unexpected("RayWorkerWrapper.execute_model_ray is missing")


def _apply(module: ModuleType) -> list[Change]:
    # Our classes derive from the stock ones, so their module imports this one.  Where a user
    # named our executor first, it is that import which brought us here, half done; the patch is
    # then applied when our module is complete (it is the second of `modules`).
    ours = sys.modules.get(RUNTIME)
    if ours is not None and not hasattr(ours, "TPUAsyncRayExecutor"):
        raise NotYet(RUNTIME)
    from .. import executor, worker

    return [change(module, "RayDistributedExecutor", executor.TPUAsyncRayExecutor),
            change(module, "RayWorkerWrapper", worker.TPUAsyncRayWorkerWrapper)]


def stock_executor(module: ModuleType) -> type:
    """tpu-inference's own executor class, whether or not the module's name is bound to ours."""
    executor: type = module.RayDistributedExecutor
    return executor if executor.__module__ == module.__name__ else executor.__mro__[1]


RAY_EXECUTOR = Patch(
    name="ray-executor",
    modules=(STOCK, RUNTIME),
    target=f"{STOCK}.RayDistributedExecutor and .RayWorkerWrapper",
    why="the worker waits for the device inside the compiled graph, so the next step's host work "
    "cannot overlap the device and it idles between steps",
    how="the module's two names are bound to subclasses: the graph returns a small ticket, the "
    "output stays on the worker until it is fetched; with async scheduling off both call their "
    "parent",
    upstream="tpu-inference #1912, commit 891ae0dc5 (first in 0.18.0)",
    ends="tpu-inference 0.18.0",
    probe=_probe,
    apply=_apply,
    relies_on=(
        f"{STOCK}:RayDistributedExecutor._init_executor",
        f"{STOCK}:RayDistributedExecutor._init_workers_ray",
        "vllm.v1.executor.ray_executor:RayDistributedExecutor.execute_model",
        "vllm.v1.executor.ray_executor:RayDistributedExecutor.sample_tokens",
        "vllm.v1.executor.ray_executor:RayDistributedExecutor._execute_dag",
        "vllm.v1.executor.ray_executor:RayDistributedExecutor._compiled_ray_dag",
        "vllm.v1.executor.ray_utils:RayWorkerWrapper.execute_model_ray",
        "vllm.distributed.kv_transfer.kv_connector.utils:KVOutputAggregator.aggregate",
        "tpu_inference.runner.tpu_runner:TPUModelRunner.execute_model",
        "tpu_inference.runner.tpu_runner:TPUModelRunner.sample_tokens",
    ),
)
