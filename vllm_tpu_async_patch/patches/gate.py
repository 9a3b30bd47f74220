"""vLLM's gate: which executor backends `VllmConfig.__post_init__` accepts for async scheduling."""

from __future__ import annotations

import inspect
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .record import Change, Patch, Unexpected, change

#: The literal in the gate's source, 0.12.0 to 0.17.1 (vllm/config/vllm.py, 0.13.3 line 536).
UPSTREAM_BACKENDS = ("mp", "uni", "external_launcher")


class AskPlatform(tuple[str, ...]):
    """Upstream's tuple of backends, but ``in`` asks the current platform's hook.

    The platform is asked at every check, not once: the same code object serves the process that
    builds the config, the engine core that validates it again, and the workers.
    """

    __slots__ = ()

    def __contains__(self, backend: object) -> bool:
        if tuple.__contains__(self, backend):
            return True
        from vllm.platforms import current_platform

        return backend in current_platform.executors_supports_async_scheduling()


def _post_init(module: ModuleType) -> FunctionType:
    # Ours and other tools' wrappers are looked through: the constant is in vLLM's own function.
    function = inspect.unwrap(vars(module.VllmConfig).get("__post_init__"))
    if not isinstance(function, FunctionType):
        raise Unexpected(f"VllmConfig.__post_init__ is {function!r}, not a plain function")
    return function


def _probe(module: ModuleType) -> None:
    constants = _post_init(module).__code__.co_consts
    found = [c for c in constants if isinstance(c, tuple) and c == UPSTREAM_BACKENDS]
    if len(found) != 1:
        raise Unexpected(f"the backend tuple {UPSTREAM_BACKENDS} occurs {len(found)} times, not "
                         f"once, in VllmConfig.__post_init__")


def _with_platform(code: CodeType) -> CodeType:
    constants: tuple[Any, ...] = tuple(
        AskPlatform(c) if isinstance(c, tuple) and c == UPSTREAM_BACKENDS else c
        for c in code.co_consts)
    return code.replace(co_consts=constants)


def _apply(module: ModuleType) -> list[Change]:
    function = _post_init(module)
    return [change(function, "__code__", _with_platform(function.__code__))]


GATE = Patch(
    name="gate",
    modules=("vllm.config.vllm",),
    target="vllm.config.vllm.VllmConfig.__post_init__",
    why="async scheduling is refused for every executor that is not in a literal tuple, the TPU "
    "platform's Ray executor included; the engine core checks a second time",
    how="the tuple, one constant of the function's code object, is replaced by a tuple that asks "
    "Platform.executors_supports_async_scheduling(); nothing else of the function changes",
    upstream="vLLM #36924 (first in 0.18.0), idea vLLM #29012",
    ends="vLLM 0.18.0",
    probe=_probe,
    apply=_apply,
    relies_on=("vllm.config.vllm:VllmConfig.__post_init__",),
)
