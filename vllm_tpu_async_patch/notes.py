"""Driver and workers compare notes before a worker is made: the same software on every node?"""

from __future__ import annotations

import hashlib
import platform
import socket
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from . import __version__, compat

PACKAGE = "vllm-tpu-async-patch"


class NotesDiffer(RuntimeError):
    """Nodes do not run the same software.  The message lists nodes, differences and the cure."""


@cache
def _content() -> str:
    """One short word for the text of this package's modules: a namesake has another one."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for file in sorted(folder.rglob("*.py")):
        digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    return digest.hexdigest()[:12]


def installation() -> dict[str, str]:
    """What this process runs: versions, and the place and content of this package."""
    try:
        ray = version("ray")
    except PackageNotFoundError:
        ray = "none"
    versions = compat.installed()
    return {
        "node": socket.gethostname(),
        "path": str(Path(__file__).parent),
        PACKAGE: f"{__version__} (content {_content()})",
        "vllm": versions.vllm or "none",
        "tpu-inference": versions.tpu_inference or "none",
        "ray": ray,
        "python": platform.python_version(),
    }


def compare(driver: dict[str, str], workers: list[dict[str, Any]]) -> None:
    """Check the workers' notes against the driver's.

    Raises:
        NotesDiffer: any of them differs in a version, or in the content of this package.
    """
    lines = []
    for rank, worker in enumerate(workers):
        differing = [f"{what} {worker.get(what, 'none')}, the engine has {expected}"
                     for what, expected in driver.items()
                     if what not in ("node", "path") and worker.get(what) != expected]
        if differing:
            lines.append(f"  rank {rank} on {worker.get('node')} ({worker.get('path')}): "
                         + "; ".join(differing))
    if lines:
        raise NotesDiffer("the Ray workers do not run what the engine runs:\n" + "\n".join(lines)
                          + f"\nInstall the same versions on all nodes: {cure()}")


def explain(error: Exception) -> Exception:
    """The error of a worker's start, as `NotesDiffer` where the cause is our absence there."""
    text = str(error)
    missing = "vllm_tpu_async_patch" in text and (
        "ModuleNotFoundError" in text or "ImportError" in text or "failed to be imported" in text)
    older = "installation_notes" in text and "AttributeError" in text
    if not (missing or older):
        return error
    what = ("lacks this package" if missing else "has an older version of this package")
    return NotesDiffer(f"a node that a Ray worker was started on {what}. Install on all nodes: "
                       f"{cure()}, or set VLLM_TPU_ASYNC_PATCH=0. Ray said:\n{text.strip()}")


def cure() -> str:
    """The command that brings this version of the package to a node."""
    return f"pip install {PACKAGE}=={__version__}"
