"""Several hosts, one pipeline stage: every worker is rank 0."""

from __future__ import annotations

import functools
import inspect
from types import FunctionType, ModuleType
from typing import Any

from .record import Change, Patch, Unexpected, change


def _probe(module: ModuleType) -> None:
    init = vars(module.TPUWorker).get("__init__")
    if not isinstance(init, FunctionType):
        raise Unexpected(f"TPUWorker.__init__ is {init!r}, not a plain function")
    parameters = list(inspect.signature(init).parameters)[:4]
    if parameters != ["self", "vllm_config", "local_rank", "rank"]:
        raise Unexpected(f"TPUWorker.__init__ takes {parameters} first")


def _apply(module: ModuleType) -> list[Change]:
    worker = module.TPUWorker
    init = vars(worker)["__init__"]
    signature = inspect.signature(init)

    # Not a wrapt proxy: this one is pickled by name, as the original is.
    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        parallel = bound.arguments["vllm_config"].parallel_config
        over_ray = getattr(parallel.distributed_executor_backend, "uses_ray", False)
        if parallel.pipeline_parallel_size == 1 and over_ray:
            bound.arguments["rank"] = 0
        init(*bound.args, **bound.kwargs)

    return [change(worker, "__init__", __init__)]


HOST_RANK = Patch(
    name="host-rank",
    modules=("tpu_inference.worker.tpu_worker",),
    target="tpu_inference.worker.tpu_worker.TPUWorker.__init__",
    why="over several hosts each worker takes its own rank for its pipeline stage, so models on "
    "host 1 and later believe they are a later stage and fail an assertion",
    how="the constructor receives rank 0 when there is one pipeline stage and the executor is a "
    "Ray executor",
    upstream="tpu-inference #1514 (in 0.18.0: executors/ray_distributed_executor.py, kwargs['rank'])",
    ends="tpu-inference 0.18.0",
    probe=_probe,
    apply=_apply,
    relies_on=("tpu_inference.worker.tpu_worker:TPUWorker.__init__",),
)
