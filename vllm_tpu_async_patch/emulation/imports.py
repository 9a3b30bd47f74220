"""Call `host.patch` when the import of one of its targets ends.

wrapt would do this, but importing it costs every interpreter 60 to 150 ms, and an emulated host
starts many that never see vLLM.  Both kinds of hook work in one process: each asks the finders
behind it for the module, and each leaves the module's own loader in place.
"""

import sys

TARGETS = (
    "tpu_info.device",
    "tpu_inference.tpu_info",
    "tpu_inference.utils",
    "tpu_inference.distributed.utils",
    "tpu_inference.layers.common.attention_interface",
    "tpu_inference.runner.tpu_runner",
    "tpu_inference.worker.tpu_worker",
)


class Finder:
    """First on ``sys.meta_path``; finds nothing itself, but sees each target being found."""

    is_tpu_emulation = True

    def __init__(self):
        self._searching = set()

    def find_spec(self, name, path=None, target=None):
        if name not in TARGETS or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = _found_by_others(self, name, path, target)
        finally:
            self._searching.discard(name)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec


def _found_by_others(finder, name, path, target):
    for other in list(sys.meta_path):
        find = None if other is finder else getattr(other, "find_spec", None)
        spec = find(name, path, target) if find else None
        if spec is not None:
            return spec
    return None


class _Loader:
    def __init__(self, real):
        self._real = real

    def __getattr__(self, name):
        return getattr(self._real, name)

    def create_module(self, spec):
        return self._real.create_module(spec)

    def exec_module(self, module):
        # Readers of sources and data files look for the loader they know.
        module.__loader__ = module.__spec__.loader = self._real
        self._real.exec_module(module)
        _patch(module)


def _patch(module):
    from . import host

    host.patch(module)


def install():
    """Patch the targets that are there already, and the others when they come.  Idempotent."""
    if any(getattr(finder, "is_tpu_emulation", False) for finder in sys.meta_path):
        return
    sys.meta_path.insert(0, Finder())
    for name in TARGETS:
        if name in sys.modules:
            _patch(sys.modules[name])
