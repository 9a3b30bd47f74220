"""Run a command among emulated TPU hosts, as it would run on a TPU pod."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

from . import nodes
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
                return signals.run(command, cluster)
        except _Interrupted as interrupted:
            return 128 + interrupted.number


def _say(text: str) -> None:
    print(f"[emulate] {text}", file=sys.stderr, flush=True)


class _Interrupted(BaseException):
    """A signal came before there was a command to give it to."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class _Signals:
    """Takes the signals that would end us: one that comes before the command ends us in an orderly
    way, others go to the command, and once that is over we are about to end anyway."""

    def __init__(self) -> None:
        self._command: subprocess.Popen | None = None
        self._starting = self._over = False
        self._pending: list[int] = []
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
        if self._over:
            return
        if self._command is not None:
            _forward(number, self._command)
        elif self._starting:
            self._pending.append(number)
        else:
            self._over = True
            raise _Interrupted(number)

    def run(self, command: list[str], cluster: EmulatedCluster) -> int:
        environment = cluster.environment
        self._starting = True
        # Its own session: what it leaves behind can be found, and ended, as such.
        self._command = subprocess.Popen(command, env=environment, start_new_session=True)
        session = self._command.pid
        try:
            cluster.take_charge(session)
            for number in self._pending:
                _forward(number, self._command)
            code = self._command.wait()
        finally:
            self._over = True
            # Politely first.
            if not nodes.end(lambda: nodes.in_session(session), signal.SIGTERM, GRACE):
                nodes.end(lambda: nodes.in_session(session))
        return 128 - code if code < 0 else code


def _forward(number: int, command: subprocess.Popen) -> None:
    try:
        if number == signal.SIGINT:  # as a terminal does: to every process of the command
            os.killpg(command.pid, number)
        else:
            command.send_signal(number)
    except ProcessLookupError:
        pass
