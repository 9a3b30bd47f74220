"""A process that keeps a cluster's Ray nodes, and ends them when its owner ends, however that is.

Run as a script by `cluster.EmulatedCluster`, with a JSON object as its argument.  It writes one
JSON line when the nodes are up.  End of file on its standard input, which is what a killed owner
leaves behind as well, ends everything: nodes, every process marked as the cluster's, its folder.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time

MARK = "TPU_EMULATION_CLUSTER"


def members(folder: str) -> list[int]:
    """The processes that were started, by whomever, with this cluster's mark; without this one."""
    mark = f"{MARK}={folder}".encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/environ", "rb") as environment:
                if mark in environment.read().split(b"\0"):
                    found.append(int(name))
        except OSError:
            pass  # gone meanwhile, or somebody else's
    return found


def end_members(folder: str, timeout: float = 10.0) -> list[int]:
    """Kill the cluster's processes until there is none.  Returns those that would not go."""
    deadline = time.monotonic() + timeout
    while (left := members(folder)) and time.monotonic() < deadline:
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.02)
    return left


def remove(folder: str) -> None:
    """Remove the cluster's folder; only once its processes are gone, since they write there."""
    shutil.rmtree(folder, ignore_errors=True)


def start_nodes(folder: str, hosts: int, port: int) -> tuple[list, str]:
    """Start Ray: a head and further nodes, one TPU each, all of them on 127.0.0.1.

    Not with ``ray start``: that takes 127.0.0.1 for a mistake, and puts a public address there.
    """
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    started, gcs_address = [], None
    for host in range(hosts):
        params = RayParams(
            node_ip_address="127.0.0.1", temp_dir=folder, num_cpus=2, num_gpus=0,
            resources={"TPU": 1}, object_store_memory=150 << 20, min_worker_port=0,
            max_worker_port=0, include_dashboard=False, include_log_monitor=host == 0,
            env_vars={"TPU_WORKER_ID": str(host)})
        if host == 0:
            params.update_if_absent(gcs_server_port=port)
        else:
            params.update_if_absent(gcs_address=gcs_address, node_manager_port=0)
            params.dashboard_agent_listen_port = None
        node = Node(params, head=host == 0, shutdown_at_exit=False, spawn_reaper=True)
        gcs_address = gcs_address or node.gcs_address
        started.append(node)
    return started, gcs_address


def wait_for_end_of_file(owner: int) -> None:
    # The parent's id as well: a child that the owner has forked keeps the pipe open.
    while os.getppid() == owner:
        if select.select([0], [], [], 1.0)[0] and not os.read(0, 4096):
            return


def main() -> None:
    order = json.loads(sys.argv[1])
    folder = order["folder"]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the owner decides
    output = os.dup(1)
    os.dup2(2, 1)
    try:
        _, address = start_nodes(folder, order["hosts"], order["port"])
        os.write(output, (json.dumps({"address": address}) + "\n").encode())
        wait_for_end_of_file(order["owner"])
    finally:
        end_members(folder)
        remove(folder)


if __name__ == "__main__":
    main()
