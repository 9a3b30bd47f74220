"""Every patch, one module per patched subject.  `report` says what became of each."""

from __future__ import annotations

from .gate import GATE
from .host_rank import HOST_RANK
from .ray_executor import RAY_EXECUTOR
from .record import Change, Patch
from .whitelist import EXECUTOR_ANSWERS, PLATFORM_HOOK, TPU_WHITELIST

#: In the order in which they are reported; each is applied when its own module is imported.
PATCHES: tuple[Patch, ...] = (PLATFORM_HOOK, TPU_WHITELIST, *EXECUTOR_ANSWERS, GATE, RAY_EXECUTOR,
                              HOST_RANK)

__all__ = ["PATCHES", "Change", "Patch"]
