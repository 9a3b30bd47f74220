"""The driver's half: send a step through the compiled graph, bring its output back."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Collection
from typing import Any

import ray

from .. import envs
from ..future import StepFuture
from .health import Workers
from .outbox import Failure
from .local import Inbox, Listener
from .ticket import (LATER, Report, StepFailed, StepTicket, checksum, decode, encode,
                     scheduled_requests)

logger = logging.getLogger("vllm.vllm_tpu_async_patch.channel")

#: Ray's own limit for one step (vLLM sets it to 300 s); ours covers both phases together.
LIMIT = "RAY_CGRAPH_get_timeout"


#: Ray allows 10 executions whose answers were not read.
_UNREAD = 3


class BytesGraph:
    """A compiled graph whose inputs are pickled by us; see `ticket.encode`."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def execute(self, step_input: Any) -> Any:
        """Send one step; pickled once, and written once for all workers of a node."""
        return self._graph.execute(encode(step_input))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)


class DriverSteps:
    """The steps of one engine.

    Args:
        workers: actor handles in the order of their ranks, the output rank first; each answers
            ``execute_method(name, *args)``.
        mode: how outputs come back, one of `envs.CHANNEL`'s values.

    Raises:
        StepFailed: mode is ``local`` and that is not possible.
    """

    def __init__(self, workers: list[Any], mode: str = "auto") -> None:
        self.workers = Workers(workers)
        self.graph_lock = threading.Lock()  # Ray: one reader at a time
        self.abandoned: deque[int] = deque()
        self.unread: deque[tuple[int, list[list[Any]]]] = deque()
        self._step = 0
        self._begun: tuple[Any, list[Any]] | None = None
        self.inbox = self._open_channel(mode)

    def begin(self, graph: Any, scheduler_output: Any) -> None:
        """Send the forward pass of the next step alone; `submit` sends its sampling."""
        self._begun = (scheduler_output, graph.execute((scheduler_output, LATER)))

    def submit(self, graph: Any, scheduler_output: Any, grammar_output: Any,
               aggregator: Any = None) -> StepFuture:
        """Send a step, or the sampling of the one that was begun.

        Args:
            graph: the compiled graph.
            scheduler_output: what vLLM scheduled.
            grammar_output: the grammar's bitmask, or None.
            aggregator: vLLM's KVOutputAggregator where there is a KV connector.
        """
        if len(self.unread) > _UNREAD:
            with self.graph_lock:
                self.read_unread()
        begun, self._begun = self._begun, None
        forward: list[Any] = []
        if begun is not None and begun[0] is scheduler_output:
            forward = begun[1]
            refs = graph.execute((None, grammar_output))
        else:
            refs = graph.execute((scheduler_output, grammar_output))
        self._step += 1
        step = _StepInFlight(self, self._step, scheduled_requests(scheduler_output),
                             forward, refs, aggregator)
        return StepFuture(step.receive, step.ready if self.inbox is not None else None,
                          prompt=len(self.workers.handles) == 1)

    def read_unread(self, before: float = float("inf")) -> None:
        """Read the tickets that nobody will ask for, of steps below ``before``; under the lock.

        Left to themselves they block in ``CompiledDAGRef.__del__``, and Ray 2.60 keeps the answers
        of all workers but one for ever and then refuses the next step.
        """
        while self.unread and self.unread[0][0] < before:
            _, refs = self.unread.popleft()
            for part in refs:
                try:
                    ray.get(part)
                except Exception as error:
                    logger.debug("[tpu-async-patch] an abandoned step: %s", error)

    def close(self) -> None:
        """Hang up; futures in flight fail."""
        if self.inbox is not None:
            self.inbox.close()

    def _open_channel(self, mode: str) -> Inbox | None:
        if mode == "ray":
            return None
        try:
            with Listener() as listener:
                refused = self.workers.call(0, "open_result_channel", listener.path,
                                            listener.token)
                if refused is not None:
                    raise OSError(refused)
                return listener.accept(timeout=10)
        except Exception as error:
            if mode == "local":
                raise StepFailed(f"{envs.CHANNEL.name}=local, but there is no channel to the "
                                 f"output rank: {error}") from error
            logger.warning("[tpu-async-patch] outputs come back by actor calls, which is slower: "
                           "%s (%s=ray silences this)", error, envs.CHANNEL.name)
            return None


