"""Driver and workers compare notes before a worker is made: the same software on every node?"""

from __future__ import annotations

import hashlib
import platform
import socket
from collections.abc import Callable, Sequence
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


def explain(error: Exception, nodes: Callable[[], Sequence[str]] = tuple) -> Exception:
    """The error of a worker's start, as `NotesDiffer` where the cause is our absence there.

    Args:
        error: what Ray said.
        nodes: `survey`, to be asked in that case.
    """
    text = str(error)
    missing = "vllm_tpu_async_patch" in text and (
        "ModuleNotFoundError" in text or "ImportError" in text or "failed to be imported" in text)
    older = "installation_notes" in text and "AttributeError" in text
    if not (missing or older):
        return error
    what = "lacks this package" if missing else "has an older version of this package"
    return NotesDiffer("\n".join([
        f"a node that a Ray worker was started on {what}", *(f"  {line}" for line in nodes()),
        f"Install on all nodes: {cure()}, or set VLLM_TPU_ASYNC_PATCH=0. Ray said: "
        f"{text.strip()[-1000:]}"]))


def survey(timeout: float = 10.0) -> list[str]:
    """Which version of this package each node of the Ray cluster has, a line each."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as On

    def look() -> str:  # nested, so that it travels by value: there may be no module of ours
        import re
        from importlib.util import find_spec
        from pathlib import Path

        spec = find_spec("vllm_tpu_async_patch")
        if spec is None or spec.origin is None:
            return "not installed"
        found = re.search('__version__ = "(.*)"', Path(spec.origin).with_name("_version.py").read_text())
        return f"{found[1] if found else 'unknown version'} ({Path(spec.origin).parent})"

    task = ray.remote(num_cpus=0)(look)
    asked = {task.options(scheduling_strategy=On(node["NodeID"], soft=False)).remote(): node
             for node in ray.nodes() if node["Alive"]}
    answered, silent = ray.wait(list(asked), num_returns=len(asked), timeout=timeout)
    lines = []
    for ref in [*answered, *silent]:
        try:
            found = ray.get(ref) if ref in answered else f"no answer in {timeout:g} s"
        except Exception as error:
            found = f"no answer: {error}"
        node = asked[ref]
        lines.append(f"node {node['NodeManagerHostname']} ({node['NodeManagerAddress']}, "
                     f"{node['NodeID'][:8]}): {PACKAGE} {found}")
    return sorted(lines)


def cure() -> str:
    """The command that brings this version of the package to a node."""
    return f"pip install {PACKAGE}=={__version__}"
