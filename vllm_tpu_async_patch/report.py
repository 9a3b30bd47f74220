"""What became of each patch in this process, and how it is said."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

from typing import TYPE_CHECKING, Any

from . import envs, reasons

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


def refusal() -> str | None:
    """Why the patch is not, or not wholly, in place on this installation; None where it is."""
    from . import compat, hooks

    for record in hooks.records.values():
        if record.state in (DRIFT, FAILED):
            return f"{record.name}: {record.reason}"
    verdict = compat.verdict()
    return None if verdict.patches else verdict.reason


_NOTE = "_tpu_async_patch_requested"
_WORDS = {True: "on", False: "off", None: "auto"}


def note_request(vllm_config: Any) -> None:
    """Remember, on the config itself, what was asked for before the gate changes it."""
    scheduler_config = vllm_config.scheduler_config
    # A config with an id has been through a gate without us, so what it says now is an outcome.
    if not hasattr(scheduler_config, _NOTE) and not getattr(vllm_config, "instance_id", ""):
        setattr(scheduler_config, _NOTE, scheduler_config.async_scheduling)


def requested(scheduler_config: Any) -> str:
    """What was asked for: on, off, auto; unknown where the config was made without us."""
    return _WORDS.get(getattr(scheduler_config, _NOTE, "unknown"), "unknown")


def insist(vllm_config: Any) -> None:
    """In strict mode: async scheduling over Ray was wanted, so the patch has to be in place.

    Raises:
        ValueError: it is not; the message has the reason.
    """
    from .patches import situation

    if not envs.strict() or requested(vllm_config.scheduler_config) not in ("on", "auto"):
        return
    why = refusal() if situation.over_ray() else None
    if why is not None:
        raise ValueError(f"{envs.TOGGLE.name}=strict: async scheduling over Ray was asked for, but "
                         f"the patch is not in place: {why}")


def explain(vllm_config: Any) -> str:
    """Why async scheduling is what it is for this config, in one sentence."""
    from . import compat
    from .patches import situation

    scheduler = vllm_config.scheduler_config
    if not situation.on_tpu():
        return reasons.NOT_TPU()
    if not situation.over_ray():
        return reasons.NOT_RAY()
    why = refusal()
    if why is not None or scheduler.async_scheduling:
        return why or compat.verdict().reason
    if requested(scheduler) == "unknown":
        return reasons.MADE_WITHOUT_US()
    if requested(scheduler) == "off":
        return reasons.NOT_REQUESTED()
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        return reasons.PIPELINE()
    if vllm_config.speculative_config is not None:
        return reasons.SPECULATION()
    return reasons.TURNED_OFF()


def engine_line(vllm_config: Any, executor: type) -> str:
    """The line that every engine on TPU gets at its start."""
    from . import __version__, compat

    versions, scheduler = compat.installed(), vllm_config.scheduler_config
    return (f"async scheduling: requested={requested(scheduler)} "
            f"effective={_WORDS[bool(scheduler.async_scheduling)]} "
            f"executor={executor.__module__}.{executor.__qualname__} "
            f"action={compat.verdict().action} reason={explain(vllm_config)!r} "
            f"patch={__version__} {versions.distribution}={versions.vllm} "
            f"tpu-inference={versions.tpu_inference}")


def engine_starts(vllm_config: Any, executor: type) -> None:
    """Called when an engine makes its executor: the line, and what would go wrong later.

    Raises:
        RuntimeError: strict mode, async scheduling was asked for and is not on.
    """
    from .patches import situation

    if not situation.on_tpu():
        return
    say(engine_line(vllm_config, executor), logging.INFO)
    scheduler = vllm_config.scheduler_config
    if not situation.over_ray():
        return
    if scheduler.async_scheduling:
        name = _without_overlap(scheduler)
        if name is not None:
            say(reasons.SCHEDULER(scheduler=name), logging.WARNING)
    elif requested(scheduler) == "unknown" and refusal() is None:
        say(reasons.MADE_WITHOUT_US(), logging.WARNING)
    elif envs.strict() and requested(scheduler) == "on":
        raise RuntimeError(f"{envs.TOGGLE.name}=strict: async scheduling was asked for and is not "
                           f"on: {explain(vllm_config)}")


def _without_overlap(scheduler_config: Any) -> str | None:
    """Name of a scheduler class that cannot plan a step ahead; None where all is well."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler

    # tpu-inference's data-parallel scheduler runs another one inside.
    cls = getattr(scheduler_config, "_original_scheduler_cls", scheduler_config.scheduler_cls)
    if isinstance(cls, str):
        from importlib import import_module

        module, _, name = cls.rpartition(".")
        cls = getattr(import_module(module), name)
    if cls is None or (isinstance(cls, type) and issubclass(cls, AsyncScheduler)):
        return None
    return f"{getattr(cls, '__module__', '')}.{getattr(cls, '__qualname__', cls)}"


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