class _StepInFlight:
    """Brings the output of one step back: tickets through the graph, then the output."""

    def __init__(self, steps: DriverSteps, step: int, requests: Collection[str] | None,
                 forward: list[Any], refs: list[Any], aggregator: Any) -> None:
        self.steps = steps
        self.step = step
        self.requests = requests
        self.refs = [forward, refs] if forward else [refs]
        self.aggregator = aggregator
        self.taken = False

    def __del__(self) -> None:
        self._abandon()

    def ready(self) -> bool:
        """Whether the output is here."""
        inbox = self.steps.inbox
        return inbox is not None and inbox.has(self.step)

    def receive(self) -> Any:
        """The step's output.

        Raises:
            StepFailed: naming step, phase and, where known, rank and node.
        """
        started = time.monotonic()
        expected = checksum(self.step, self.requests)
        try:
            tickets = self._tickets(expected)
            output = self._output(started, expected)
        finally:
            self._abandon()
        if self.aggregator is None:
            return output
        reports = [self._report(ticket) for ticket in tickets[1:]]
        return self.aggregator.aggregate([output, *reports], output_rank=0)

    def _abandon(self) -> None:
        if not self.taken:
            self.taken = True
            if self.refs:
                self.steps.unread.append((self.step, self.refs))
            inbox = self.steps.inbox
            (self.steps.abandoned.append if inbox is None else inbox.abandon)(self.step)

    def _tickets(self, expected: int | None) -> list[StepTicket]:
        refs, self.refs = self.refs, []
        tickets: list[StepTicket] = []
        try:
            with self.steps.graph_lock:
                self.steps.read_unread(before=self.step)
                for part in refs:
                    tickets += [decode(t) if isinstance(t, bytes) else t for t in ray.get(part)]
        except Exception as error:
            raise self._failed("graph", error) from error
        workers = len(self.steps.workers.handles)
        for index, ticket in enumerate(tickets):
            self._check(index % workers, ticket, expected)
        return tickets[-workers:]  # a forward pass sent ahead has tickets of its own

    def _check(self, rank: int, ticket: Any, expected: int | None) -> None:
        if not isinstance(ticket, StepTicket):
            raise StepFailed(f"step {self.step} failed in phase graph: rank {rank} answered "
                             f"{ticket!r}; is the same version of this package on every node?")
        if ticket.failure is not None:
            raise StepFailed(ticket.failure)
        if ticket.step != self.step or _differ(ticket.checksum, expected):
            raise StepFailed(
                f"step {self.step} failed in phase graph: rank {ticket.rank} ran step "
                f"{ticket.step} with checksum {ticket.checksum}, expected {expected}; the workers "
                f"are not in step with the driver")

    def _output(self, started: float, expected: int | None) -> Any:
        deadline = started + _limit()
        try:
            if self.steps.inbox is not None:
                output, seen = self.steps.inbox.take(
                    self.step, deadline, watch=self.steps.workers.watch)
            else:
                output, seen = self._fetch(deadline), expected
        except Exception as error:
            raise self._failed("output", error) from error
        self.taken = True
        if isinstance(output, Failure):
            raise StepFailed(f"step {self.step} failed in phase output on "
                             f"{self.steps.workers.where(0)}: {output.error!r}") from output.error
        if _differ(seen, expected):
            raise StepFailed(f"step {self.step} failed in phase output: its output belongs to "
                             f"other requests (checksum {seen}, expected {expected})")
        return output

    def _fetch(self, deadline: float) -> Any:
        abandoned = []
        while self.steps.abandoned:
            abandoned.append(self.steps.abandoned.popleft())
        return self.steps.workers.call(0, "take_step_output", self.step, abandoned,
                                       timeout=deadline - time.monotonic())

    def _report(self, ticket: StepTicket) -> Any:
        report = ticket.report
        if report is Report.IN_OUTPUT:
            try:
                report = self.steps.workers.call(ticket.rank, "take_step_report", self.step,
                                                 timeout=_limit())
            except Exception as error:
                raise self._failed("output", error) from error
        return KVReport(report)

    def _failed(self, phase: str, error: Exception) -> StepFailed:
        reason = " ".join(str(error).split())  # Ray's are long and of many lines
        if isinstance(error, TimeoutError):
            reason = f"nothing for {_limit():g} s; {LIMIT} sets the limit"
        who = self.steps.workers.diagnose(self.step)
        return StepFailed(f"step {self.step} failed in phase {phase}: "
                          + "; ".join(part for part in (who, reason) if part))


class KVReport:
    """All that vLLM's aggregator reads of the outputs of ranks other than the output rank."""

    def __init__(self, kv_connector_output: Any) -> None:
        self.kv_connector_output = kv_connector_output


def _differ(seen: int | None, expected: int | None) -> bool:
    return seen is not None and expected is not None and seen != expected


def _limit() -> float:
    try:
        limit = float(os.environ.get(LIMIT, ""))
    except ValueError:
        return 300.0
    return limit if limit > 0 else float("inf")
