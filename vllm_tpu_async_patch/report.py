"""What became of each patch in this process, and how it is said."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

from typing import TYPE_CHECKING

from . import envs

if TYPE_CHECKING:
    from .compat import Verdict

#: Under vLLM's own root so that vLLM's handler shows it.
logger = logging.getLogger("vllm.vllm_tpu_async_patch")

WAITING = "waiting"        # its module is not imported (completely) yet
APPLIED = "applied"
NATIVE = "native"          # the release does this itself
NOT_NEEDED = "not needed"  # the release, or this process, does not have what it mends
DISABLED = "disabled"      # left out by the operator
REFUSED = "refused"        # this release is not to be patched
DRIFT = "drift"            # the target is not what the patch was written for
FAILED = "failed"          # an error of ours; the target is as it was
REMOVED = "removed"

_LEVELS = {DRIFT: logging.WARNING, FAILED: logging.ERROR}
_VERDICT_LEVELS = {"drift": logging.WARNING, "unknown": logging.WARNING,
                   "refuse": logging.WARNING}


@dataclass
class Record:
    """The state of one patch."""

    name: str
    target: str
    state: str = WAITING
    reason: str = ""

    def become(self, state: str, reason: str = "", quiet: bool = False) -> None:
        """Take a new state and say so where somebody would want to know.

        Args:
            state: one of this module's words.
            reason: why, for reports.
            quiet: the reason has been, or will be, said once for all patches.
        """
        self.state, self.reason = state, reason
        level = logging.DEBUG if quiet else _LEVELS.get(state, logging.DEBUG)
        say(f"{self.name}: {state}" + (f" ({reason})" if reason else ""), level)


def say(text: str, level: int) -> None:
    """One line to vLLM's log, or to stderr where that is not set up or would not show it."""
    text = f"[tpu-async-patch] {text}"
    if level > logging.DEBUG and logging.getLogger("vllm").handlers:
        logger.log(level, "%s", text)
    elif level > logging.DEBUG or envs.debug():
        print(text, file=sys.stderr)


_said: set[str] = set()


def say_once(text: str, level: int) -> None:
    """`say`, but the same text once in this process."""
    if text not in _said:
        _said.add(text)
        say(text, level)


def announce(verdict: Verdict) -> None:
    """Say what an operator should know about the verdict: once, and nothing where all is well."""
    level = _VERDICT_LEVELS.get(verdict.action, logging.WARNING if verdict.forced
                                else logging.DEBUG)
    say_once(f"{verdict.action}: {verdict.reason}", level)


def status() -> dict[str, object]:
    """Versions, the decision for them, and the state of every patch in this process."""
    from . import __version__, compat, hooks

    versions = compat.installed()
    verdict = compat.verdict()
    return {
        "version": __version__,
        "vllm": versions.vllm,
        "tpu_inference": versions.tpu_inference,
        "action": verdict.action,
        "reason": verdict.reason,
        "patches": [vars(record).copy() for record in hooks.records.values()],
    }
