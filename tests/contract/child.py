"""Run code in a process that has one real release on its path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import wheels

ROOT = Path(__file__).parents[2]
QUICK = str(Path(__file__).with_name("quick"))
PYTHON_0200 = os.environ.get("VTAP_PYTHON_0200", "")
#: Releases that run with this interpreter's dependencies, and those that need 0.20.0's.
OLD = ("0.12.0", "0.13.2.post6", "0.13.3")
NEW = ("0.18.0", "0.19.0", "0.20.0", "0.21.0")


def python(version: str) -> str:
    """The interpreter for a release; skips the test where there is none."""
    if version in OLD:
        return sys.executable
    if not PYTHON_0200:
        pytest.skip("needs the dependencies of vllm-tpu 0.20.0: set VTAP_PYTHON_0200 to a Python "
                    "that has them")
    return PYTHON_0200


def environment(version: str, *overlays: object, **variables: str) -> dict[str, str]:
    """Environment with the release, and before it ``overlays``, on PYTHONPATH; the patch is off."""
    inherited = {key: value for key, value in os.environ.items()
                 if not key.startswith(("VLLM_", "TPU_MULTIHOST"))}
    path = [str(ROOT), *map(str, overlays), *wheels.unpacked(version), QUICK]
    return {**inherited, "PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1",
            "JAX_PLATFORMS": "cpu", "VLLM_TPU_ASYNC_PATCH": "0",
            # vLLM remembers there what it found out about a model, for one release at a time.
            "VLLM_CACHE_ROOT": str(wheels.cache() / f"vllm-cache-{version}"), **variables}


def run(version: str, *arguments: str, overlays: tuple = (), **variables: str
        ) -> subprocess.CompletedProcess[str]:
    """The finished process ``python ARGUMENTS``."""
    return subprocess.run([python(version), *arguments], text=True, capture_output=True,
                          env=environment(version, *overlays, **variables), timeout=600)
