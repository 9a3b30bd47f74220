"""On the installed release: applying changes the targets, removing puts back the very objects."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("vllm", reason="needs vllm-tpu")
pytestmark = pytest.mark.contract

PROGRAM = textwrap.dedent("""
    import importlib, os, sys, types
    MODULES = ["vllm.platforms.interface", "vllm.config.vllm", "vllm.v1.executor.abstract",
               "vllm.v1.executor.uniproc_executor", "vllm.v1.executor.multiproc_executor",
               "tpu_inference.platforms.tpu_platform",
               "tpu_inference.executors.ray_distributed_executor",
               "tpu_inference.worker.tpu_worker", "tpu_inference.runner.tpu_runner",
               "vllm.v1.executor.ray_executor", "vllm.v1.executor.ray_utils"]

    def snapshot():
        seen = {}
        for name in MODULES:
            module = importlib.import_module(name)
            for key, value in vars(module).items():
                if key.startswith("__"):
                    continue
                seen[name, key] = value
                if isinstance(value, type):
                    for attribute, member in vars(value).items():
                        if attribute in ("__dict__", "__weakref__", "__doc__", "__abstractmethods__",
                                         "_abc_impl", "__annotations__"):
                            continue
                        seen[name, key, attribute] = member
                        function = getattr(member, "__func__", member)
                        if isinstance(function, types.FunctionType):
                            seen[name, key, attribute, "__code__"] = function.__code__
        return seen

    def differ(a, b):
        return sorted(".".join(k) for k in a.keys() | b.keys()
                      if a.get(k, a) is not b.get(k, b))

    os.environ["VLLM_TPU_ASYNC_PATCH"] = "0"
    before = snapshot()
    import vllm_tpu_async_patch as patch
    assert differ(before, snapshot()) == [], "importing it with 0 changed something"
    del os.environ["VLLM_TPU_ASYNC_PATCH"]
    for round in range(2):
        assert patch.apply() and patch.apply()
        states = {p["name"]: p["state"] for p in patch.status()["patches"]}
        changed = differ(before, snapshot())
        print(round, states, changed)
        patch.remove()
        patch.remove()
        left = differ(before, snapshot())
        assert left == [], left
    print("REVERTED")
""")


def test_remove_puts_back_the_very_objects() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True,
                          env=_environment())
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "REVERTED" in done.stdout
    first = next(line for line in done.stdout.splitlines() if line.startswith("0 "))
    for target in ("vllm.config.vllm.VllmConfig.__post_init__.__code__",
                   "vllm.platforms.interface.Platform.executors_supports_async_scheduling",
                   "tpu_inference.executors.ray_distributed_executor.RayDistributedExecutor'",
                   "tpu_inference.executors.ray_distributed_executor.RayWorkerWrapper'",
                   "tpu_inference.worker.tpu_worker.TPUWorker.__init__"):
        assert target in first, f"{target} was not changed in the first place: {first}"


def _environment() -> dict[str, str]:
    import os

    return {**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "ERROR", "TPU_MULTIHOST_BACKEND": "ray"}
