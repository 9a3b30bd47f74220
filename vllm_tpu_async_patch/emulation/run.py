"""Run a command among emulated TPU hosts, as it would run on a TPU pod."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from collections.abc import Iterator

from .cluster import EmulatedCluster

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE = 10.0


def emulate(command: list[str], hosts: int = 1, device_ms: float = 0.0, record: str | None = None,
            port: int | None = None) -> int:
    """Start emulated hosts, run the command on the first, end both.

    Does not switch the patch on or off: that is the caller's, through the environment.

    Args:
        command: program and arguments.
        hosts, device_ms, record, port: see `EmulatedCluster`.

    Returns:
        The command's exit code; 128 + n if signal n ended it, or us before it ran; 127 if
        there is no such command, 126 if it cannot be run.
    """
    if not command:
        _say("no command given")
        return 127
    if shutil.which(command[0]) is None:
        found = os.path.dirname(command[0]) and os.path.exists(command[0])
        _say(f"{command[0]}: {'not executable' if found else 'command not found'}")
        return 126 if found else 127
    with _Signals() as signals:
        try:
            began = time.monotonic()
            what = "1 emulated host" if hosts == 1 else f"{hosts} emulated hosts"
            _say(f"starting {what} ...")
            with EmulatedCluster(hosts, device_ms, record, port=port) as cluster:
                _say(f"ready in {time.monotonic() - began:.1f} s")
                return signals.run(command, {**os.environ, **cluster.environment})
        except _Interrupted as interrupted:
            return 128 + interrupted.number


def _say(text: str) -> None:
    print(f"[emulate] {text}", file=sys.stderr, flush=True)


class _Interrupted(BaseException):
    """A signal came while no command was running."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class _Signals:
    """Hands the signals that end us to the command; raises `_Interrupted` while there is none."""

    def __init__(self) -> None:
        self._process: subprocess.Popen | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> "_Signals":
        if threading.current_thread() is threading.main_thread():
            # Those that the caller ignores (nohup) stay ignored, by the command too.
            self._previous = {number: signal.signal(number, self._handle) for number in FORWARDED
                              if signal.getsignal(number) is not signal.SIG_IGN}
        return self

    def __exit__(self, *_: object) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def _handle(self, number: int, frame: object) -> None:
        if self._process is None:
            raise _Interrupted(number)
        try:
            if number == signal.SIGINT:  # as a terminal does: to every process of the command
                os.killpg(self._process.pid, number)
            else:
                self._process.send_signal(number)
        except ProcessLookupError:
            pass

    def run(self, command: list[str], environment: dict[str, str]) -> int:
        with self._held():
            # Its own session: what it leaves behind can be found, and ended, as a group.
            self._process = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            code = self._process.wait()
        finally:
            with self._held():
                _end_group(self._process)
                self._process = None
        return 128 - code if code < 0 else code

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Signals wait meanwhile."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, self._previous)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_group(process: subprocess.Popen) -> None:
    """End what is left of the command's process group: politely, then not."""
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        deadline = time.monotonic() + patience
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.02)
        except ProcessLookupError:
            return
