"""Emulated hosts with real Ray: on the loopback address only, and gone when their owner is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vllm_tpu_async_patch.emulation import nodes
from vllm_tpu_async_patch.emulation.cluster import EmulatedCluster, free_port

pytest.importorskip("ray", reason="needs Ray, which comes with vllm-tpu")

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]

#: What each node's worker sees, and whether anything listens on more than the loopback address.
LOOK = """
import os, ray, socket, sys
ray.init(logging_level="ERROR")

@ray.remote(resources={"TPU": 1}, num_cpus=0)
class Host:
    def look(self):
        names = ("TPU_WORKER_ID", "TPU_EMULATION_HOSTS", "TPU_EMULATION_DEVICE_MS", "ONE_MORE",
                 "FROM_CALLER", "VLLM_HOST_IP")
        return [os.environ.get(name) for name in names] + ["tpu_emulation" in sys.modules]

hosts = [Host.remote() for node in ray.nodes()]
print(sorted(ray.get([host.look.remote() for host in hosts])))
print(sorted({node["NodeManagerAddress"] for node in ray.nodes()}))
"""

EMULATE = """
import sys
from vllm_tpu_async_patch.emulation.run import emulate
sys.exit(emulate(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """What loses its parent becomes our child meanwhile, so whatever is left can be seen."""
    nodes.adopt_orphans()
    yield
    wait_until(lambda: not nodes.descendants(os.getpid()), "processes are left")


def wait_until(condition: Callable[[], bool], problem: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, problem
        time.sleep(0.05)


def listening(pids: set[int]) -> set[str]:
    """The addresses, in the kernel's hexadecimal, at which these processes listen."""
    sockets = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(os.readlink(descriptor))
            except OSError:
                pass
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    lines += Path("/proc/net/tcp6").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return {f[1].partition(":")[0] for f in fields
            if f[3] == "0A" and f"socket:[{f[9]}]" in sockets}


def start_emulate(*command: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "VLLM_TPU_ASYNC_PATCH": "0", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", EMULATE, *command], env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def test_two_hosts_on_the_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_CALLER", "too")
    port = free_port()
    with EmulatedCluster(2, 7.5, env={"ONE_MORE": "yes"}, port=port) as cluster:
        assert cluster.environment["RAY_ADDRESS"] == f"127.0.0.1:{port}"
        looked = subprocess.run([sys.executable, "-c", LOOK], env=cluster.environment, text=True,
                                capture_output=True)
        assert looked.returncode == 0, looked.stderr
        seen, addresses = looked.stdout.splitlines()
        assert seen == str([[str(host), "2", "7.5", "yes", "too", f"127.0.0.{host + 1}",
                             True] for host in range(2)])
        assert addresses == "['127.0.0.1']"
        folder = Path(cluster.environment[nodes.MARK])
        assert folder.is_dir()
        assert cluster._keeper is not None
        where = listening(set(nodes.descendants(cluster._keeper.pid)))
        # 127.0.0.1, also as IPv6 writes it; ::1.
        assert where and where <= {"0100007F", "0000000000000000FFFF00000100007F",
                                   "00000000000000000000000001000000"}
    assert not folder.exists()
    with pytest.raises(RuntimeError, match="not running"):
        cluster.environment


def test_an_exception_ends_the_cluster() -> None:
    with pytest.raises(ZeroDivisionError):
        with EmulatedCluster():
            1 // 0


def test_a_cluster_that_cannot_start_says_why() -> None:
    with EmulatedCluster() as first:
        taken = int(first.environment["RAY_ADDRESS"].rpartition(":")[2])
        with pytest.raises(RuntimeError, match="the emulated hosts did not start: .") as failure:
            EmulatedCluster(port=taken, timeout=60).start()
    assert "Traceback" in str(failure.value) or "no answer" in str(failure.value)


def test_emulate_passes_the_exit_code_and_leaves_no_grandchild() -> None:
    process = start_emulate("sh", "-c", "setsid sleep 1000 & sleep 1000 & echo $TPU_EMULATION_CLUSTER; "
                                        "exit 6")
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 6
    assert output.startswith("/tmp/") and not Path(output.strip()).exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_emulate_ends_everything(number: signal.Signals) -> None:
    """SIGKILL too, and with a command without the mark: who takes a title may lose it."""
    code = "import os, time; print(os.environ['RAY_ADDRESS'], flush=True); time.sleep(1000)"
    process = start_emulate("sh", "-c", 'echo $TPU_EMULATION_CLUSTER; exec env -u "$0" "$@"',
                            nodes.MARK, sys.executable, "-c", code)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    assert process.stdout.readline().startswith("127.0.0.1:")
    process.send_signal(number)
    assert process.wait(120) == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: not folder.exists(), "the folder is left")
