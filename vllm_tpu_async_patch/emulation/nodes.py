"""A process that keeps a cluster's Ray nodes, and ends them when its owner ends, however that is.

Run as a script by `cluster.EmulatedCluster`, with a JSON object as its argument.  It writes one
JSON line when the nodes are up.  End of file on its standard input, which is what a killed owner
leaves behind as well, ends everything: nodes, every process marked as the cluster's, its folder.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

MARK = "TPU_EMULATION_CLUSTER"


class Process(NamedTuple):
    pid: int
    parent: int
    session: int


def processes() -> list[Process]:
    """All that run; the dead that nobody has reaped yet do not count."""
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as stat:
                state, parent, _, session = stat.read().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue  # gone meanwhile
        if state not in "ZX":
            found.append(Process(int(name), int(parent), int(session)))
    return found


def in_session(session: int) -> list[int]:
    return [process.pid for process in processes() if process.session == session]


def descendants(of: int) -> list[int]:
    children: dict[int, list[int]] = {}
    for process in processes():
        children.setdefault(process.parent, []).append(process.pid)
    found, todo = [], [of]
    while todo:
        todo += (young := children.get(todo.pop(), []))
        found += young
    return found


def marked(folder: str) -> list[int]:
    """The processes that were started, by whomever, with this cluster's mark; without this one.

    Not all of them: one that gives itself a title, as many of Ray's and vLLM's do, may write it
    over its environment.
    """
    mark = f"{MARK}={folder}".encode()
    found = []
    for process in processes():
        try:
            with open(f"/proc/{process.pid}/environ", "rb") as environment:
                if process.pid != os.getpid() and mark in environment.read().split(b"\0"):
                    found.append(process.pid)
        except OSError:
            pass  # gone meanwhile, or somebody else's
    return found


def end(find: Callable[[], list[int]], number: int = signal.SIGKILL, timeout: float = 10.0) -> bool:
    """Send a signal to the processes that `find` finds, once to each, until it finds none.

    Returns:
        Whether that came about in time.
    """
    deadline = time.monotonic() + timeout
    sent: set[int] = set()
    while pids := find():
        if time.monotonic() > deadline:
            return False
        for pid in pids:
            if pid not in sent:
                sent.add(pid)
                try:
                    os.kill(pid, number)
                except OSError:
                    pass
        time.sleep(0.02)
    return True


def remove(folder: str) -> None:
    """Remove the cluster's folder; only once its processes are gone, since they write there."""
    shutil.rmtree(folder, ignore_errors=True)


def start_node(folder: str, host: int, port: int) -> str:
    """Start one host's Ray node, with one TPU, on 127.0.0.1; host 0 is the head.

    To vLLM each host has an address of its own: it sorts its workers by them, and only so the
    output rank runs on the engine's host.  Ray's are the same, since Ray listens everywhere for a
    node that is not on 127.0.0.1 itself.

    Not with ``ray start``: that takes 127.0.0.1 for a mistake, and puts a public address there.
    Nor with ``ray.cluster_utils``: that makes itself the machine's current cluster.

    Args:
        folder: the cluster's.
        host: its number.
        port: of the head.

    Returns:
        The head's address.
    """
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class BareNode(Node):
        def start_api_server(self, **_: object) -> None:
            """None: nobody looks at this cluster, and it takes seconds."""

    params = RayParams(
        node_ip_address="127.0.0.1", temp_dir=folder, num_cpus=2, num_gpus=0,
        resources={"TPU": 1}, object_store_memory=150 << 20, min_worker_port=0,
        max_worker_port=0, include_dashboard=False, no_monitor=True,
        include_log_monitor=host == 0,
        env_vars={"TPU_WORKER_ID": str(host), "VLLM_HOST_IP": f"127.0.0.{host + 1}"})
    params.dashboard_agent_listen_port = None  # any, as for the others, which are 0
    if host == 0:
        params.gcs_server_port = port
    else:
        params.gcs_address, params.node_manager_port = f"127.0.0.1:{port}", 0
    node = BareNode(params, head=host == 0, shutdown_at_exit=False, spawn_reaper=True)
    address: str = node.gcs_address
    return address


def adopt_orphans() -> None:
    """Become the parent of what Ray's processes leave behind, so that it can be found here."""
    set_child_subreaper = 36
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def follow_owner(owner: int) -> list[int]:
    """Wait for the owner's end.  Returns the sessions that it has announced, one a line."""
    told = b""
    # The parent's id as well: a child that the owner has forked keeps the pipe open.
    while os.getppid() == owner:
        if select.select([0], [], [], 1.0)[0]:
            piece = os.read(0, 4096)
            if not piece:
                break
            told += piece
    return [int(line) for line in told.split()]


def main() -> None:
    order = json.loads(sys.argv[1])
    folder, sessions = order["folder"], []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The owner decides.  Not SIG_IGN: every process of the cluster would inherit that.
        signal.signal(number, lambda *_: None)
    adopt_orphans()
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        for host in range(order["hosts"]):
            address = start_node(folder, host, order["port"])
        os.write(output, (json.dumps({"address": address}) + "\n").encode())
        sessions = follow_owner(order["owner"])
    finally:
        def left() -> list[int]:
            reap()
            found = descendants(os.getpid()) + marked(folder)
            return found + [pid for session in sessions for pid in in_session(session)]

        end(left)
        reap()
        remove(folder)


if __name__ == "__main__":
    main()
