"""The backend name `ray` answers for the executor that the TPU platform puts in its place."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from ..reasons import V2_EXECUTOR
from . import situation
from .record import ABSENT, Change, Patch, Unexpected, change, own_attribute
from .situation import ANSWER

MODULE = "vllm.v1.executor.ray_executor"


def _probe(module: ModuleType) -> None:
    if own_attribute(module.RayDistributedExecutor, ANSWER) is not ABSENT:
        raise Unexpected(f"RayDistributedExecutor.{ANSWER} exists already")
    if not hasattr(module.RayDistributedExecutor, ANSWER):
        raise Unexpected(f"Executor.{ANSWER} is missing")


def _superfluous(module: ModuleType) -> str | None:
    from vllm import envs

    return V2_EXECUTOR() if getattr(envs, "VLLM_USE_RAY_V2_EXECUTOR_BACKEND", False) else None


def _apply(module: ModuleType) -> list[Change]:
    stock = module.RayDistributedExecutor

    def supports_async_scheduling(cls: type) -> bool:
        """Whether the executor that will run supports async scheduling."""
        # Subclasses get vLLM's answer: only this very class is what `ray` stands for at the gate.
        if cls is stock and situation.over_ray():
            placed = import_module(situation.TPU_EXECUTOR).RayDistributedExecutor
            return situation.executor_supports(placed)
        return bool(super(stock, cls).supports_async_scheduling())

    return [change(stock, ANSWER, classmethod(supports_async_scheduling))]


RAY_NAME = Patch(
    name="ray-name",
    modules=(MODULE,),
    target=f"{MODULE}.RayDistributedExecutor.{ANSWER}",
    why="the gate judges vLLM's own Ray executor where `ray` was asked for, or implied by a Ray "
    "placement group, although the TPU platform then puts its own executor in place: async "
    "scheduling is refused, or turned off without a word",
    how="adds the class method to vLLM's class: on TPU hosts over Ray it gives the answer of the "
    "executor that will be put in place; subclasses and other platforms get vLLM's answer",
    upstream="vLLM 0.21.0 makes RayExecutorV2 the default",
    ends="vLLM 0.21.0, unless VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0",
    probe=_probe,
    apply=_apply,
    relies_on=(
        "vllm.v1.executor.abstract:Executor.get_class",
        "vllm.v1.executor.abstract:Executor.supports_async_scheduling",
        f"{situation.TPU_PLATFORM}:TpuPlatform.check_and_update_config",
        f"{situation.TPU_EXECUTOR}:RayDistributedExecutor.supports_async_scheduling",
    ),
    superfluous=_superfluous,
)
