"""A stand-in for a TPU host: executes steps in order, one at a time, without using the CPU."""

from __future__ import annotations

import os
import time
from typing import Any


class Device:
    """A device on the clock alone: a step starts when it is sent and the one before has ended."""

    def __init__(self, step_s: float) -> None:
        self.step_s = step_s
        self._free = 0.0
        self.busy = 0.0
        self.first: float | None = None
        self.cpu_from = time.process_time()

    def launch(self) -> float:
        """Send one step; the time at which the device will be done with it."""
        now = time.perf_counter()
        start = max(now, self._free)
        if self.first is None:
            self.first = start
        self._free = start + self.step_s
        self.busy += self.step_s
        return self._free

    def figures(self) -> dict[str, float]:
        """Busy seconds, the interval they are in, CPU seconds of this process since the reset."""
        span = self._free - self.first if self.first is not None else 0.0
        return {"busy": self.busy, "span": span, "cpu": time.process_time() - self.cpu_from,
                "pid": os.getpid()}

    def reset(self) -> None:
        """Start counting again."""
        self.busy, self.first, self._free = 0.0, None, 0.0
        self.cpu_from = time.process_time()


class Output:
    """What a step gives, as large as a ModelRunnerOutput of that many requests."""

    def __init__(self, request_ids: list[str], step: int) -> None:
        self.req_ids = request_ids
        self.req_id_to_index = {r: i for i, r in enumerate(request_ids)}
        self.sampled_token_ids = [[step] for _ in request_ids]
        self.kv_connector_output = None


class LazyOutput:
    """An output that is there when the device's clock says so."""

    def __init__(self, output: Output, ends: float) -> None:
        self._output, self._ends = output, ends

    def get_output(self) -> Output:
        """Wait for the device."""
        wait_until(self._ends)
        return self._output


class Runner:
    """A model runner on a stand-in device."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._step = 0
        self._scheduled: Any = None

    def execute_model(self, scheduler_output: Any, intermediate_tensors: Any = None) -> None:
        """Remember the step; it is launched when it is sampled."""
        self._scheduled = scheduler_output

    def sample_tokens(self, grammar_output: Any) -> LazyOutput:
        """Launch the step."""
        self._step += 1
        output = Output(list(self._scheduled.num_scheduled_tokens), self._step)
        return LazyOutput(output, self.device.launch())


class Scheduled:
    """What the driver sends for a step, as large as a SchedulerOutput in steady decode."""

    def __init__(self, requests: int, step: int = 0) -> None:
        ids = [f"cmpl-{i:04d}-6f1e2d3c4b5a" for i in range(requests)]
        self.num_scheduled_tokens = dict.fromkeys(ids, 1)
        self.total_num_scheduled_tokens = requests
        self.req_ids = ids
        self.num_computed_tokens = [100 + step] * requests
        self.num_output_tokens = [50 + step] * requests
        self.new_block_ids = [None] * requests
        self.finished_req_ids: set[str] = set()


def wait_until(moment: float) -> None:
    """Sleep until ``time.perf_counter()`` reaches the moment."""
    left = moment - time.perf_counter()
    if left > 0:
        time.sleep(left)
