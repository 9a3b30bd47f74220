"""Which release gets what: the table keyed by vLLM version, and the decision.

A release that is not in the table is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

BACKPORT = "backport"
STAND_ASIDE = "stand-aside"


@dataclass(frozen=True)
class Verdict:
    """What is done on this release, and the reason in an operator's words."""

    action: str
    reason: str

    @property
    def patches(self) -> bool:
        """Whether anything is to be patched at all."""
        return self.action == BACKPORT


@dataclass(frozen=True)
class Versions:
    """Installed versions as their distributions state them; None where there is none."""

    vllm: str | None
    tpu_inference: str | None


#: vLLM base version -> base version of the tpu-inference that it is released with.
BACKPORTED: dict[str, str] = {"0.12.0": "0.12.0", "0.13.2": "0.13.2", "0.13.3": "0.13.3"}


def _base(version: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).base_version
    except InvalidVersion:
        return version


def decide(versions: Versions) -> Verdict:
    """The verdict for a pair of versions.  Pure: looks at nothing but its argument."""
    if versions.vllm is None:
        return Verdict(STAND_ASIDE, "neither vllm-tpu nor vllm is installed")
    if versions.tpu_inference is None:
        return Verdict(STAND_ASIDE, "tpu-inference is not installed")
    if _base(versions.vllm) not in BACKPORTED:
        return Verdict(STAND_ASIDE, f"vLLM {versions.vllm} is not in the compatibility table "
                                    f"({', '.join(BACKPORTED)})")
    return Verdict(BACKPORT, f"vLLM {versions.vllm} has no async scheduling over Ray")


@cache
def installed() -> Versions:
    """The versions on this interpreter's path, read from their metadata, importing nothing."""
    from importlib.metadata import PackageNotFoundError, version

    def first(*names: str) -> str | None:
        for name in names:
            try:
                return version(name)
            except PackageNotFoundError:
                continue
        return None

    return Versions(first("vllm-tpu", "vllm"), first("tpu-inference"))
