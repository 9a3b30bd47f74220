"""Who may schedule asynchronously: the platform's list and the executors' own answer."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import chain
from types import ModuleType
from typing import Any

from . import situation
from .gate import UPSTREAM_BACKENDS
from .record import ABSENT, Change, Patch, Unexpected, change, own_attribute
from .situation import ANSWER

HOOK = "executors_supports_async_scheduling"


def _add_classmethod(owner: str, name: str, make: Callable[[ModuleType], Callable[..., Any]]
                     ) -> dict[str, Callable[[ModuleType], Any]]:
    """Probe and apply of a patch that adds one class method which the release does not have."""

    def probe(module: ModuleType) -> None:
        if own_attribute(getattr(module, owner), name) is not ABSENT:
            raise Unexpected(f"{owner}.{name} exists already")

    def apply(module: ModuleType) -> list[Change]:
        cls, function = getattr(module, owner), make(module)
        function.__name__, function.__qualname__ = name, f"{cls.__qualname__}.{name}"
        return [change(cls, name, classmethod(function))]

    return {"probe": probe, "apply": apply}


def _platform_default(module: ModuleType) -> Callable[..., Any]:
    def hook(cls: type) -> tuple[Any, ...]:
        """Executor backends (names, classes, dotted names) that may schedule asynchronously."""
        return UPSTREAM_BACKENDS

    return hook


def _tpu_list(module: ModuleType) -> Callable[..., Any]:
    def hook(cls: type) -> tuple[Any, ...]:
        """Upstream's backends and, on Ray hosts, every name of the executor that will run.

        The gate is evaluated before this platform replaces the backend by its Ray executor
        class, so the answer is that of the class that will be put in place.
        """
        if not situation.ray_hosts():
            return UPSTREAM_BACKENDS
        executor = import_module(situation.TPU_EXECUTOR).RayDistributedExecutor
        # A host framework may have put a factory or a proxy there, which answers nothing.
        if not situation.executor_supports(executor) or not isinstance(executor, type):
            return UPSTREAM_BACKENDS
        names = ((cls, f"{cls.__module__}.{cls.__qualname__}") for cls in executor.__mro__[:2])
        return (*UPSTREAM_BACKENDS, "ray", *chain.from_iterable(names))

    return hook


def _constant(answer: bool) -> Callable[[ModuleType], Callable[..., Any]]:
    def make(module: ModuleType) -> Callable[..., Any]:
        def supports(cls: type) -> bool:
            """Whether the executor supports async scheduling."""
            return answer

        return supports

    return make


PLATFORM_HOOK = Patch(
    name="platform-hook",
    modules=("vllm.platforms.interface",),
    target=f"vllm.platforms.interface.Platform.{HOOK}",
    why="a platform has no say in which executors may schedule asynchronously",
    how="adds the class method; its default is upstream's literal tuple",
    upstream="vLLM #29012 (closed; superseded by #36924, first in 0.18.0)",
    ends="vLLM 0.18.0",
    **_add_classmethod("Platform", HOOK, _platform_default),
)

TPU_WHITELIST = Patch(
    name="tpu-whitelist",
    modules=(situation.TPU_PLATFORM,),
    target=f"{situation.TPU_PLATFORM}.TpuPlatform.{HOOK}",
    why="with TPU_MULTIHOST_BACKEND=ray the platform puts its Ray executor in place of whatever "
    "was asked for, after the gate has judged the name that was asked for",
    how="overrides the hook: lists `ray`, the executor class and its dotted name when that class "
    "supports async scheduling",
    upstream="tpu-inference #1912 (first in 0.18.0)",
    ends="tpu-inference 0.18.0",
    relies_on=(f"{situation.TPU_PLATFORM}:TpuPlatform.check_and_update_config",),
    **_add_classmethod("TpuPlatform", HOOK, _tpu_list),
)


def _executor_answer(name: str, module: str, owner: str, answer: bool) -> Patch:
    return Patch(
        name=name,
        modules=(module,),
        target=f"{module}.{owner}.{ANSWER}",
        why="an executor cannot say whether it supports async scheduling",
        how=f"adds the class method, answering {answer}",
        upstream="vLLM #36924 (first in 0.18.0)",
        ends="vLLM 0.18.0",
        **_add_classmethod(owner, ANSWER, _constant(answer)),
    )


EXECUTOR_ANSWERS = (
    _executor_answer("executor-answer", "vllm.v1.executor.abstract", "Executor", False),
    _executor_answer("uniproc-answer", "vllm.v1.executor.uniproc_executor", "UniProcExecutor",
                     True),
    _executor_answer("multiproc-answer", "vllm.v1.executor.multiproc_executor",
                     "MultiprocExecutor", True),
)
