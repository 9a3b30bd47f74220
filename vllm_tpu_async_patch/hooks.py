"""When patches are applied: a hook on the import of each leaf module, any order, once.

The order of imports does not matter.  A module that is already there is patched at once; one that
is half-imported, or not there, is patched when its import ends.
"""

from __future__ import annotations

import sys
import threading
import traceback
from functools import partial
from types import ModuleType

from . import compat, envs, probe, reasons, report
from .imports import Watch
from .patches import PATCHES, Change, Patch
from .patches.record import NotYet, Unexpected
from .report import Record

_lock = threading.RLock()
_active = False
_hooked: set[str] = set()
_busy: set[str] = set()
_changes: dict[str, list[Change]] = {}
#: Modules whose import is hooked, and those of them whose hooks have run.
_modules: set[str] = set()
_arrivals: set[str] = set()
#: Why nothing is touched any more: an imported object was not what the table says.
_drifted: str | None = None
records: dict[str, Record] = {p.name: Record(p.name, p.target) for p in PATCHES}


def install() -> None:
    """Apply every patch whose modules are there and hook the import of the others. Idempotent."""
    global _active, _drifted
    with _lock:
        if not _active:
            _drifted = None
        _active = True
    for patch in PATCHES:
        _try(patch)
        _hook(patch)
    _watch.install()


def uninstall() -> None:
    """Revert every change, last first; hooks that are registered already become inert.

    Raises:
        RuntimeError: another tool has replaced an attribute since; it is named, it and the
            patch it belongs to are left in place, everything else is reverted.
    """
    global _active
    stuck: list[str] = []
    with _lock:
        _active = False
        _watch.remove()
        for patch in reversed(PATCHES):
            stuck += _revert(patch)
    if stuck:
        raise RuntimeError("not removed: " + "; ".join(stuck))


def settle() -> None:
    """Give every patch the state that the verdict alone decides, importing nothing."""
    verdict = compat.verdict()
    for patch in PATCHES:
        if patch.name not in verdict.patches:
            records[patch.name].become(*_left_out(patch, verdict), quiet=True)


def _revert(patch: Patch) -> list[str]:
    record, changes = records[patch.name], _changes.get(patch.name, [])
    overwritten = [f"{patch.name}: {c} has been replaced by something else since; remove that first"
                   for c in changes if not c.in_effect()]
    if overwritten:
        return overwritten
    for made in reversed(changes):
        made.revert()
    if _changes.pop(patch.name, None) is not None:
        record.become(report.REMOVED)
    return []


def _hook(patch: Patch) -> None:
    with _lock:
        if patch.name in _hooked:
            return
        _hooked.add(patch.name)
        _modules.update(patch.modules)
        _arrivals.update(name for name in patch.modules if name in sys.modules)
    from wrapt import register_post_import_hook

    for module in patch.modules:
        # wrapt calls the hook at once where the name is in sys.modules, be the module complete or
        # not; only a call that comes later means that an import has ended.
        registering = threading.Event()
        registering.set()
        register_post_import_hook(partial(_arrived, patch, registering), module)
        registering.clear()


def _arrived(patch: Patch, registering: threading.Event, module: ModuleType) -> None:
    """A hooked import ended.  Whatever happens here, the import itself must not fail."""
    if registering.is_set():
        return _try(patch)
    _try(patch, arriving=module)
    # A module that was half-imported at an earlier attempt may be complete by now.
    for other in PATCHES:
        if other is not patch and records[other.name].state == report.WAITING:
            _try(other)


def _executed(module: ModuleType) -> None:
    """A hooked module has been executed.  If not for the first time, what it defines is new."""
    if module.__name__ not in _arrivals:
        return _arrivals.add(module.__name__)
    affected = [patch for patch in PATCHES if module.__name__ in patch.modules]
    for patch in reversed(affected):  # last first, as in `uninstall`: they lie on one another
        with _lock:
            forgotten = _changes.pop(patch.name, [])
        for made in reversed(forgotten):
            if made.in_effect():  # on what is old, or in a module that was not reloaded
                made.revert()
    for patch in affected:
        _try(patch, arriving=module)


