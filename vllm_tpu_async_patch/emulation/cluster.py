"""A Ray cluster of emulated TPU hosts on this machine."""

from __future__ import annotations

import json
import os
import random
import select
import socket
import subprocess
import sys
import tempfile
import time
from types import TracebackType

from . import nodes

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
NODES = os.path.abspath(nodes.__file__)


class EmulatedCluster:
    """Emulated TPU hosts: Ray nodes with one TPU each, on the loopback address only.

    Use it as a context manager, and give `environment` to the processes that are to work
    there; the cluster's own process and the caller's stay as they are.  At the end nothing is
    left, also if the caller is killed.
    """

    def __init__(self, hosts: int = 1, device_ms: float = 0.0, record: str | None = None,
                 env: dict[str, str] | None = None, port: int | None = None,
                 timeout: float = 120.0):
        """
        Args:
            hosts: how many.
            device_ms: the least time of a forward pass on the emulated devices, in
                milliseconds; 0 for as fast as the CPU is.
            record: folder where the devices record when they were busy (see
                `device.read_record`).
            env: further variables for the nodes and for `environment`.
            port: of the Ray head; a free one if None.
            timeout: seconds until the nodes must be up.
        """
        if hosts < 1:
            raise ValueError(f"an emulated cluster needs at least one host, not {hosts}")
        if device_ms < 0:
            raise ValueError(f"a forward pass cannot take {device_ms} ms")
        self.hosts = hosts
        self.device_ms = device_ms
        self.record = os.path.abspath(record) if record else None
        self._extra = dict(env or {})
        self._port = port
        self._timeout = timeout
        self._folder: str | None = None
        self._keeper: subprocess.Popen | None = None
        self._environment: dict[str, str] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The environment of a process that is to work in the cluster: the caller's, and more."""
        if not self._environment:
            raise RuntimeError("the emulated cluster is not running")
        return {**os.environ, **self._environment}

    def __enter__(self) -> "EmulatedCluster":
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the nodes and wait until they are up.

        Raises:
            RuntimeError: they did not come up; says what the nodes' process said.
        """
        if self._keeper is not None:
            raise RuntimeError("the emulated cluster is running already")
        # Sockets are in there: their paths may be 107 bytes long, and TMPDIR may be anything.
        self._folder = tempfile.mkdtemp(prefix="tpu-emu-", dir="/tmp")
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        port = self._port or free_port()
        self._environment = self._make_environment(port)
        order = {"folder": self._folder, "hosts": self.hosts, "port": port, "owner": os.getpid()}
        with tempfile.TemporaryFile() as log:  # the nodes' process removes the folder if it fails
            self._keeper = subprocess.Popen(
                [sys.executable, NODES, json.dumps(order)], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=log, start_new_session=True, env=self.environment)
            answer = _read_line(self._keeper.stdout.fileno(), time.monotonic() + self._timeout)
            if not answer:
                log.seek(0)
                said = log.read().decode(errors="replace").strip()[-2000:]
                raise RuntimeError(f"the emulated hosts did not start: {said or 'no answer'}")
        self._environment["RAY_ADDRESS"] = json.loads(answer)["address"]

    def stop(self) -> None:
        """End the nodes and whatever runs in them, and remove their folder.  Idempotent."""
        keeper, folder = self._keeper, self._folder
        self._keeper = self._folder = None
        self._environment = {}
        if keeper is not None:
            keeper.stdin.close()
            try:
                keeper.wait(30)
            except subprocess.TimeoutExpired:
                keeper.kill()
                keeper.wait()
            keeper.stdout.close()
        if folder is not None:
            nodes.end(lambda: nodes.marked(folder))
            nodes.remove(folder)

    def take_charge(self, session: int) -> None:
        """Have the processes of a session ended with the cluster, also if this process is killed.

        Processes that were started with `environment` are, in general, without this.  In general
        only: those that give themselves a title lose their environment.
        """
        self._keeper.stdin.write(f"{session}\n".encode())
        self._keeper.stdin.flush()

    def _make_environment(self, port: int) -> dict[str, str]:
        defaults = {  # the caller's own values win
            "TPU_MULTIHOST_BACKEND": "ray",
            "MODEL_IMPL_TYPE": "flax_nnx",
            "SKIP_JAX_PRECOMPILE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        path = [SITE, *filter(None, [self._extra.get("PYTHONPATH", os.environ.get("PYTHONPATH"))])]
        return {
            **{name: os.environ.get(name, value) for name, value in defaults.items()},
            **self._extra,
            "PYTHONPATH": os.pathsep.join(path),
            "TPU_EMULATION": "1",
            nodes.MARK: self._folder,
            "TPU_EMULATION_HOSTS": str(self.hosts),
            "TPU_EMULATION_COORDINATOR": f"127.0.0.1:{free_port()}",
            "TPU_EMULATION_DEVICE_MS": f"{self.device_ms:g}",
            "TPU_EMULATION_RECORD": self.record or "",
            "TPU_WORKER_ID": "0",  # commands run on the first host; the nodes have their own
            "JAX_PLATFORMS": "cpu",
            "RAY_ADDRESS": f"127.0.0.1:{port}",
            # Nothing on a public address: without these, Ray, vLLM and torch look for one.  (Ray
            # asks this of Windows and macOS; it means "127.0.0.1 is meant" everywhere.)
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
            "VLLM_HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
        }


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses.

    Below the range from which the system serves outgoing connections: between now and the
    moment somebody listens there, Ray makes many.
    """
    for _ in range(100):
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port on 127.0.0.1")


def _read_line(descriptor: int, deadline: float) -> bytes:
    """One line from a pipe, or nothing at its end or when time is up."""
    line = b""
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return b""
        piece = os.read(descriptor, 4096)
        if not piece:
            return b""
        line += piece
    return line
