"""The output rank's way to the driver on one machine: a private Unix stream socket.

The driver listens in a folder of mode 0700, the worker connects and shows a token, and listener,
socket file and folder are removed before the first step: nobody else can connect, and neither
side can leave anything behind however it ends.
"""

from __future__ import annotations

import hmac
import os
import pickle
import secrets
import select
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from .outbox import Failure
from .ticket import StepFailed, checksum, output_requests

PREFIX = "vllm-tpu-async-patch-"
_MAGIC = b"vtap"
_HEADER = struct.Struct("<4sBxHIQ?Q")  # magic, kind, buffers, checksum, step, has checksum, body
_LENGTH = struct.Struct("<Q")
_OUTPUT, _FAILURE = 1, 2
_LIMIT = 1 << 34  # a length beyond this is not ours


class Arrived(NamedTuple):
    """One message: the output (or `Failure`) of a step, and the checksum the worker made."""

    output: Any
    checksum: int | None


class Sender:
    """The worker's end.

    Args:
        path: the driver's socket.
        token: what the driver expects to hear first.

    Raises:
        OSError: the driver cannot be reached from here.
    """

    def __init__(self, path: str, token: bytes) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(path)
            self._socket.sendall(token)
        except OSError:
            self._socket.close()
            raise

    def send(self, step: int, output: Any) -> None:
        """Send one output, or the `Failure` in its place; blocks while the driver reads it.

        Raises:
            OSError: the driver is gone.
        """
        buffers: list[pickle.PickleBuffer] = []
        kind, crc = _OUTPUT, checksum(step, output_requests(output))
        try:
            if isinstance(output, Failure):
                kind, data = _FAILURE, _pickled_failure(output.error)
            else:
                data = pickle.dumps(output, 5, buffer_callback=buffers.append)
        except Exception as error:
            kind, buffers = _FAILURE, []
            data = pickle.dumps(TypeError(f"the output cannot be sent: {error!r}"))
        parts: list[Any] = [memoryview(data), *(b.raw() for b in buffers)]
        lengths = b"".join(_LENGTH.pack(len(part)) for part in parts)
        body = len(lengths) + sum(len(part) for part in parts)
        header = _HEADER.pack(_MAGIC, kind, len(parts), crc or 0, step, crc is not None, body)
        if body < 1 << 16:
            self._socket.sendall(b"".join((header, lengths, *parts)))
            return
        self._socket.sendall(header + lengths)
        for part in parts:  # log-probs are not copied once more
            self._socket.sendall(part)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()


class Listener:
    """The driver's end before the worker is there.  Use as a context manager.

    Attributes:
        path: for the worker to connect to.
        token: for the worker to show.

    Raises:
        OSError: no socket can be made on this machine.
    """

    def __init__(self) -> None:
        _sweep()
        self.token = secrets.token_bytes(32)
        self._folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_base())
        self.path = os.path.join(self._folder, "outputs")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.bind(self.path)
            self._socket.listen(8)
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def accept(self, timeout: float) -> Inbox:
        """The connection of the worker; others are refused.

        Raises:
            TimeoutError: no worker with the token came in time.
        """
        deadline = time.monotonic() + timeout
        while True:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            connection, _ = self._socket.accept()
            connection.settimeout(max(deadline - time.monotonic(), 0.001))
            if _is_ours(connection, self.token):
                return Inbox(connection)
            connection.close()

    def close(self) -> None:
        """Stop listening and remove socket and folder."""
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)