_watch = Watch(_modules, _executed)


def _complete(module: ModuleType) -> bool:
    return not getattr(module.__spec__, "_initializing", False)


def _try(patch: Patch, arriving: ModuleType | None = None) -> None:
    record = records[patch.name]
    module = sys.modules.get(patch.modules[0])
    if module is None or not (module is arriving or _complete(module)):
        return
    with _lock:
        if not _active or patch.name in _busy or patch.name in _changes:
            return
        _busy.add(patch.name)
    # The lock is not held while a patch runs: patches import modules, and another thread may
    # hold that module's import lock while it waits for ours.
    try:
        _apply(patch, record, module)
    except NotYet:
        record.state = report.WAITING
    except Unexpected as reason:
        _abandon(patch, str(reason))
    except Exception:
        record.become(report.FAILED, traceback.format_exc())
    finally:
        with _lock:
            _busy.discard(patch.name)


def _abandon(patch: Patch, reason: str) -> None:
    """An imported object is not as expected: a half-patched vLLM is worse than an unpatched one."""
    global _drifted
    with _lock:
        _drifted = reason
    records[patch.name].become(report.DRIFT, reason)  # says it
    for other in reversed(PATCHES):
        if other.name in _changes and not (other.watches and envs.strict()):
            _revert(other)
            records[other.name].become(report.DRIFT, reason, quiet=True)


def _apply(patch: Patch, record: Record, module: ModuleType) -> None:
    if envs.disabled(patch.name):
        return record.become(report.DISABLED, reasons.DISABLED())
    verdict = compat.verdict()
    report.announce(verdict)
    insists = patch.watches and envs.strict()
    if _drifted is not None and not insists:
        return record.become(report.DRIFT, _drifted, quiet=True)
    if patch.name not in verdict.patches and not insists:
        return record.become(*_left_out(patch, verdict), quiet=True)
    why_not = patch.superfluous(module)
    if why_not is not None:
        return record.become(report.NOT_NEEDED, why_not)
    if not insists:
        _confirm(patch, verdict, module)
    patch.probe(module)
    changes = patch.apply(module)
    lost = [str(c) for c in changes if not c.in_effect()]
    if lost:
        raise RuntimeError(f"set, but not in effect when read back: {', '.join(lost)}")
    with _lock:
        _changes[patch.name] = changes
    record.become(report.APPLIED)


def _left_out(patch: Patch, verdict: compat.Verdict) -> tuple[str, str]:
    """State and reason of a patch that the verdict does not list."""
    if verdict.action == compat.DRIFT:
        return report.DRIFT, verdict.reason
    if not verdict.patches or verdict.row is None:
        return report.REFUSED, verdict.reason
    if verdict.action != compat.BACKPORT and patch.name in compat.BACKPORTED:
        return report.NATIVE, f"{verdict.row.vllm} does this itself ({patch.upstream})"
    return report.NOT_NEEDED, f"{verdict.row.vllm} does not have what this patch mends"


def _confirm(patch: Patch, verdict: compat.Verdict, patched: ModuleType) -> None:
    """Compare the imported functions with the table, as far as they are imported.

    A module whose import is under way, other than the patched one, has not got them yet: its
    source text has been compared already.

    Raises:
        Unexpected: one differs, or its source text cannot be read.
    """
    assert verdict.row is not None
    for target in patch.relies_on:
        module = sys.modules.get(target.partition(":")[0])
        expected = verdict.row.hashes.get(target)
        if module is None or expected is None or not (module is patched or _complete(module)):
            continue
        try:
            found = probe.object_hash(target)
        except OSError as error:
            found = str(error)
        if found != expected:
            raise Unexpected(reasons.DRIFT(fact=target, row=verdict.row.vllm, expected=expected,
                                           found=found))
