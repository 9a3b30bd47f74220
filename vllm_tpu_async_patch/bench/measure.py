"""Measuring: rounds of all strategies in turn, so that noise of the machine hits them alike."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import deque
from typing import Any, NamedTuple

from .device import Scheduled
from .strategies import Strategy


class Setting(NamedTuple):
    """What is measured.  Times in milliseconds."""

    workers: int = 1
    device_ms: float = 0.0
    host_ms: float = 0.0
    steps: int = 300
    rounds: int = 5
    requests: int = 64


def spin(seconds: float) -> None:
    """Host work: use the CPU."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def loop(strategy: Strategy, setting: Setting, steps: int) -> None:
    """Schedule, send, receive in the order of vLLM's ``EngineCore.step_with_batch_queue``."""
    in_flight: deque[Any] = deque()
    sent = received = 0
    scheduled = Scheduled(setting.requests)
    while received < steps:
        if sent < steps:
            spin(setting.host_ms / 1e3)
            in_flight.append(strategy.send((scheduled, None)))
            sent += 1
            if len(in_flight) < strategy.depth:
                continue
        strategy.receive(in_flight.popleft())
        received += 1


def one_round(strategy: Strategy, setting: Setting) -> dict[str, float]:
    """Figures of one round; the first steps are not counted."""
    import ray

    loop(strategy, setting, 20)
    ray.get([w.reset.remote() for w in strategy.workers])
    cpu, began = time.process_time(), time.perf_counter()
    loop(strategy, setting, setting.steps)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    figures = ray.get([w.figures.remote() for w in strategy.workers])
    busy = figures[0]["busy"] / figures[0]["span"] if setting.device_ms else 0.0
    return {
        "ms_per_step": seconds / setting.steps * 1e3,
        "device_busy": busy,
        "driver_cpu_ms": cpu / setting.steps * 1e3,
        "worker_cpu_ms": statistics.mean(f["cpu"] for f in figures) / setting.steps * 1e3,
    }


def measure(names: list[str], setting: Setting, progress: bool = True) -> dict[str, Any]:
    """Median over rounds per strategy, and the rounds themselves."""
    from .strategies import STRATEGIES

    running: dict[str, Strategy] = {}
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    try:
        for number in range(setting.rounds):
            for name in names:
                # Workers of one strategy must not disturb another's: a queue reader spins.
                running[name] = STRATEGIES[name](setting.workers, setting.device_ms / 1e3)
                rounds[name].append(one_round(running[name], setting))
                running.pop(name).stop()
                if progress:
                    print(f"round {number + 1}/{setting.rounds} {name}: "
                          f"{rounds[name][-1]['ms_per_step']:.3f} ms per step", file=sys.stderr)
    finally:
        for strategy in running.values():
            strategy.stop()
    sizes = step_bytes(setting)
    return {
        "workers": setting.workers, "device_ms": setting.device_ms, "host_ms": setting.host_ms,
        "steps": setting.steps, "requests": setting.requests, "load": os.getloadavg()[0],
        "strategies": {
            name: {**{key: statistics.median(r[key] for r in found) for key in found[0]},
                   "bytes_per_step": sizes.get(name, 0), "rounds": found}
            for name, found in rounds.items()},
    }


def step_bytes(setting: Setting) -> dict[str, int]:
    """Bytes that cross process borders per step: inputs, answers and outputs, all workers."""
    import pickle

    from ..channel.ticket import StepTicket, encode
    from .device import Output

    n = setting.workers
    scheduled = Scheduled(setting.requests)
    sent = len(encode((scheduled, None)))
    output = len(pickle.dumps(Output(list(scheduled.num_scheduled_tokens), 1), 5))
    ticket = len(encode(StepTicket(1, 0, 1 << 31)))
    waits = sent + n * output
    return {"sync": waits, "stock-async": waits, "fetch": sent + n * (output + 9),
            "mq": sent + output, "patched": sent + output + n * ticket,
            "patched-ray": sent + output + n * ticket}
