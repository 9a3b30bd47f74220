"""The worker half: a Ray worker wrapper that dispatches a step without waiting for the device."""

from __future__ import annotations

from typing import Any

from vllm.v1.executor.ray_utils import RayWorkerWrapper

from . import hooks
from .channel import Outbox, StepTicket

# An actor of this class exists because the driver decided so: this process follows, whatever its
# own environment says.
hooks.install()


class TPUAsyncRayWorkerWrapper(RayWorkerWrapper):
    """vLLM's Ray worker wrapper with an asynchronous step.

    Mirrors ``RayWorkerWrapper`` of tpu-inference 0.18.0 (executors/ray_distributed_executor.py).
    With async scheduling off it does what vLLM's does.
    """

    _outbox: Outbox | None = None

    def execute_model_ray(self, execute_model_input: tuple[Any, ...]) -> Any:
        """Run one step; called by the compiled graph with ``(scheduler_output, grammar_output)``.

        Returns:
            A `StepTicket` when async scheduling is on, else what vLLM's wrapper returns.
        """
        if not self._async_scheduling():
            return super().execute_model_ray(execute_model_input)
        self.setup_device_if_necessary()
        scheduler_output, grammar_output = execute_model_input
        runner = self.worker.model_runner
        output = runner.execute_model(scheduler_output, None)
        if output is None:
            output = runner.sample_tokens(grammar_output)
        return self._step_outbox().put(output, keep=self._driver_takes_output())

    def take_step_output(self, step: int) -> Any:
        """The resolved output of a step, once; waits for the device.  Called by the driver."""
        return self._step_outbox().take(step)

    def step_outbox_sizes(self) -> dict[str, int]:
        """See `Outbox.sizes`."""
        return self._step_outbox().sizes()

    def _async_scheduling(self) -> bool:
        assert self.vllm_config is not None, "init_worker() has not been called"
        return bool(self.vllm_config.scheduler_config.async_scheduling)

    def _driver_takes_output(self) -> bool:
        assert self.vllm_config is not None
        return self.rpc_rank == 0 or self.vllm_config.kv_transfer_config is not None

    def _step_outbox(self) -> Outbox:
        # Made here, not in __init__: the rank is final only after adjust_rank().
        if self._outbox is None:
            self._outbox = Outbox(self.rpc_rank)
        return self._outbox


__all__ = ["StepTicket", "TPUAsyncRayWorkerWrapper"]
