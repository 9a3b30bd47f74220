"""The worker half: a Ray worker wrapper that dispatches a step without waiting for the device."""

from __future__ import annotations

import socket
from collections.abc import Collection
from typing import Any

from vllm.v1.executor.ray_utils import RayWorkerWrapper

from . import hooks, notes
from .channel.worker import WorkerSteps

# An actor of this class exists because the driver decided so: this process follows, whatever its
# own environment says.
hooks.install()


class TPUAsyncRayWorkerWrapper(RayWorkerWrapper):
    """vLLM's Ray worker wrapper with an asynchronous step.

    Mirrors ``RayWorkerWrapper`` of tpu-inference 0.18.0 (executors/ray_distributed_executor.py).
    With async scheduling off it does what vLLM's does.
    """

    _steps: WorkerSteps | None = None

    def execute_model_ray(self, execute_model_input: Any) -> Any:
        """Run one step; called by the compiled graph, see `WorkerSteps.run`.

        Returns:
            A ticket when async scheduling is on, else what vLLM's wrapper returns.
        """
        if not self._async_scheduling():
            return super().execute_model_ray(execute_model_input)
        self.setup_device_if_necessary()
        return self._worker_steps().run(self.worker.model_runner, execute_model_input)

    def installation_notes(self) -> dict[str, str]:
        """What this worker's process runs, for the driver to compare."""
        return notes.installation()

    def take_step_output(self, step: int, abandoned: Collection[int] = ()) -> Any:
        """The resolved output of a step, once; waits for the device.  Called by the driver."""
        return self._worker_steps().take(step, abandoned)

    def take_step_report(self, step: int) -> Any:
        """The KV report of a step that only the resolved output has.  Called by the driver."""
        return self._worker_steps().take_report(step)

    def open_result_channel(self, path: str, token: bytes) -> str | None:
        """Send outputs to the driver's socket; the reason if that is not possible."""
        return self._worker_steps().open_channel(path, token)

    def step_outbox_sizes(self) -> dict[str, Any]:
        """See `Outbox.sizes`; and which worker this is, for messages."""
        steps = self._worker_steps()
        return {**steps.outbox.sizes(), "where": steps.where}

    def _async_scheduling(self) -> bool:
        assert self.vllm_config is not None, "init_worker() has not been called"
        return bool(self.vllm_config.scheduler_config.async_scheduling)

    def _worker_steps(self) -> WorkerSteps:
        # Made here, not in __init__: the rank is final only after adjust_rank().
        if self._steps is None:
            assert self.vllm_config is not None, "init_worker() has not been called"
            self._steps = WorkerSteps(
                self.rpc_rank, ships=self.rpc_rank == 0,
                reports=self.vllm_config.kv_transfer_config is not None,
                node=socket.gethostname())
        return self._steps
