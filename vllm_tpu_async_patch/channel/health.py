"""Which worker is dead, or behind: asked only when a step takes long or has failed."""

from __future__ import annotations

import threading
from typing import Any

import ray
from ray.exceptions import RayActorError

from .ticket import StepFailed


class Workers:
    """The actor handles of one engine, in the order of their ranks."""

    def __init__(self, handles: list[Any]) -> None:
        self.handles = handles
        self._asked: dict[int, Any] = {}
        self._lock = threading.Lock()

    def call(self, rank: int, method: str, *args: Any, timeout: float | None = None) -> Any:
        """Call one worker's method and wait.

        Raises:
            TimeoutError: no answer within ``timeout`` seconds.
            Exception: what the method raised, or Ray's reason why the worker is dead.
        """
        ref = self.handles[rank].execute_method.remote(method, *args)
        if timeout is None or timeout == float("inf"):
            return ray.get(ref)
        return ray.get(ref, timeout=max(timeout, 0))

    def where(self, rank: int) -> str:
        """Rank and node, if the node is known."""
        try:
            sizes = self.call(rank, "step_outbox_sizes", timeout=2)
        except Exception:
            return f"rank {rank}"
        return str(sizes.get("where", f"rank {rank}"))

    def watch(self) -> None:
        """Return if every worker is alive, as far as is known; does not wait.

        A question is left with every worker; Ray answers it for a worker that has died.

        Raises:
            StepFailed: a worker is dead.
        """
        with self._lock:
            dead = self._dead(timeout=0)
        if dead:
            raise StepFailed("; ".join(dead))

    def diagnose(self, step: int, timeout: float = 3) -> str:
        """Who is dead, who does not answer and who has not run ``step``; one line."""
        refs = {rank: handle.execute_method.remote("step_outbox_sizes")
                for rank, handle in enumerate(self.handles)}
        try:
            ready, _ = ray.wait(list(refs.values()), num_returns=len(refs), timeout=timeout)
        except Exception as error:
            return f"The workers cannot be asked: {error}"
        found = [self._found(rank, ref, step, ref in ready) for rank, ref in refs.items()]
        return "; ".join(line for line in found if line)

    def _found(self, rank: int, ref: Any, step: int, ready: bool) -> str:
        if not ready:
            return f"rank {rank} does not answer"
        try:
            sizes = ray.get(ref)
        except RayActorError as error:
            return _death(rank, error)
        except Exception as error:
            return f"rank {rank} cannot tell: {error!r}"
        if sizes["steps"] < step:
            return f"{sizes['where']} is at step {sizes['steps']}: did not dispatch step {step}"
        if sizes["unresolved"]:
            return f"{sizes['where']} waits for its device"
        return ""

    def _dead(self, timeout: float) -> list[str]:
        for rank, handle in enumerate(self.handles):
            if rank not in self._asked:
                self._asked[rank] = handle.execute_method.remote("step_outbox_sizes")
        ready, _ = ray.wait(list(self._asked.values()), num_returns=len(self._asked),
                            timeout=timeout)
        dead = []
        for rank in [r for r, ref in self._asked.items() if ref in ready]:
            try:
                ray.get(self._asked.pop(rank))
            except RayActorError as error:
                dead.append(_death(rank, error))
            except Exception:
                continue  # it answered
        return dead


def _death(rank: int, error: RayActorError) -> str:
    return f"rank {rank} is dead: {' '.join(str(error).split())}"
