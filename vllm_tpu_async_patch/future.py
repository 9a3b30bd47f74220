"""The future of one step on the driver."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class StepFuture(Future):  # type: ignore[type-arg]
    """Result of a step in flight; an honest `concurrent.futures.Future`.

    The engine's own thread receives the output inside ``result()``; there is no polling thread.
    Only whoever needs to be told without asking (a callback registered early, a timed wait,
    `concurrent.futures.wait`) costs one short-lived thread, which receives the output instead.

    Args:
        receive: brings the output back, blocking; called once, by one thread.  What it raises
            becomes the future's exception.
        ready: whether the output is here, without waiting; None if that cannot be known before it
            is received.
        prompt: whether ``receive`` returns at once when ``ready()``.  If not (another worker's
            ticket may be missing), ``done()`` has it received in the background.

    Takes the place of vLLM's ``FutureWrapper`` (v1/executor/ray_utils.py), whose ``result()`` may
    be called only once and whose ``done()`` and callbacks never tell.
    """

    def __init__(self, receive: Callable[[], Any], ready: Callable[[], bool] | None = None,
                 prompt: bool = True) -> None:
        super().__init__()
        self.set_running_or_notify_cancel()  # submitted: cancel() answers False from here on
        self._receive: Callable[[], Any] | None = receive
        self._ready = ready
        self._prompt = prompt
        self._claim = threading.Lock()
        self._waiters = _Waiters(self._receive_in_background)

    def done(self) -> bool:
        """Whether the output is here; does not wait."""
        if not super().done() and self._receive is not None and self._ready is not None:
            if self._ready():
                if self._prompt:
                    self._receive_now()
                else:
                    self._receive_in_background()
        return super().done()

    def result(self, timeout: float | None = None) -> Any:
        """The step's output.  A timeout consumes nothing; any number of calls, from any thread."""
        self._receive_for(timeout)
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """What the step raised, or None; waits as `result` does."""
        self._receive_for(timeout)
        return super().exception(timeout)

    def add_done_callback(self, fn: Callable[[Future[Any]], Any]) -> None:
        """Call ``fn(self)`` once, when the output is here."""
        super().add_done_callback(fn)
        if not self.done():
            self._receive_in_background()

    def _receive_for(self, timeout: float | None) -> None:
        if timeout is None:
            self._receive_now()
        elif not self.done():
            # Here and nowhere else a thread: Ray counts an answer as read when it is asked for
            # with a timeout, also if there was none (CompiledDAGRef.get, Ray 2.60).
            self._receive_in_background()

    def _receive_in_background(self) -> None:
        if self._receive is not None:
            threading.Thread(target=self._receive_now, name="step-future", daemon=True).start()

    def _receive_now(self) -> None:
        with self._claim:
            receive, self._receive = self._receive, None
        if receive is None:
            return  # here already, or on its way in another thread
        try:
            output = receive()
        except BaseException as error:
            self.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            self.set_result(output)


class _Waiters(list):  # type: ignore[type-arg]
    """`concurrent.futures.wait` and `as_completed` announce themselves by appending here."""

    def __init__(self, announced: Callable[[], None]) -> None:
        super().__init__()
        self._announced = announced

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        self._announced()
