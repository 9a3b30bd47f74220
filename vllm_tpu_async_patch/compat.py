"""Which release gets what: the decision for a pair of versions and the facts found there.

The version is only a key: the row of `releases.ROWS` says what that release looks like, and what
is found must agree with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from . import reasons
from .releases import (BACKPORT, BACKPORTED, NATIVE, REFUSE, REPAIR, ROWS, STAND_ASIDE, Row)

#: Verdicts that are no row's: what is installed disagrees with its row, or has none.
DRIFT = "drift"
UNKNOWN = "unknown"

DISTRIBUTIONS = ("vllm-tpu", "vllm")


@dataclass(frozen=True)
class Versions:
    """Installed versions as their distributions state them; None where there is none."""

    vllm: str | None
    tpu_inference: str | None
    distribution: str = ""


@dataclass(frozen=True)
class Drift:
    """The first fact in which an installation differs from its row."""

    fact: str
    expected: str
    found: str


@dataclass(frozen=True)
class Verdict:
    """What is done on this installation, and the reason in an operator's words.

    Attributes:
        action: one of the rows' actions, or `DRIFT`, or `UNKNOWN`.
        patches: names of the patch records to apply; empty means that nothing is touched.
        row: the row that was found, if any.
        drift: the fact that differs, if any.
        forced: whether the row was found by its facts, not by its version.
    """

    action: str
    reason: str
    patches: tuple[str, ...] = ()
    row: Row | None = None
    drift: Drift | None = None
    forced: bool = False


def base(version: str) -> str:
    """The release that a version string belongs to: ``0.13.2.post6+tpu`` -> ``0.13.2``."""
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version).base_version
    except InvalidVersion:
        return version


def row_of(versions: Versions) -> Row | None:
    """The row of an installed vLLM, or None."""
    return ROWS.get(base(versions.vllm)) if versions.vllm else None


def difference(row: Row, facts: Mapping[str, str]) -> Drift | None:
    """The first of the row's expectations that ``facts`` contradicts.  Not looked at: no drift."""
    for fact, expected in row.expected.items():
        found = facts.get(fact, expected)
        if found != expected:
            return Drift(fact, expected, found)
    return None


def decide(versions: Versions, facts: Mapping[str, str] | None = None,
           force: bool = False) -> Verdict:
    """The verdict for a pair of versions.  Pure: looks at nothing but its arguments.

    Args:
        versions: what is installed.
        facts: what was found there, by the names in `Row.expected`; None: nothing was looked at,
            the verdict is what the table expects.
        force: on a version that the table does not have, take the row with which every fact and
            body hash agrees.
    """
    if versions.vllm is None:
        return Verdict(STAND_ASIDE, reasons.NO_VLLM())
    row = row_of(versions)
    if row is not None and not row.patches:
        return Verdict(row.action, row.reason, row=row)
    if versions.tpu_inference is None:
        return Verdict(STAND_ASIDE, reasons.NO_TPU_INFERENCE(), row=row)
    if row is None:
        return _forced(versions, facts or {}) if force else Verdict(
            UNKNOWN, reasons.UNKNOWN(vllm=versions.vllm))
    if row.tpu_inference and base(versions.tpu_inference) != row.tpu_inference:
        drift = Drift("tpu-inference version", row.tpu_inference, versions.tpu_inference)
        return Verdict(DRIFT, reasons.PAIR(vllm=versions.vllm, expected=drift.expected,
                                           found=drift.found), row=row, drift=drift)
    found = difference(row, facts or {})
    if found is not None:
        return Verdict(DRIFT, reasons.DRIFT(row=row.vllm, **vars(found)), row=row, drift=found)
    return Verdict(row.action, row.reason, row.patches, row)


def _forced(versions: Versions, facts: Mapping[str, str]) -> Verdict:
    candidates = [row for row in reversed(ROWS.values()) if row.patches]
    # The row with the fewest differences is the one to name.
    def differences(row: Row) -> int:
        return sum(facts.get(fact) != expected for fact, expected in row.expected.items())

    nearest = min(candidates, key=differences)
    if differences(nearest) == 0:
        return Verdict(nearest.action, f"vLLM {versions.vllm} is unknown; forced, since every fact "
                       f"and body hash agrees with release {nearest.vllm}: {nearest.reason}",
                       nearest.patches, nearest, forced=True)
    fact, expected = next((f, e) for f, e in nearest.expected.items() if facts.get(f) != e)
    drift = Drift(fact, expected, facts.get(fact, "not looked at"))
    return Verdict(DRIFT, reasons.FORCED_DRIFT(vllm=versions.vllm, row=nearest.vllm, **vars(drift)),
                   row=nearest, drift=drift)


def expectations() -> tuple[str, ...]:
    """The name of every fact and body hash that any row has an expectation about."""
    return tuple(dict.fromkeys(fact for row in ROWS.values() for fact in row.expected))


@cache
def installed() -> Versions:
    """The versions on this interpreter's path, read from their metadata, importing nothing."""
    from importlib.metadata import PackageNotFoundError, version

    def of(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    for name in DISTRIBUTIONS:
        found = of(name)
        if found is not None:
            return Versions(found, of("tpu-inference"), name)
    return Versions(None, of("tpu-inference"))


@cache
def verdict() -> Verdict:
    """The verdict for this interpreter: versions, then the source text of both packages."""
    from . import envs, probe

    versions, force = installed(), envs.forced()
    row = row_of(versions)
    if row is None and not force:
        return decide(versions)
    names = tuple(row.expected) if row else expectations()
    return decide(versions, probe.installed_source().facts(names), force)


__all__ = ["BACKPORT", "BACKPORTED", "DRIFT", "NATIVE", "REFUSE", "REPAIR", "ROWS", "STAND_ASIDE", "UNKNOWN",
           "Drift", "Row", "Verdict", "Versions", "decide", "installed", "verdict"]
