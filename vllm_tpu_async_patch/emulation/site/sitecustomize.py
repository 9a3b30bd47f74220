"""The emulation's way into an interpreter: this folder stands on an emulated host's PYTHONPATH."""

import sys


def _load():
    """Load the folder above as the package ``tpu_emulation``, without the parent package."""
    import os

    if os.environ.get("TPU_EMULATION") != "1" or "tpu_emulation" in sys.modules:
        return
    # By hand: importlib.util has a function for this, but importing it takes 10 ms.
    from importlib.machinery import ModuleSpec, SourceFileLoader

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    file = os.path.join(folder, "__init__.py")
    loader = SourceFileLoader("tpu_emulation", file)
    spec = ModuleSpec("tpu_emulation", loader, origin=file, is_package=True)
    module = type(sys)("tpu_emulation")
    module.__spec__, module.__loader__, module.__package__ = spec, loader, spec.name
    module.__file__, module.__path__ = file, spec.submodule_search_locations
    module.__path__.append(folder)
    sys.modules["tpu_emulation"] = module
    try:
        loader.exec_module(module)
        module.activate()
    except BaseException:
        del sys.modules["tpu_emulation"]
        raise


def _chain():
    """Run the sitecustomize that this one displaced, if there is one."""
    import os

    here = os.path.dirname(os.path.realpath(__file__))
    before = list(sys.path)
    # Off the path while the other one runs: it may look for its own successor in the same way.
    sys.path[:] = [p for p in before if os.path.realpath(p or ".") != here]
    without = list(sys.path)
    mine = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as missing:
        if missing.name != "sitecustomize":
            raise
    finally:
        if mine is not None:
            sys.modules.setdefault("sitecustomize", mine)
        if sys.path == without:
            sys.path[:] = before


try:
    _load()
except Exception as failure:  # an interpreter must start, whatever is wrong with us
    sys.stderr.write(f"[tpu-emulation] not active, {type(failure).__name__}: {failure}\n")
_chain()
