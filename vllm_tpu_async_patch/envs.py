"""Every environment variable of the package, in one table."""

from __future__ import annotations

import os
from dataclasses import dataclass

from .doors import VARIABLE as PREFIX


@dataclass(frozen=True)
class Variable:
    """One variable: its name, default, accepted values and effect."""

    name: str
    default: str
    values: str
    effect: str


TOGGLE = Variable(
    PREFIX, "", "0, 1, strict",
    "1: vLLM's plugin entry points apply the patch. 0: off, also for an explicit import. Unset: "
    "only an explicit import applies it.")
DISABLE = Variable(
    f"{PREFIX}_DISABLE", "", "comma-separated patch names, or *",
    "leaves single patches out")
FORCE = Variable(
    f"{PREFIX}_FORCE", "0", "0, 1",
    "1: on a vLLM version that the table does not have, apply the row of the release with which "
    "every fact and body hash agrees")
DEBUG = Variable(
    f"{PREFIX}_DEBUG", "0", "0, 1",
    "writes what happens to each patch to stderr")
CHANNEL = Variable(
    f"{PREFIX}_CHANNEL", "auto", "auto, local, ray",
    "how outputs reach the engine. local: over a private socket, or fail. ray: by actor calls. "
    "auto: over a socket if the output rank runs on the engine's machine, else by actor calls")

VARIABLES: tuple[Variable, ...] = (TOGGLE, DISABLE, FORCE, CHANNEL, DEBUG)


def get(variable: Variable) -> str:
    """The variable's value, stripped, or its default."""
    return os.environ.get(variable.name, variable.default).strip()


def disabled(name: str) -> bool:
    """Whether the patch ``name`` is left out by the operator."""
    listed = {part.strip() for part in get(DISABLE).split(",")}
    return name in listed or "*" in listed


def strict() -> bool:
    """Whether a refusal that matters is to stop the start-up."""
    return get(TOGGLE).lower() == "strict"


def forced() -> bool:
    """Whether an unknown version may be patched where all facts agree."""
    return get(FORCE) == "1"


def debug() -> bool:
    """Whether the operator wants to see each decision on stderr."""
    return get(DEBUG) == "1"


def channel() -> str:
    """How outputs reach the engine.

    Raises:
        ValueError: the variable has none of the accepted values.
    """
    value = get(CHANNEL) or CHANNEL.default
    if value not in CHANNEL.values.split(", "):
        raise ValueError(f"{CHANNEL.name}={value}: expected one of {CHANNEL.values}")
    return value
