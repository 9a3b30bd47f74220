"""The emulated device's clock, and the record of when the device was busy.

A forward pass on a TPU costs the host its dispatch only; here the CPU computes it, so overlap of
host and device could not be seen.  The clock restores it: once it is computed, each forward pass
occupies the device for a given time, in order, one at a time, and what it samples cannot be read
before that time has passed.  That time costs no CPU, and dispatch never waits.  The computing
itself is work of the host: it may overlap with the device's time for the steps before.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Interval(NamedTuple):
    """One forward pass on one device.  Times in seconds of `time.monotonic`, one machine's."""

    host: int
    pid: int
    step: int
    start: float
    end: float
    tokens: int


def read_record(directory: str, host: int | None = None) -> list[Interval]:
    """What the devices (or one host's) have done so far, in order of time.

    May be called while they write: a line that is not complete yet is left out.
    """
    found = []
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        if not name.endswith(".jsonl"):
            continue
        with open(os.path.join(directory, name), encoding="ascii") as lines:
            found += [Interval(**json.loads(line)) for line in lines if line.endswith("\n")]
    return sorted((i for i in found if host is None or i.host == host), key=lambda i: i.start)


def busy(intervals: Iterable[Interval]) -> float:
    """The share of the time from the first start to the last end in which a device was busy."""
    ordered = sorted(intervals, key=lambda i: i.start)
    if not ordered:
        return 0.0
    worked, until = 0.0, ordered[0].start
    for interval in ordered:
        worked += max(0.0, interval.end - max(until, interval.start))
        until = max(until, interval.end)
    span = until - ordered[0].start
    return worked / span if span else 0.0


class Step:
    """A forward pass: submitted now, on the device from `start` to `end`, once these are known."""

    def __init__(self, number: int, tokens: int):
        self.number, self.tokens = number, tokens
        self.submitted = time.monotonic()
        self.start = self.end = 0.0
        self._known = threading.Event()

    def settle(self, start: float, end: float) -> None:
        self.start, self.end = start, end
        self._known.set()

    def over(self) -> bool:
        """Whether the device has done it.  Does not wait."""
        return self._known.is_set() and time.monotonic() >= self.end

    def wait(self) -> None:
        """Sleep until the device has done it."""
        self._known.wait()
        while (left := self.end - time.monotonic()) > 0:
            time.sleep(left)


class DeviceClock:
    """The device of this process: takes steps in the order of their dispatch, one at a time."""

    def __init__(self, device_ms: float = 0.0, record: str | None = None, host: int = 0,
                 ready: Callable[[Any], object] | None = None):
        """
        Args:
            device_ms: the time a step occupies the device; 0 for as long as the CPU computes it.
            record: folder for the record; None keeps none.
            host: this host's number, for the record.
            ready: waits until a step's results have been computed; `jax.block_until_ready`
                unless given.
        """
        self.device_ms = device_ms
        self.last: Step | None = None
        self._seconds = device_ms / 1000
        self._host = host
        self._ready = ready
        self._record = record
        self._file: int | None = None
        self._count = 0
        self._submitted: queue.SimpleQueue[tuple[Step, Any]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def dispatch(self, tokens: int, forward: Callable[[], Any],
                 computed: Callable[[Any], Any] = lambda results: results) -> Any:
        """Run `forward` as the next step and return its results without waiting for the device.

        Args:
            tokens: how many tokens are scheduled, for the record.
            forward: dispatches the computation.
            computed: picks the part of the results that tells when the computation is over.
        """
        self._count += 1
        step = Step(self._count, tokens)
        results = forward()
        self.last = step
        self._submitted.put((step, computed(results)))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="emulated-device", daemon=True)
            self._thread.start()
        return results

    def _run(self) -> None:
        """Note for each step when it starts and ends.  Waits for computation, not for the clock:
        the readers do that, each for its own step."""
        free = 0.0
        while True:
            step, results = self._submitted.get()
            try:
                self._wait_ready(results)
            except Exception:
                pass  # a computation that failed is over as well; its reader gets the exception
            del results
            computed = time.monotonic()
            start = max(computed if self._seconds else step.submitted, free)
            free = max(start + self._seconds, computed)
            step.settle(start, free)
            self._write(step)

    def _wait_ready(self, results: Any) -> None:
        if self._ready is None:
            from jax import block_until_ready

            self._ready = block_until_ready
        self._ready(results)

    def _write(self, step: Step) -> None:
        if self._record is None:
            return
        if self._file is None:
            os.makedirs(self._record, exist_ok=True)
            name = os.path.join(self._record, f"host{self._host}-{os.getpid()}.jsonl")
            self._file = os.open(name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        interval = Interval(self._host, os.getpid(), step.number, step.start, step.end, step.tokens)
        os.write(self._file, (json.dumps(interval._asdict()) + "\n").encode("ascii"))


class Gate:
    """Arrays that cannot be read before their step is over, however they are read."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[weakref.ref, Step]] = {}

    def hold(self, arrays: Any, step: Step) -> Any:
        """Hold back the arrays of a tree, and return it."""
        import jax

        for array in jax.tree.leaves(arrays):
            if isinstance(array, jax.Array) and not isinstance(array, jax.core.Tracer):
                key = id(array)
                gone = weakref.ref(array, lambda _, key=key: self._held.pop(key, None))
                self._held[key] = (gone, step)
        return arrays

    def step(self, array: Any) -> Step | None:
        held = self._held.get(id(array))
        return held[1] if held and held[0]() is array else None

    def install(self) -> None:
        """Make JAX's arrays respect the gate.

        Every way from a `jax.Array` to the host passes its ``_value`` (`jax.device_get`,
        ``tolist``, ``int``), except NumPy's view of a CPU array's memory, which takes none:
        what was sampled is always fetched with `jax.device_get` first.
        """
        from jax._src.array import ArrayImpl

        value, block, ready = ArrayImpl._value, ArrayImpl.block_until_ready, ArrayImpl.is_ready

        def wait(array: Any) -> None:
            step = self.step(array)
            if step is not None:
                step.wait()

        def _value(array: Any) -> Any:
            wait(array)
            return value.fget(array)

        def block_until_ready(array: Any) -> Any:
            wait(array)
            return block(array)

        def is_ready(array: Any) -> bool:
            step = self.step(array)
            return (step is None or step.over()) and ready(array)

        ArrayImpl._value = property(_value)
        ArrayImpl.block_until_ready = block_until_ready
        ArrayImpl.is_ready = is_ready
