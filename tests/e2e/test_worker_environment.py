"""A node whose Python lacks this package, or has another version of it: one message, at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from vllm_tpu_async_patch import __version__
from vllm_tpu_async_patch.emulation import nodes
from vllm_tpu_async_patch.emulation.cluster import EmulatedCluster

pytest.importorskip("vllm", reason="needs vllm-tpu")
pytestmark = [pytest.mark.e2e, pytest.mark.e2e_all]

PACKAGE = Path(nodes.__file__).parents[1]
#: Joins the cluster as its second host, with the interpreter that runs this.
JOIN = f"""
import runpy, sys
runpy.run_path({nodes.__file__!r})["start_node"](sys.argv[1], 1, int(sys.argv[2]))
print("joined", flush=True)
sys.stdin.read()
"""
ENGINE = """
import sys
from vllm import LLM
LLM(sys.argv[1], skip_tokenizer_init=True, max_model_len=64, enforce_eager=True,
    tensor_parallel_size=2, async_scheduling=True, distributed_executor_backend="ray")
"""


@pytest.fixture
def other_python(tmp_path: Path) -> Path:
    """An interpreter with all that this one has, this package excepted."""
    folder = tmp_path / "other"
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    # Start files in a folder that a start file names are not read: no editable installation.
    (site / "base.pth").write_text(sysconfig.get_path("purelib"))
    python = folder / "bin/python"
    gone = subprocess.run([python, "-P", "-c", "import ray, wrapt; import vllm_tpu_async_patch"],
                          env=_without_path(), capture_output=True, text=True)
    assert "No module named 'vllm_tpu_async_patch'" in gone.stderr, gone.stderr
    return python


def _without_path() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def _start_engine(python: Path, model: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What an engine says that is started while the second host runs that interpreter."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with EmulatedCluster(1, env={"VLLM_TPU_ASYNC_PATCH": "1"}) as cluster:
        environment = cluster.environment
        folder = environment[nodes.MARK]
        port = environment["RAY_ADDRESS"].rpartition(":")[2]
        join = subprocess.Popen([python, "-c", JOIN, folder, port], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True, env=environment)
        assert join.stdin is not None and join.stdout is not None
        try:
            assert "joined" in join.stdout.readline()
            # Not from the checkout: Ray gives the driver's folder to its workers, as a path.
            engine = subprocess.run([sys.executable, "-c", ENGINE, model], env=environment,
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                    cwd=model)
        finally:
            join.kill()
            join.wait()
    assert engine.returncode not in (0, None), engine.stdout[-3000:]
    return engine.stdout


def test_a_node_without_the_package(other_python: Path, tiny_model: str,
                                    monkeypatch: pytest.MonkeyPatch) -> None:
    said = _start_engine(other_python, tiny_model, monkeypatch)
    assert "a node that a Ray worker was started on lacks this package" in said, said[-5000:]
    assert f"Install on all nodes: pip install vllm-tpu-async-patch=={__version__}" in said
    lines = [line for line in said.splitlines() if "): vllm-tpu-async-patch " in line]
    assert {"not installed" in line for line in lines[-2:]} == {True, False}, lines
    assert all("node " in line and "127.0.0.1" in line for line in lines)


def test_a_node_with_another_version(other_python: Path, tiny_model: str,
                                     monkeypatch: pytest.MonkeyPatch) -> None:
    (site,) = other_python.parents[1].glob("lib/python*/site-packages")
    shutil.copytree(PACKAGE, site / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    (site / PACKAGE.name / "_version.py").write_text('__version__ = "0.0.9"\n')
    said = _start_engine(other_python, tiny_model, monkeypatch)
    assert "the Ray workers do not run what the engine runs" in said, said[-5000:]
    assert "vllm-tpu-async-patch 0.0.9 (content " in said
    assert f"the engine has {__version__} (content " in said
    assert "Install the same versions on all nodes: pip install vllm-tpu-async-patch==" in said
