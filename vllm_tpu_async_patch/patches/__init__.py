"""Every patch, one module per patched subject.  `report` says what became of each."""

from __future__ import annotations

from .empty_step import EMPTY_STEP
from .engine import ENGINE_LINE, REQUEST
from .gate import GATE
from .guards import PP_GUARD, SPEC_GUARD
from .host_rank import HOST_RANK
from .kv_reports import KV_REPORTS
from .ray_executor import RAY_EXECUTOR
from .ray_name import RAY_NAME
from .record import Change, Patch
from .variables import VARIABLES
from .whitelist import EXECUTOR_ANSWERS, PLATFORM_HOOK, TPU_WHITELIST

#: In the order in which they are reported; each is applied when its own module is imported.
PATCHES: tuple[Patch, ...] = (
    VARIABLES, PLATFORM_HOOK, TPU_WHITELIST, *EXECUTOR_ANSWERS, GATE, RAY_EXECUTOR, HOST_RANK,
    RAY_NAME, KV_REPORTS, EMPTY_STEP, SPEC_GUARD, PP_GUARD, REQUEST, ENGINE_LINE)

__all__ = ["PATCHES", "Change", "Patch"]
