"""The way in at interpreter start: this folder stands first on PYTHONPATH.

Python imports one ``sitecustomize`` only, so the one that this file displaces is run from here,
whatever becomes of us.
"""

import os
import sys

_HERE = os.path.dirname(os.path.realpath(__file__))


def _start():
    if os.environ.get("VLLM_TPU_ASYNC_PATCH", "").strip() in ("", "0"):
        return
    try:
        from vllm_tpu_async_patch.doors import start
    except ImportError:
        # PYTHONPATH names this folder, the package itself is not on the path of this interpreter.
        parent = os.path.dirname(os.path.dirname(_HERE))
        sys.path.append(parent)
        try:
            from vllm_tpu_async_patch.doors import start
        finally:
            sys.path.remove(parent)
    start()


def _run_displaced():
    before = list(sys.path)
    # Off the path while the other one runs: it may look for its own successor in the same way.
    sys.path[:] = [p for p in before if os.path.realpath(p or ".") != _HERE]
    without = list(sys.path)
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as missing:
        if missing.name != "sitecustomize":
            raise
    finally:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)
        if sys.path == without:
            sys.path[:] = before


try:
    _start()
except Exception as failure:  # an interpreter must start, whatever is wrong with us
    sys.stderr.write(f"[tpu-async-patch] not active, {type(failure).__name__}: {failure}\n")
_run_displaced()
