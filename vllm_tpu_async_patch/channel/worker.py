"""The worker's half: dispatch a step without waiting for the device, answer with a ticket."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Collection
from typing import Any

from .outbox import Failure, Outbox
from .local import Sender
from .ticket import (LATER, Report, StepFailed, StepTicket, checksum, decode, encode,
                     scheduled_requests)

logger = logging.getLogger("vllm.vllm_tpu_async_patch.channel")


class WorkerSteps:
    """One worker's steps.

    Args:
        rank: rank of this worker.
        ships: whether the driver gets the outputs of this rank (the output rank).
        reports: whether there is a KV connector, whose report of this host must reach the driver.
        node: name of this machine, for messages.

    Mirrors ``RayWorkerWrapper`` of tpu-inference 0.18.0 (executors/ray_distributed_executor.py).
    """

    def __init__(self, rank: int, ships: bool, reports: bool = False, node: str = "") -> None:
        self.rank = rank
        self.ships = ships
        self.reports = reports
        self.where = f"rank {rank}" + (f" (node {node})" if node else "")
        self.outbox = Outbox(rank)
        self._step = 0
        self._begun: tuple[Any, Any] | None = None
        self._sender: Sender | None = None

    def run(self, runner: Any, step_input: Any) -> Any:
        """Run one step, or one half of it; called by the compiled graph.

        Args:
            runner: the model runner.
            step_input: ``(scheduler_output, grammar_output)``, ``(scheduler_output, LATER)`` for
                a forward pass whose sampling follows, ``(None, grammar_output)`` for that
                sampling; or the bytes of one of these.

        Returns:
            A `StepTicket`, in bytes if the input was.  It never raises: an exception would make
            Ray drop the answers of the other workers, and with them which rank has failed.
        """
        if isinstance(step_input, bytes):
            return encode(self._run(runner, decode(step_input)))
        return self._run(runner, step_input)

    def take(self, step: int, abandoned: Collection[int] = ()) -> Any:
        """The resolved output of a step, once; waits for the device."""
        return self.outbox.take(step, abandoned=abandoned)

    def take_report(self, step: int) -> Any:
        """Only the KV report of a step whose output had to be resolved for it."""
        return getattr(self.outbox.take(step), "kv_connector_output", None)

    def open_channel(self, path: str, token: bytes) -> str | None:
        """Send outputs to the driver's socket from now on.

        Returns:
            Why that is not possible; None if it is.
        """
        try:
            self._sender = Sender(path, token)
        except OSError as error:
            return f"{self.where} cannot reach the driver's socket: {error}"
        self.outbox.push_to(self._send)
        return None

    def _run(self, runner: Any, step_input: tuple[Any, Any]) -> StepTicket:
        scheduler_output, grammar_output = step_input
        if grammar_output is LATER:
            return self._forward(runner, scheduler_output)
        self._step += 1
        try:
            if scheduler_output is None:
                scheduler_output, output = self._second_half()
            else:
                output = runner.execute_model(scheduler_output, None)
            if output is None:
                output = runner.sample_tokens(grammar_output)
        except Exception as error:
            return self._failed(error)
        return self._dispatched(scheduler_output, output)

    def _forward(self, runner: Any, scheduler_output: Any) -> StepTicket:
        step = self._step + 1
        try:
            self._begun = (scheduler_output, runner.execute_model(scheduler_output, None))
        except Exception as error:
            return StepTicket(step, self.rank, failure=self._describe(step, error))
        return StepTicket(step, self.rank, checksum(step, scheduled_requests(scheduler_output)))

    def _second_half(self) -> tuple[Any, Any]:
        begun, self._begun = self._begun, None
        if begun is None:
            raise StepFailed("sampling was asked for without a forward pass that succeeded")
        return begun

    def _dispatched(self, scheduler_output: Any, output: Any) -> StepTicket:
        step, report, lost = self._step, None, self.outbox.lost
        if self.reports:
            report = _report(output)
        self.outbox.put(step, output, keep=self.ships or report is Report.IN_OUTPUT)
        return StepTicket(step, self.rank, checksum(step, scheduled_requests(scheduler_output)),
                          report, lost)

    def _failed(self, error: Exception) -> StepTicket:
        if self.ships:  # one output for every step, whatever happens
            self.outbox.put(self._step, Failure(error), keep=True)
        return StepTicket(self._step, self.rank, failure=self._describe(self._step, error))

    def _describe(self, step: int, error: Exception) -> str:
        logger.exception("[tpu-async-patch] step %d failed on rank %d", step, self.rank)
        return (f"step {step} failed in phase graph on {self.where}: {error!r}\n"
                + "".join(traceback.format_exception(error)))

    def _send(self, step: int, output: Any) -> None:
        if self._sender is None:
            return
        try:
            self._sender.send(step, output)
        except OSError as error:
            logger.warning("[tpu-async-patch] the driver is gone, outputs are dropped: %s", error)
            self._sender.close()
            self._sender = None


def _report(output: Any) -> Any:
    """The KV report of an output, known at dispatch.

    ``AsyncTPUModelRunnerOutput`` (tpu-inference 0.12 to 0.32, runner/tpu_runner.py) holds the
    output that it will complete in ``_model_runner_output``.
    """
    if hasattr(output, "get_output"):
        output = getattr(output, "_model_runner_output", None)
        if not hasattr(output, "kv_connector_output"):
            return Report.IN_OUTPUT
    return getattr(output, "kv_connector_output", None)
