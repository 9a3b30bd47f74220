"""The finder that tells when a hooked module has been executed: every time, the first and later.

wrapt keeps the hooks.  Its own finder calls them once for each name, so that a reloaded module
stays bare, and that of 1.14 leaves a loader on the module that ``python -m`` cannot use.

`emulation.imports` has a finder of the same kind: that package has to work alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Watch:
    """Stands on sys.meta_path in front of all others, and lets those behind it find."""

    def __init__(self, names: Container[str], executed: Callable[[ModuleType], None]):
        """
        Args:
            names: of the hooked modules; may grow.
            executed: called with a hooked module when its import, or a reload, ended well, after
                the hooks that wrapt has for it.
        """
        self._names, self._executed = names, executed

    def install(self) -> None:
        """Take the first place on sys.meta_path.  Idempotent."""
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)  # type: ignore[arg-type]

    def remove(self) -> None:
        """Leave sys.meta_path.  Idempotent."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)  # type: ignore[arg-type]

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None
                  ) -> ModuleSpec | None:
        if name not in self._names:
            return None
        from wrapt.importer import ImportHookFinder

        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1:]:  # type: ignore[arg-type]
            if isinstance(finder, ImportHookFinder) or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self._executed)  # type: ignore[assignment]
                return spec
        return None


class _Loader:
    def __init__(self, real: Any, executed: Callable[[ModuleType], None]):
        self._real, self._executed = real, executed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        from wrapt import notify_module_loaded

        # Readers of sources and data files look for the loader they know.
        assert module.__spec__ is not None
        module.__loader__ = module.__spec__.loader = self._real
        self._real.exec_module(module)
        notify_module_loaded(module)
        self._executed(module)
