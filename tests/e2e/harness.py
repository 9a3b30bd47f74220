"""Run programs and servers on emulated TPU hosts, with the patch on or off."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from vllm_tpu_async_patch.emulation.cluster import EmulatedCluster

pytest.importorskip("vllm", reason="needs vllm-tpu")

PROGRAMS = Path(__file__).parent / "programs"
ON = {"VLLM_TPU_ASYNC_PATCH": "1"}
OFF = {"VLLM_TPU_ASYNC_PATCH": "0"}
ACTORS = """
import json, ray
ray.init(logging_level="ERROR")
from ray._private.state import actors
print(json.dumps([a["ActorClassName"] for a in actors().values() if a["State"] != "DEAD"]))
"""


def run_program(name: str, task: dict[str, Any], toggle: dict[str, str], tmp_path: Path,
                hosts: int = 1, device_ms: float = 0.0, **environment: str) -> dict[str, Any]:
    """Run ``programs/NAME.py TASK`` on a cluster of its own; returns what it wrote."""
    result = tmp_path / f"{name}-{toggle['VLLM_TPU_ASYNC_PATCH']}-{time.monotonic_ns()}.json"
    log = result.with_suffix(".log")
    task = {**task, "result": str(result)}
    with EmulatedCluster(hosts, device_ms, env={**toggle, **environment}) as cluster:
        with log.open("w") as output:
            code = _start([sys.executable, str(PROGRAMS / f"{name}.py"), json.dumps(task)],
                          {**cluster.environment, **toggle, **environment}, output, cluster).wait()
    assert code == 0, f"{name} ended with {code}\n{_tail(log)}"
    done: dict[str, Any] = json.loads(result.read_text())
    return done


def _start(command: list[str], environment: dict[str, str], output: Any,
           cluster: EmulatedCluster) -> subprocess.Popen[Any]:
    """Start a command whose whole session ends with the cluster."""
    child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                             stderr=subprocess.STDOUT, start_new_session=True)
    cluster.take_charge(child.pid)
    return child


def _tail(log: Path, lines: int = 40) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


class Server:
    """A running (or failed) ``vllm serve``."""

    def __init__(self, process: subprocess.Popen[Any], port: int, log: Path,
                 cluster: EmulatedCluster) -> None:
        self.process = process
        self.port = port
        self.log = log
        self._cluster = cluster

    def wait_ready(self) -> bool:
        """Whether it came up; False when its engine died, or the process ended, instead.

        An API server whose engine core dies during start-up may hang without listening.
        """
        while self.process.poll() is None and "EngineDeadError" not in self.output():
            try:
                self._open("/health")
                return True
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.5)
        return False

    def complete(self, prompt: list[int], max_tokens: int) -> list[int]:
        """Greedy completion of a prompt of token ids, as token ids."""
        answer = self._open("/v1/completions", {
            "model": "tiny", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0,
            "ignore_eos": True, "return_token_ids": True})
        return list(json.loads(answer)["choices"][0]["token_ids"])

    def healthy(self) -> bool:
        """Whether /health answers 200."""
        try:
            return self._open("/health") == b""
        except urllib.error.HTTPError:
            return False

    def stop(self) -> int:
        """Shut it down as an operator does.  Returns its exit code."""
        self.process.terminate()
        return self.process.wait(120)

    def actors(self) -> list[str]:
        """Classes of the Ray actors that are not dead."""
        done = subprocess.run([sys.executable, "-c", ACTORS], env=self._cluster.environment,
                              capture_output=True, text=True, check=True)
        found: list[str] = json.loads(done.stdout.splitlines()[-1])
        return found

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def _open(self, path: str, body: dict[str, Any] | None = None) -> bytes:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=300) as response:
            content: bytes = response.read()
        return content


@contextmanager
def serve(model: str, arguments: list[str], toggle: dict[str, str], tmp_path: Path,
          hosts: int = 1, prefix: tuple[str, ...] = (), **variables: str) -> Iterator[Server]:
    """``vllm serve``, perhaps behind a command, on emulated hosts and a free loopback port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / f"serve-{time.monotonic_ns()}.log"
    command = [*prefix, "vllm", "serve", model, "--served-model-name", "tiny", "--host", "127.0.0.1",
               "--port", str(port), "--dtype", "float32", "--max-model-len", "256",
               "--max-num-seqs", "8", "--max-num-batched-tokens", "64", "--enforce-eager",
               "--no-enable-prefix-caching", "--tensor-parallel-size", str(hosts), *arguments]
    environment_bin = str(Path(sys.executable).parent)
    with EmulatedCluster(hosts, env={**toggle, **variables}) as cluster, log.open("w") as output:
        environment = {**cluster.environment, **toggle, **variables}
        environment["PATH"] = environment_bin + os.pathsep + environment.get("PATH", "")
        process = _start(command, environment, output, cluster)
        try:
            yield Server(process, port, log, cluster)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                pass
