"""Async scheduling for tpu-inference's Ray executor on pinned vLLM-TPU deployments.

Importing this package applies the patch, unless ``VLLM_TPU_ASYNC_PATCH=0``.  vLLM's plugin loader
and the doors at interpreter start import it too, wanted or not: that import alone applies nothing,
`doors` decides.
"""

# Every interpreter that vLLM starts may come through here: os and sys only, until it is known
# that the patch is wanted.
import os
import sys

from ._version import __version__

__all__ = ["__version__", "apply", "remove", "status"]

_MACHINERY = ("importlib", "importlib._bootstrap", "importlib._bootstrap_external",
              "_frozen_importlib", "_frozen_importlib_external", "zipimport")


def apply() -> bool:
    """Apply the patch: now to what is imported, later to what will be.  Idempotent.

    Returns:
        False where ``VLLM_TPU_ASYNC_PATCH=0`` forbids it; nothing has been touched then.
    """
    from . import doors

    if doors.switched_off():
        return False
    from . import hooks

    hooks.install()
    return True


def remove() -> None:
    """Put back every attribute that was changed, the very objects.

    Raises:
        RuntimeError: another tool has replaced one of them since.  It is named; that patch stays
            in place, the others are gone.
    """
    from . import hooks

    hooks.uninstall()


def status() -> dict[str, object]:
    """What is installed and what became of each patch in this process.  Plain data, JSON-able."""
    from . import report

    return report.status()


def _imported_by_door() -> bool:
    """Whether the import under way was begun by a door, not by somebody's code.

    Doors are vLLM's plugin loader (importlib.metadata), a start file (site) and our sitecustomize.
    """
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if name in ("importlib.metadata", "importlib_metadata", "site", "pkgutil"):
            return True
        if name == "sitecustomize":
            return os.path.dirname(os.path.realpath(frame.f_code.co_filename)) == os.path.join(
                os.path.dirname(os.path.realpath(__file__)), "bootstrap")
        if name != __name__ and name not in _MACHINERY:
            return False
        frame = frame.f_back
    return False


if not _imported_by_door():
    apply()
