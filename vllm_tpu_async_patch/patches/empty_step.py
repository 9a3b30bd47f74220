"""A step with nothing to compute: the previous step's tokens are not left behind."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from .record import Change, Patch, Unexpected, change

MODULE = "tpu_inference.runner.tpu_runner"


def _probe(module: ModuleType) -> None:
    if "_pre_async_results" in module.TPUModelRunner._execute_model.__code__.co_names:
        raise Unexpected("_execute_model clears the previous results itself")


def _clearing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def _execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        if (not scheduler_output.total_num_scheduled_tokens
                and self.scheduler_config.async_scheduling
                and self._pre_async_results is not None):
            # Before the step, not in it as upstream: the batch is still the one that the results
            # belong to, so a request that was preempted gets its last token, too.
            self._modify_prev_results()
            self._pre_async_results = None
        return original(self, scheduler_output, *args, **kwargs)

    return _execute_model


def _apply(module: ModuleType) -> list[Change]:
    runner = module.TPUModelRunner
    return [change(runner, "_execute_model", _clearing(vars(runner)["_execute_model"]))]


EMPTY_STEP = Patch(
    name="empty-step",
    modules=(MODULE,),
    target=f"{MODULE}.TPUModelRunner._execute_model",
    why="a step with zero scheduled tokens keeps the result of the step before it; a request that "
    "comes back later (resumed, or a new one with the same id) gets that step's token written "
    "into its prompt",
    how="on such a step the runner takes over the pending tokens, as it does on any other step, "
    "and forgets them",
    upstream="tpu-inference #3090 (first in 0.25.0)",
    ends="tpu-inference 0.25.0",
    probe=_probe,
    apply=_apply,
    relies_on=(f"{MODULE}:TPUModelRunner._execute_model",
               f"{MODULE}:TPUModelRunner._modify_prev_results"),
)
