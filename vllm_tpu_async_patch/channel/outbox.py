"""The outputs of dispatched steps on one worker, until the device is done with them."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from .ticket import StepFailed

logger = logging.getLogger("vllm.vllm_tpu_async_patch.channel")


class Failure(NamedTuple):
    """What took the place of an output that could not be resolved."""

    error: Exception


class Outbox:
    """Outputs of dispatched steps on one worker, in order, until they are taken or sent.

    A thread resolves the outputs in the order of their steps, each exactly once, on every host:
    resolving may have effects that the next step of that host needs.

    Args:
        rank: rank of this worker, for messages.
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
        self.lost: str | None = None
        self._last = 0
        self._unresolved: deque[tuple[int, Any, bool]] = deque()
        self._resolving = 0
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._push: Callable[[int, Any], None] | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def push_to(self, push: Callable[[int, Any], None]) -> None:
        """From now on call ``push(step, output or Failure)`` instead of keeping outputs."""
        with self._changed:
            self._push = push

    def put(self, step: int, output: Any, keep: bool) -> None:
        """Take over the output of a step that was just dispatched.

        Args:
            step: its number; higher than the one before.
            output: a ModelRunnerOutput, or a lazy one (anything with ``get_output()``).
            keep: whether the driver wants it from this worker.  If not, a failure to resolve it
                is noted in ``lost``.
        """
        with self._changed:
            self._last = step
            self._unresolved.append((step, output, keep))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._resolve_forever, name="step-outputs", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def take(self, step: int, timeout: float | None = None,
             abandoned: Collection[int] = ()) -> Any:
        """The output of ``step``, waiting for the device if need be; it leaves the outbox.

        Args:
            step: which one.
            timeout: seconds; None waits as long as it takes.
            abandoned: steps whose outputs nobody will take.

        Raises:
            StepFailed: the step is unknown, was dropped, or was taken before.
            TimeoutError: it was not ready within ``timeout`` seconds; it stays.
            Exception: whatever ``get_output()`` raised.
        """
        with self._changed:
            for other in abandoned:
                self._kept.pop(other, None)
            if not self._changed.wait_for(lambda: not self._pending(step), timeout):
                raise TimeoutError(f"step {step} is not ready on rank {self.rank} "
                                   f"after {timeout} s")
            if step not in self._kept:
                raise StepFailed(
                    f"step {step} has no output on rank {self.rank} (steps so far: {self._last}, "
                    f"kept: {list(self._kept)}, dropped unread: {self.dropped})")
            output = self._kept.pop(step)
        if isinstance(output, Failure):
            raise output.error
        return output

    def sizes(self) -> dict[str, int]:
        """Counters: steps so far, outputs not resolved yet, outputs kept, outputs dropped unread."""
        with self._changed:
            return {"rank": self.rank, "steps": self._last,
                    "unresolved": len(self._unresolved) + bool(self._resolving),
                    "kept": len(self._kept), "dropped": self.dropped}

    def settle(self, timeout: float) -> bool:
        """Wait until every output is resolved; False if that took longer."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._unresolved and not self._resolving, timeout)

    def _pending(self, step: int) -> bool:
        return self._resolving == step or any(s == step for s, _, _ in self._unresolved)

    def _resolve_forever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._unresolved)
                self._resolving, output, keep = self._unresolved.popleft()
                step, push = self._resolving, self._push
            resolved = _resolve(output)
            del output
            if keep and push is not None:
                push(step, resolved)
            with self._changed:
                if keep and push is None:
                    self._keep(step, resolved)
                elif isinstance(resolved, Failure) and not keep:
                    self.lost = (f"step {step} failed in phase output on rank {self.rank}: "
                                 f"{resolved.error!r}")
                self._resolving = 0
                self._changed.notify_all()
            del resolved

    def _keep(self, step: int, resolved: Any) -> None:
        self._kept[step] = resolved
        while len(self._kept) > self.limit:
            self._kept.popitem(last=False)
            self.dropped += 1


def _resolve(output: Any) -> Any:
    get_output = getattr(output, "get_output", None)
    if get_output is None:
        return output
    try:
        return get_output()
    except Exception as error:
        logger.exception("[tpu-async-patch] an output could not be resolved")
        return Failure(error)
