"""Our environment variables are made known to vLLM."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType

from .. import envs
from .record import Change, Patch, Unexpected, change


def _probe(module: ModuleType) -> None:
    if not isinstance(module.environment_variables, dict):
        raise Unexpected("vllm.envs.environment_variables is not a dictionary")


def _getter(variable: envs.Variable) -> Callable[[], str]:
    return lambda: os.environ.get(variable.name, variable.default)


def _apply(module: ModuleType) -> list[Change]:
    known = module.environment_variables
    return [change(known, variable.name, _getter(variable)) for variable in envs.VARIABLES
            if variable.name not in known]


VARIABLES = Patch(
    name="variables",
    modules=("vllm.envs",),
    target="vllm.envs.environment_variables",
    why="older releases copy only variables that they know to Ray workers, newer ones warn about, "
    "or refuse, VLLM_* names that they do not know",
    how="adds our variables to the dictionary",
    upstream="none",
    ends="never",
    probe=_probe,
    apply=_apply,
)
