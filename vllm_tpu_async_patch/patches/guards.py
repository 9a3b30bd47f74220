"""Combinations that vLLM lets through and that fail on TPU hosts over Ray: refused in time."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from ..reasons import PIPELINE, SPECULATION, Reason
from . import situation
from .record import Change, Patch, change

GATE_MODULE = "vllm.config.vllm"
POST_INIT = f"{GATE_MODULE}:VllmConfig.__post_init__"

logger = logging.getLogger("vllm.vllm_tpu_async_patch")


def _guarded(original: Callable[..., None], affected: Callable[[Any], bool],
             reason: Reason) -> Callable[..., None]:
    @functools.wraps(original)
    def __post_init__(self: Any, *args: Any, **kwargs: Any) -> None:
        concerned = affected(self) and situation.over_ray()
        scheduler = self.scheduler_config
        if concerned and scheduler.async_scheduling is None:
            # Before the gate: what the scheduler class and the batch queue are chosen from.
            logger.warning("[tpu-async-patch] async scheduling is turned off: %s", reason())
            scheduler.async_scheduling = False
        original(self, *args, **kwargs)
        # After the gate: what vLLM refuses itself it refuses in its own words.
        if concerned and scheduler.async_scheduling:
            raise ValueError(f"{reason()}. {reason.cure}")

    return __post_init__


def _guard(name: str, affected: Callable[[Any], bool], reason: Reason, why: str, upstream: str,
           ends: str) -> Patch:
    def apply(module: ModuleType) -> list[Change]:
        config = module.VllmConfig
        wrapped = _guarded(vars(config)["__post_init__"], affected, reason)
        return [change(config, "__post_init__", wrapped)]

    return Patch(
        name=name,
        modules=(GATE_MODULE,),
        target=f"{GATE_MODULE}.VllmConfig.__post_init__",
        why=why,
        how="on TPU hosts over Ray: where async scheduling is left to vLLM it is turned off with a "
        "warning before the gate; where it was asked for a ValueError follows the gate",
        upstream=upstream,
        ends=ends,
        probe=lambda module: None,
        apply=apply,
        relies_on=(POST_INIT,),
    )


PP_GUARD = _guard(
    "pp-guard",
    lambda config: config.parallel_config.pipeline_parallel_size > 1,
    PIPELINE,
    why="the gate has no pipeline-parallel check, the worker asserts that it is the last stage, "
    "and without that assertion other stages would index tokens that the scheduler does not send",
    upstream="no fix; vLLM 0.30.0 turns the automatic choice off",
    ends="open (tpu-inference 0.32.0 still asserts)",
)

SPEC_GUARD = _guard(
    "spec-guard",
    lambda config: config.speculative_config is not None,
    SPECULATION,
    why="vLLM's gate lets EAGLE and MTP through, the TPU runner asserts at the second step",
    upstream="tpu-inference #2608 and #2757 (first in 0.21.0)",
    ends="tpu-inference 0.21.0",
)
