"""The private socket between output rank and driver."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from vllm_tpu_async_patch.channel import StepFailed
from vllm_tpu_async_patch.channel import local
from vllm_tpu_async_patch.channel.local import Listener, Sender
from vllm_tpu_async_patch.channel.outbox import Failure
from vllm_tpu_async_patch.channel.ticket import checksum

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "_base", lambda: str(tmp_path))
    return tmp_path


@pytest.fixture
def ends():
    with Listener() as listener:
        sender = Sender(listener.path, listener.token)
        inbox = listener.accept(10)
    yield sender, inbox
    sender.close()
    inbox.close()


def soon(seconds=30.0):
    return time.monotonic() + seconds


def test_folder_and_socket_are_private_and_gone_after_the_worker_connected(folder):
    with Listener() as listener:
        made = os.stat(os.path.dirname(listener.path))
        assert stat.S_IMODE(made.st_mode) == 0o700 and made.st_uid == os.getuid()
        Sender(listener.path, listener.token)
        listener.accept(10)
    assert not os.listdir(folder)


def test_nothing_is_left_when_no_worker_comes(folder):
    with pytest.raises(TimeoutError), Listener() as listener:
        listener.accept(0.01)
    assert not os.listdir(folder)


def test_a_folder_of_a_killed_process_is_swept_and_a_living_one_is_not(folder):
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                           capture_output=True, text=True)
    dead = folder / f"{local.PREFIX}{child.stdout.strip()}-x"
    alive = folder / f"{local.PREFIX}{os.getppid()}-x"
    other = folder / "somebody-elses"
    for made in (dead, alive, other):
        made.mkdir()
    Listener().close()
    assert not dead.exists() and alive.exists() and other.exists()


def test_outputs_arrive_by_step_each_once(ends):
    sender, inbox = ends
    for step in (1, 2, 3):
        sender.send(step, SimpleNamespace(req_ids=[f"r{step}"]))
    assert [inbox.take(s, soon()).output.req_ids for s in (3, 1, 2)] == [["r3"], ["r1"], ["r2"]]
    assert len(inbox) == 0
    with pytest.raises(TimeoutError):
        inbox.take(2, soon(0.01))


def test_the_checksum_is_of_the_requests_in_the_output(ends):
    sender, inbox = ends
    sender.send(5, SimpleNamespace(req_ids=["a", "b"]))
    sender.send(6, "no requests known")
    assert inbox.take(5, soon()).checksum == checksum(5, ["b", "a"])
    assert inbox.take(6, soon()).checksum is None


def test_a_failure_arrives_as_a_failure(ends):
    sender, inbox = ends

    class OnlyHere(Exception):
        pass

    sender.send(1, Failure(ValueError("boom")))
    sender.send(2, Failure(OnlyHere("strange")))
    sender.send(3, threading.Lock())
    errors = [inbox.take(step, soon()).output.error for step in (1, 2, 3)]
    assert isinstance(errors[0], ValueError)
    assert "OnlyHere('strange')" in str(errors[1])
    assert "cannot be sent" in str(errors[2]) and "lock" in str(errors[2])


def test_several_megabytes_do_not_stall(ends):
    numpy = pytest.importorskip("numpy")
    sender, inbox = ends
    big = {"logprobs": numpy.arange(3_000_000, dtype=numpy.float32), "tokens": list(range(1000))}
    thread = threading.Thread(target=lambda: [sender.send(s, big) for s in range(5)], daemon=True)
    thread.start()
    for step in range(5):
        got = inbox.take(step, soon()).output
        assert (got["logprobs"] == big["logprobs"]).all() and got["tokens"] == big["tokens"]
        got["logprobs"][0] = 1  # the engine may write to it
    thread.join(30)
    assert not thread.is_alive()


def test_has_does_not_wait_and_takes_nothing(ends):
    sender, inbox = ends
    assert not inbox.has(1)
    sender.send(1, "output")
    while not inbox.has(1):
        time.sleep(0.001)
    assert inbox.has(1) and inbox.take(1, soon()).output == "output"
    assert not inbox.has(1)


def test_two_threads_wait_for_different_steps(ends):
    sender, inbox = ends
    got = {}

    def wait(step):
        got[step] = inbox.take(step, soon()).output

    threads = [threading.Thread(target=wait, args=(s,), daemon=True) for s in (2, 1)]
    for thread in threads:
        thread.start()
    sender.send(1, "one")
    threads[1].join(30)  # not held up by the one that waits for step 2
    assert got == {1: "one"}
    sender.send(2, "two")
    threads[0].join(30)
    assert got == {1: "one", 2: "two"}


def test_abandoned_outputs_are_thrown_away_before_and_after_they_come(ends):
    sender, inbox = ends
    sender.send(1, "one")
    assert inbox.has(1) or inbox.take(1, soon())
    inbox.abandon(1)
    inbox.abandon(2)
    sender.send(2, "two")
    sender.send(3, "three")
    assert inbox.take(3, soon()).output == "three"
    assert len(inbox) == 0


def test_a_closed_worker_is_told_at_once_and_what_it_sent_before_is_kept(ends):
    sender, inbox = ends
    sender.send(1, "last words")
    sender.close()
    assert inbox.take(1, soon()).output == "last words"
    with pytest.raises(StepFailed, match="hung up"):
        inbox.take(2)
    assert inbox.has(2)  # asking would not wait


def test_a_killed_worker_is_told_at_once():
    code = ("import sys, time; from vllm_tpu_async_patch.channel.local import Sender; "
            "s = Sender(sys.argv[1], bytes.fromhex(sys.argv[2])); print('there', flush=True); "
            "time.sleep(600)")
    with Listener() as listener:
        child = subprocess.Popen([sys.executable, "-c", code, listener.path, listener.token.hex()],
                                 stdout=subprocess.PIPE)
        assert child.stdout.readline()
        inbox = listener.accept(10)
    threading.Timer(0.1, child.send_signal, [signal.SIGKILL]).start()
    with pytest.raises(StepFailed, match="hung up"):
        inbox.take(1)
    child.wait()


def test_whoever_has_not_the_token_is_refused(folder):
    with Listener() as listener:
        Sender(listener.path, b"x" * 32)
        Sender(listener.path, listener.token)
        inbox = listener.accept(10)
    assert len(inbox) == 0


@pytest.mark.parametrize("message", [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + b" " * 50,
    local._HEADER.pack(b"vtap", 9, 1, 0, 1, False, 8),  # unknown kind
    local._HEADER.pack(b"vtap", 1, 1, 0, 1, False, 1 << 60),  # absurd length
    local._HEADER.pack(b"vtap", 1, 1, 0, 1, False, 9) + b"\xff" * 9,  # lengths disagree
])
def test_a_message_that_is_not_ours_is_refused(ends, message):
    sender, inbox = ends
    sender._socket.sendall(message)
    with pytest.raises(StepFailed, match="refused"):
        inbox.take(1, soon())


def test_what_cannot_be_read_here_fails_its_own_step_only(ends):
    sender, inbox = ends
    data = pickle.dumps("x")[:-1]
    sender._socket.sendall(local._HEADER.pack(b"vtap", 1, 1, 0, 1, False, 8 + len(data))
                           + local._LENGTH.pack(len(data)) + data)
    sender.send(2, "fine")
    assert "cannot be read here" in str(inbox.take(1, soon()).output.error)
    assert inbox.take(2, soon()).output == "fine"


def test_close_wakes_whoever_waits(ends):
    _, inbox = ends
    threading.Timer(0.1, inbox.close).start()
    with pytest.raises(StepFailed, match="shut down"):
        inbox.take(1)


def test_watch_is_called_only_while_nothing_comes(ends):
    sender, inbox = ends
    calls = []

    def watch():
        calls.append(1)
        if len(calls) == 3:
            raise StepFailed("rank 2 is dead")

    with pytest.raises(StepFailed, match="rank 2 is dead"):
        inbox.take(1, patience=0.01, watch=watch)
    sender.send(2, "output")
    assert inbox.take(2, patience=30, watch=watch).output == "output" and len(calls) == 3


def test_no_network_address(ends):
    sender, inbox = ends
    assert sender._socket.family == inbox._socket.family == socket.AF_UNIX
