"""`emulate`: the command's exit code, signals and remains.  The cluster is a stand-in here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from vllm_tpu_async_patch.emulation import nodes

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys, time
from vllm_tpu_async_patch.emulation import run

class Cluster:
    def __init__(self, *args, **options):
        print("asked for", *args, *options.values(), file=sys.stderr)
        self.environment = {**os.environ, "MARK": "inside"}
    def __enter__(self):
        time.sleep(float(os.environ.get("SLOW", 0)))
        return self
    def __exit__(self, *error):
        print("cluster ended", file=sys.stderr, flush=True)
    def take_charge(self, session):
        self.session = session

run.EmulatedCluster = Cluster
run.GRACE = 1.0
sys.exit(run.emulate(sys.argv[1:], 2, 1.5, "rec", 77))
"""


def start(*command: str, **variables: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, **variables, "VLLM_TPU_ASYNC_PATCH": "0", "PYTHONPATH": str(ROOT)}
    # Under nohup, or in a script's background, signals are ignored, and stay so.
    return subprocess.Popen(["env", "--default-signal", sys.executable, "-c", PROGRAM, *command],
                            env=environment, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def finish(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    try:
        output, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, output, errors


def read_until(process: "subprocess.Popen[str]", text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return
    raise AssertionError(f"no {text!r}: {finish(process)}")


@pytest.fixture
def pid_file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "pid"
    yield path
    if path.exists() and (pid := int(path.read_text())) in alive():
        os.kill(pid, signal.SIGKILL)
        raise AssertionError("a process of the command outlived it")


def alive() -> set[int]:
    return {process.pid for process in nodes.processes()}


@pytest.mark.parametrize("command, code", [("exit 0", 0), ("exit 3", 3), ("kill -9 $$", 137),
                                           ("kill -TERM $$", 143)])
def test_the_exit_code_passes(command: str, code: int) -> None:
    found, _, errors = finish(start("sh", "-c", command))
    assert found == code
    assert "asked for 2 1.5 rec 77" in errors
    assert errors.index("starting 2 emulated hosts ...") < errors.index("ready in ")
    assert errors.endswith("cluster ended\n")


def test_the_command_gets_the_clusters_environment_and_our_streams() -> None:
    process = subprocess.run([sys.executable, "-c", PROGRAM, "sh", "-c", "cat; echo $MARK"],
                             input="from us\n", text=True, capture_output=True, check=True,
                             env={**os.environ, "VLLM_TPU_ASYNC_PATCH": "0",
                                  "PYTHONPATH": str(ROOT)})
    assert process.stdout == "from us\ninside\n"


def test_a_missing_command_is_one_line_and_no_cluster(tmp_path: Path) -> None:
    assert finish(start("no-such-command")) == (
        127, "", "[emulate] no-such-command: command not found\n")
    file = tmp_path / "file"
    file.write_text("")
    assert finish(start(str(file))) == (126, "", f"[emulate] {file}: not executable\n")
    assert finish(start()) == (127, "", "[emulate] no command given\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_goes_to_the_command_which_decides(number: int) -> None:
    code = (f"import signal, sys\nsignal.signal({int(number)}, lambda *_: sys.exit(42))\n"
            "print('up', flush=True)\nwhile True: signal.pause()")
    process = start(sys.executable, "-c", code)
    read_until(process, "up")
    process.send_signal(number)
    assert finish(process)[0] == 42


def test_a_command_may_outlive_a_signal() -> None:
    process = start("sh", "-c", "trap 'echo got it; go=1' TERM; echo up; until [ $go ]; do "
                                "sleep 0.1; done; exit 5")
    read_until(process, "up")
    process.terminate()
    assert finish(process)[:2] == (5, "got it\n")


def test_the_commands_default_for_a_signal_is_the_systems() -> None:
    process = start("sh", "-c", "echo up; exec sleep 1000")
    read_until(process, "up")
    process.terminate()
    code, _, errors = finish(process)
    assert code == 143 and errors.endswith("cluster ended\n")


def test_a_signal_before_the_command_ends_the_cluster() -> None:
    process = start("sh", "-c", "echo must not run", SLOW="30")
    assert process.stderr is not None
    while "starting" not in process.stderr.readline():
        pass
    time.sleep(0.3)
    process.terminate()
    code, output, errors = finish(process)
    assert (code, output) == (143, "")


@pytest.mark.parametrize("stubborn", ["", "trap '' TERM; "])
def test_what_the_command_leaves_is_ended(pid_file: Path, stubborn: str) -> None:
    left = f"{stubborn}echo $$ > {pid_file}; while :; do sleep 0.1; done"
    # A job of its own process group as well, as an interactive shell makes them.
    code = (f"set -m; sh -c '{left.replace(chr(39), chr(34))}' >/dev/null 2>&1 & "
            f"until [ -s {pid_file} ]; do sleep 0.05; done; exit 4")
    assert finish(start("sh", "-c", code))[0] == 4
    assert int(pid_file.read_text()) not in alive()
