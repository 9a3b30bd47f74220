"""How a step's output travels: a ticket through the compiled graph, the output when it is ready.

The worker half.  A step is dispatched to the device and its lazy output is put into the `Outbox`;
the graph returns the `StepTicket` at once.  A thread of the outbox resolves the outputs in the
order of their steps, each exactly once, on every host: resolving may have effects that the next
step of that host needs.  On the output rank (on every rank with a KV connector) the resolved
output stays in the outbox until the driver takes it.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from typing import Any, NamedTuple

logger = logging.getLogger("vllm.vllm_tpu_async_patch.channel")


class StepTicket(NamedTuple):
    """What the compiled graph returns for a dispatched step.

    Attributes:
        step: number of the step on this worker, from 1, one more at each dispatch.
        rank: rank of the worker that holds the output.
    """

    step: int
    rank: int


class StepFailed(RuntimeError):
    """A step's output could not be produced or brought back.  The message says which and where."""


class _Failure(NamedTuple):
    error: Exception


class Outbox:
    """Outputs of dispatched steps on one worker, in order, until they are taken.

    Args:
        rank: rank of this worker, for tickets and messages.
        limit: how many resolved outputs are kept for the driver.  The engine has at most two
            steps in flight; outputs beyond the limit belong to futures that nobody will read, and
            the oldest is dropped.

    Mirrors ``RayWorkerWrapper._execute_model_outputs`` of tpu-inference 0.18.0
    (executors/ray_distributed_executor.py), which keeps unresolved outputs without a limit.
    """

    def __init__(self, rank: int, limit: int = 8) -> None:
        self.rank = rank
        self.limit = limit
        self.dropped = 0
        self._step = 0
        self._unresolved: deque[tuple[int, Any, bool]] = deque()
        self._resolving = 0
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._lost: StepFailed | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, output: Any, keep: bool) -> StepTicket:
        """Take over the output of the step that was just dispatched.

        Args:
            output: a ModelRunnerOutput, or a lazy one (anything with ``get_output()``).
            keep: whether the driver will take it from this worker.

        Raises:
            StepFailed: an earlier output that nobody takes from this rank could not be resolved.
        """
        with self._changed:
            if self._lost is not None:
                raise self._lost
            self._step += 1
            self._unresolved.append((self._step, output, keep))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._resolve_forever, name="step-outputs", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            return StepTicket(self._step, self.rank)

    def take(self, step: int, timeout: float | None = None) -> Any:
        """The output of ``step``, waiting for the device if need be; it leaves the outbox.

        Raises:
            StepFailed: the step is unknown, was dropped, or was taken before.
            TimeoutError: it was not ready within ``timeout`` seconds; it stays.
            Exception: whatever ``get_output()`` raised.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._pending(step), timeout):
                raise TimeoutError(f"step {step} is not ready on rank {self.rank} "
                                   f"after {timeout} s")
            if step not in self._kept:
                raise StepFailed(
                    f"step {step} has no output on rank {self.rank} (steps so far: {self._step}, "
                    f"kept: {list(self._kept)}, dropped unread: {self.dropped})")
            output = self._kept.pop(step)
        if isinstance(output, _Failure):
            raise output.error
        return output

    def sizes(self) -> dict[str, int]:
        """Counters: steps so far, outputs not resolved yet, outputs kept, outputs dropped unread."""
        with self._changed:
            return {"rank": self.rank, "steps": self._step,
                    "unresolved": len(self._unresolved) + bool(self._resolving),
                    "kept": len(self._kept), "dropped": self.dropped}

    def _pending(self, step: int) -> bool:
        return self._resolving == step or any(s == step for s, _, _ in self._unresolved)

    def _resolve_forever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unresolved)
                self._resolving, output, keep = self._unresolved.popleft()
            resolved = _resolve(output)
            del output
            with self._changed:
                self._file(self._resolving, resolved, keep)
                self._resolving = 0
                self._changed.notify_all()
            del resolved

    def _file(self, step: int, resolved: Any, keep: bool) -> None:
        if keep:
            self._kept[step] = resolved
            while len(self._kept) > self.limit:
                self._kept.popitem(last=False)
                self.dropped += 1
        elif isinstance(resolved, _Failure):
            self._lost = StepFailed(f"step {step}: the output could not be resolved on rank "
                                    f"{self.rank}: {resolved.error!r}")
            self._lost.__cause__ = resolved.error


def _resolve(output: Any) -> Any:
    get_output = getattr(output, "get_output", None)
    if get_output is None:
        return output
    try:
        return get_output()
    except Exception as error:
        logger.exception("[tpu-async-patch] an output could not be resolved")
        return _Failure(error)
