"""Three ways to hand an output to the driver on one machine, without Ray: the choice of `channel`.

``python -m vllm_tpu_async_patch.bench.transport [BYTES]``: round trips (a byte through a pipe, the
message back) and the CPU seconds that a reader uses in one second of waiting.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

NAMES = ("socket", "zmq", "mq")


def _serve(name: str, size: int, address: str) -> None:
    """The worker: for every byte on stdin, one message."""
    message = b"x" * size
    if name == "socket":
        from ..channel.local import Sender

        sender = Sender(address, b"t" * 32)
        step = iter(range(1, 1 << 60))

        def send() -> None:
            sender.send(next(step), message)
    elif name == "zmq":
        import zmq

        push = zmq.Context.instance().socket(zmq.PUSH)
        push.connect(address)

        def send() -> None:
            push.send_pyobj(message)
    else:
        import base64
        import pickle

        from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

        queue = MessageQueue(1, 1)
        sys.stdout.write(base64.b64encode(pickle.dumps(queue.export_handle())).decode() + "\n")
        sys.stdout.flush()
        queue.wait_until_ready()

        def send() -> None:
            queue.enqueue(message)
    while os.read(0, 1):
        send()


def _reader(name: str, size: int) -> tuple[subprocess.Popen[bytes], Callable[[], Any]]:
    folder = tempfile.mkdtemp()
    address = f"ipc://{folder}/zmq"
    command = [sys.executable, "-m", "vllm_tpu_async_patch.bench.transport", "serve", name, str(size)]
    if name == "socket":
        from ..channel.local import Listener

        with Listener() as listener:
            listener.token = b"t" * 32
            child = _start([*command, listener.path])
            inbox = listener.accept(60)
        step = iter(range(1, 1 << 60))
        return child, lambda: inbox.take(next(step))
    if name == "zmq":
        import zmq

        pull = zmq.Context.instance().socket(zmq.PULL)
        pull.bind(address)
        return _start([*command, address]), pull.recv_pyobj
    import base64
    import pickle

    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    child = _start([*command, ""])
    assert child.stdout is not None
    handle = pickle.loads(base64.b64decode(child.stdout.readline()))
    queue = MessageQueue.create_from_handle(handle, 0)
    queue.wait_until_ready()
    return child, lambda: queue.dequeue(indefinite=True)


def _start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def main(size: int = 4000, trips: int = 300, rounds: int = 7) -> None:
    """Print one line per transport."""
    ends = {name: _reader(name, size) for name in NAMES}
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(rounds):
        for name, (child, receive) in ends.items():
            assert child.stdin is not None
            began = time.perf_counter()
            for _ in range(trips):
                os.write(child.stdin.fileno(), b"x")
                receive()
            found[name].append((time.perf_counter() - began) / trips * 1e6)
    for name, (child, receive) in ends.items():
        assert child.stdin is not None
        cpu = time.process_time()
        threading.Timer(1, os.write, [child.stdin.fileno(), b"x"]).start()
        receive()
        cpu = time.process_time() - cpu
        print(f"{name:7s} {statistics.median(found[name]):7.0f} us a round trip of {size} bytes, "
              f"{cpu:.3f} CPU s in 1 s of waiting")
    for child, _ in ends.values():
        child.kill()
        child.wait()


if __name__ == "__main__":  # pragma: no cover
    if sys.argv[1:2] == ["serve"]:
        _serve(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(*map(int, sys.argv[1:2]))
