"""What became of each patch in this process, and how it is said."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

from . import envs

#: Under vLLM's own root so that vLLM's handler shows it.
logger = logging.getLogger("vllm.vllm_tpu_async_patch")

WAITING = "waiting"        # its module is not imported (completely) yet
APPLIED = "applied"
DISABLED = "disabled"      # left out by the operator
REFUSED = "refused"        # this release is not to be patched
DRIFT = "drift"            # the target is not what the patch was written for
FAILED = "failed"          # an error of ours; the target is as it was
REMOVED = "removed"

_LEVELS = {DRIFT: logging.WARNING, FAILED: logging.ERROR}


@dataclass
class Record:
    """The state of one patch."""

    name: str
    target: str
    state: str = WAITING
    reason: str = ""

    def become(self, state: str, reason: str = "") -> None:
        """Take a new state and say so where somebody would want to know."""
        self.state, self.reason = state, reason
        text = f"[tpu-async-patch] {self.name}: {state}" + (f" ({reason})" if reason else "")
        level = _LEVELS.get(state, logging.DEBUG)
        if level > logging.DEBUG and logging.getLogger("vllm").handlers:
            logger.log(level, "%s", text)
        elif level > logging.DEBUG or envs.debug():
            # vLLM's logging is not set up yet, or shows no DEBUG lines.
            print(text, file=sys.stderr)


def status() -> dict[str, object]:
    """Versions, the decision for them, and the state of every patch in this process."""
    from . import __version__, compat, hooks

    versions = compat.installed()
    verdict = compat.decide(versions)
    return {
        "version": __version__,
        "vllm": versions.vllm,
        "tpu_inference": versions.tpu_inference,
        "action": verdict.action,
        "reason": verdict.reason,
        "patches": [vars(record).copy() for record in hooks.records.values()],
    }