class Inbox:
    """The driver's end: outputs of the output rank, by step.

    Whoever waits first reads for everybody else; there is no thread of its own.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)
        self._frame = _Frame()
        self._arrived: dict[int, Arrived] = {}
        self._abandoned: deque[int] = deque()
        self._changed = threading.Condition()
        self._reading = False
        self._broken: str | None = None

    def take(self, step: int, deadline: float | None = None,
             patience: float = 1.0, watch: Callable[[], None] = lambda: None) -> Arrived:
        """The output of ``step``, once; waits for it.

        Args:
            step: which one.
            deadline: on the clock of `time.monotonic`; None waits as long as it takes.
            patience: seconds without any message after which ``watch`` is called, again and again.
            watch: raises if there is no point in waiting.

        Raises:
            StepFailed: the worker hung up, or what arrived is not a message of ours.
            TimeoutError: nothing came before the deadline.
        """
        while True:
            with self._changed:
                while self._reading and step not in self._arrived and not self._broken:
                    self._wait_for_reader(deadline)
                if step in self._arrived:
                    return self._arrived.pop(step)
                if self._broken:
                    raise StepFailed(self._broken)
                self._reading = True
            try:
                self._read(deadline, patience, watch)
            finally:
                with self._changed:
                    self._reading = False
                    self._changed.notify_all()

    def has(self, step: int) -> bool:
        """Whether `take` would return (or raise) at once.  Does not wait."""
        with self._changed:
            if step not in self._arrived and not self._reading and not self._broken:
                self._drain()
            return step in self._arrived or self._broken is not None

    def abandon(self, step: int) -> None:
        """Nobody will take ``step``.  May be called from a finaliser at any point."""
        self._abandoned.append(step)

    def __len__(self) -> int:
        with self._changed:
            self._forget()
            return len(self._arrived)

    def close(self) -> None:
        """Hang up; whoever waits gets a `StepFailed`."""
        with self._changed:
            self._broken = self._broken or "the executor was shut down"
            self._changed.notify_all()
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        with self._changed:
            # A reader in poll() is woken by the shutdown; the descriptor is closed after it left.
            self._changed.wait_for(lambda: not self._reading, 5)
            self._socket.close()

    def _wait_for_reader(self, deadline: float | None) -> None:
        remaining = None if deadline is None else deadline - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise TimeoutError
        self._changed.wait(remaining)

    def _read(self, deadline: float | None, patience: float, watch: Callable[[], None]) -> None:
        """Wait for at least one message, or the end."""
        quiet = time.monotonic()
        while True:
            with self._changed:
                if self._drain() or self._broken:
                    return
            now = time.monotonic()
            if deadline is not None and now >= deadline:
                raise TimeoutError
            if now - quiet >= patience:
                watch()
                quiet = now
            rest = patience if deadline is None else min(patience, deadline - now)
            self._poll.poll(max(rest * 1000, 1))

    def _drain(self) -> int:
        """File every message that is here; how many."""
        count = 0
        try:
            while (message := self._frame.read(self._socket)) is not None:
                step, arrived = message
                self._arrived[step] = arrived
                count += 1
        except StepFailed as reason:
            self._broken = self._broken or str(reason)
        except OSError as error:
            self._broken = self._broken or f"the output rank cannot be heard: {error}"
        self._forget()
        return count

    def _forget(self) -> None:
        later = []
        while self._abandoned:
            step = self._abandoned.popleft()
            if self._arrived.pop(step, None) is None and not self._broken:
                later.append(step)
        self._abandoned.extend(later)


class _Frame:
    """The message that is being received; picks up where the last read ended."""

    def __init__(self) -> None:
        self._begin(_HEADER.size)
        self._header: tuple[Any, ...] | None = None

    def _begin(self, size: int) -> None:
        self._buffer = bytearray(size)
        self._filled = 0

    def read(self, sock: socket.socket) -> tuple[int, Arrived] | None:
        """The next complete message, or None if the rest is still on its way.

        Raises:
            StepFailed: the other side hung up, or sent what is not ours.
        """
        while True:
            while self._filled < len(self._buffer):
                try:
                    got = sock.recv_into(memoryview(self._buffer)[self._filled:])
                except BlockingIOError:
                    return None
                if got == 0:
                    raise StepFailed("the output rank hung up: its process ended")
                self._filled += got
            if self._header is not None:
                return self._finish()
            self._header = _HEADER.unpack(self._buffer)
            magic, kind, count, *_, body = self._header
            if (magic != _MAGIC or kind not in (_OUTPUT, _FAILURE)
                    or not count * _LENGTH.size <= body <= _LIMIT or not count):
                raise StepFailed("refused a message that is not of this protocol")
            self._begin(body)

    def _finish(self) -> tuple[int, Arrived]:
        assert self._header is not None
        _, kind, count, crc, step, has_checksum, _ = self._header
        body, at = memoryview(self._buffer), count * _LENGTH.size
        parts = []
        for i in range(count):
            (length,) = _LENGTH.unpack_from(body, i * _LENGTH.size)
            parts.append(body[at:at + length])
            at += length
        if at != len(body):
            raise StepFailed("refused a message whose lengths do not add up")
        self._header = None
        self._begin(_HEADER.size)
        try:
            output = pickle.loads(parts[0], buffers=parts[1:])
        except Exception as error:
            # E.g. a class of a package that only the workers have.
            output, kind = StepFailed(f"the output cannot be read here: {error!r}"), _FAILURE
        if kind == _FAILURE:
            output = Failure(output)
        return step, Arrived(output, crc if has_checksum else None)


def _pickled_failure(error: Exception) -> bytes:
    try:
        data = pickle.dumps(error, 5)
        pickle.loads(data)  # some exceptions pickle and cannot be read back
        return data
    except Exception:
        return pickle.dumps(RuntimeError(repr(error)), 5)


def _is_ours(connection: socket.socket, token: bytes) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, _ = struct.unpack("3i", credentials)
    if uid != os.getuid():
        return False
    shown = b""
    try:
        while len(shown) < len(token) and (more := connection.recv(len(token) - len(shown))):
            shown += more
    except OSError:
        return False
    return hmac.compare_digest(shown, token)


def _base() -> str:
    # The path of a Unix socket has room for about 100 bytes.
    folder = tempfile.gettempdir()
    return folder if len(folder) <= 50 else "/tmp"


def _sweep() -> None:
    """Remove folders of processes that were killed in the moment between listen and connect."""
    for name in os.listdir(_base()):
        if not name.startswith(PREFIX):
            continue
        pid = name[len(PREFIX):].partition("-")[0]
        path = os.path.join(_base(), name)
        try:
            if pid.isdigit() and os.stat(path).st_uid == os.getuid() and not os.path.exists(
                    f"/proc/{pid}"):
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue
