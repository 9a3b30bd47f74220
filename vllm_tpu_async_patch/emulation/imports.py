"""Call `host.patch` when the import of one of its targets ends.

wrapt would do this, but importing it costs every interpreter 60 to 150 ms, and an emulated host
starts many that never see vLLM.  Both kinds of hook work in one process, ours first.
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
    """Just before the finder of ordinary modules; sees it find each target."""

    is_tpu_emulation = True

    def find_spec(self, name, path=None, target=None):
        if name not in TARGETS:
            return None
        behind = sys.meta_path[sys.meta_path.index(self) + 1:]
        for other in behind:
            find = getattr(other, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
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
    # Behind wrapt's finder, wherever that is: the host is complete when others patch something
    # on it, and they find what they have set still in place when they take it back.
    ordinary = [n for n, finder in enumerate(sys.meta_path)
                if getattr(finder, "__name__", "") == "PathFinder"]
    sys.meta_path.insert(ordinary[0] if ordinary else 0, Finder())
    for name in TARGETS:
        if name in sys.modules:
            _patch(sys.modules[name])
