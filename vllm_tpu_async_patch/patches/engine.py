"""What was asked for and what came of it: noted at the gate, said when the executor starts."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from .. import report
from .guards import GATE_MODULE, POST_INIT
from .record import Change, Patch, Unexpected, change

EXECUTOR_MODULE = "vllm.v1.executor.abstract"


def _note(module: ModuleType) -> list[Change]:
    config = module.VllmConfig
    original = vars(config)["__post_init__"]

    @functools.wraps(original)
    def __post_init__(self: Any, *args: Any, **kwargs: Any) -> None:
        report.note_request(self)
        original(self, *args, **kwargs)
        report.insist(self)

    return [change(config, "__post_init__", __post_init__)]


def _say(module: ModuleType) -> list[Change]:
    executor = module.Executor
    original = vars(executor)["__init__"]

    @functools.wraps(original)
    def __init__(self: Any, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        report.engine_starts(vllm_config, type(self))
        original(self, vllm_config, *args, **kwargs)

    return [change(executor, "__init__", __init__)]


def _probe_config(module: ModuleType) -> None:
    if "__post_init__" not in vars(module.VllmConfig):
        raise Unexpected("VllmConfig has no __post_init__")


def _probe_executor(module: ModuleType) -> None:
    if "__init__" not in vars(module.Executor):
        raise Unexpected("Executor has no __init__")


REQUEST = Patch(
    name="request",
    modules=(GATE_MODULE,),
    target=f"{GATE_MODULE}.VllmConfig.__post_init__",
    why="vLLM overwrites the requested async_scheduling with the effective one",
    how="remembers the request before the gate; with VLLM_TPU_ASYNC_PATCH=strict raises "
    "ValueError after it, where the patch is refused although async scheduling over Ray was "
    "wanted",
    upstream="none",
    ends="never",
    probe=_probe_config,
    apply=_note,
    relies_on=(POST_INIT,),
    watches=True,
)

ENGINE_LINE = Patch(
    name="engine-line",
    modules=(EXECUTOR_MODULE,),
    target=f"{EXECUTOR_MODULE}.Executor.__init__",
    why="nothing says whether async scheduling is on, and why not",
    how="one INFO line when the engine makes its executor; a warning where the scheduler class "
    "takes the overlap away",
    upstream="none",
    ends="never",
    probe=_probe_executor,
    apply=_say,
    relies_on=(f"{EXECUTOR_MODULE}:Executor.__init__",),
)
