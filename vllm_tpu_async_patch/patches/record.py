"""What a patch is: a record that people read and a pair of mirrored operations that run.

A patch changes attributes, and entries of dictionaries, only.  Each change remembers what was there, so that removing a patch
puts back the very object, and so that a change which another tool has overwritten since is left
alone and reported instead of being torn out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

#: Stands for an attribute that the owner itself did not have.
ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()


def own_attribute(owner: Any, name: str) -> Any:
    """The attribute as stored on ``owner`` itself (a classmethod stays one), or ABSENT.

    Of a dictionary, its entry.
    """
    if isinstance(owner, dict):
        return owner.get(name, ABSENT)
    if isinstance(owner, (type, ModuleType)):
        return vars(owner).get(name, ABSENT)
    return getattr(owner, name, ABSENT)


@dataclass(frozen=True)
class Change:
    """One attribute of one object, before and after."""

    owner: Any
    name: str
    before: Any
    after: Any

    def in_effect(self) -> bool:
        """Whether the object now carries exactly what this change put there."""
        return own_attribute(self.owner, self.name) is self.after

    def revert(self) -> None:
        """Put back what was there.

        Raises:
            RuntimeError: something else has replaced the attribute since.
        """
        if not self.in_effect():
            raise RuntimeError(
                f"{self} has been replaced by something else since; remove that first")
        _set(self.owner, self.name, self.before)

    def __str__(self) -> str:
        owner = getattr(self.owner, "__qualname__", None) or getattr(
            self.owner, "__name__", type(self.owner).__name__)
        return f"{owner}.{self.name}"


def change(owner: Any, name: str, after: Any) -> Change:
    """Set ``owner.name`` and return the record that undoes it."""
    before = own_attribute(owner, name)
    _set(owner, name, after)
    return Change(owner, name, before, after)


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        if value is ABSENT:
            del owner[name]
        else:
            owner[name] = value
    elif value is ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


class NotYet(Exception):
    """Raised by ``Patch.apply`` when a module it needs is still being imported."""


class Unexpected(Exception):
    """Raised by ``Patch.probe``: the target is not what this patch was written for."""


@dataclass(frozen=True)
class Patch:
    """One patched target.

    Attributes:
        name: the word used in reports and in ``VLLM_TPU_ASYNC_PATCH_DISABLE``.
        modules: leaf modules after whose import the patch can be applied; the first is the one
            that is patched.  Packages are never named here: they are half-imported when vLLM
            loads its plugins.
        target: what is changed, dotted.
        why: what goes wrong without it.
        how: the technique, in one sentence.
        upstream: where the behaviour comes from (pull request, first release).
        ends: when the patch is not needed any more.
        probe: looks at the imported module; raises Unexpected where it is not as expected.
        apply: makes the changes and returns them.
        relies_on: the upstream functions, ``module:qualified.name``, that are replaced or whose
            behaviour the patch counts on; the table has the hash of each one's body.
        watches: it changes no behaviour of vLLM's; applied in strict mode whatever the verdict.
        superfluous: a reason for which this process does not need the patch, or None.
    """

    name: str
    modules: tuple[str, ...]
    target: str
    why: str
    how: str
    upstream: str
    ends: str
    probe: Callable[[ModuleType], None]
    apply: Callable[[ModuleType], list[Change]]
    relies_on: tuple[str, ...] = ()
    watches: bool = False
    superfluous: Callable[[ModuleType], str | None] = lambda module: None
