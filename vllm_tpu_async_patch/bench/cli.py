"""``vllm-tpu-async-patch bench overhead`` and ``bench sweep``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

DEVICE_MS = (0, 1, 2, 4, 8, 16)
WORKERS = (1, 2, 4)


def add_parser(commands: Any) -> None:
    """Add ``bench`` with its subcommands."""
    bench = commands.add_parser("bench", help="what a step costs on this machine, without a TPU")
    kinds = bench.add_subparsers(dest="kind", required=True)
    overhead = kinds.add_parser("overhead", help="one setting, all strategies")
    overhead.add_argument("--workers", type=_positive, default=1, metavar="N")
    overhead.add_argument("--device-ms", type=_time, default=6.0, metavar="D")
    overhead.set_defaults(run=_overhead)
    sweep = kinds.add_parser("sweep", help="over device times and workers; draws the curve")
    sweep.add_argument("--svg", default="bench-sweep.svg", metavar="FILE")
    sweep.set_defaults(run=_sweep)
    for parser in (overhead, sweep):
        parser.add_argument("--host-ms", type=_time, default=2.0, metavar="H",
                            help="scheduling work of the driver per step")
        parser.add_argument("--steps", type=_positive, default=300, metavar="S")
        parser.add_argument("--rounds", type=_positive, default=5, metavar="R")
        parser.add_argument("--strategies", default="", metavar="A,B,...",
                            help="default: all that can run here")
        parser.add_argument("--json", metavar="FILE", help="write the figures there")


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _time(text: str) -> float:
    value = float(text)
    if not 0 <= value < 60_000:
        raise argparse.ArgumentTypeError("must be from 0 to 60000 ms")
    return value


def _names(chosen: str) -> list[str]:
    import importlib.util

    from .strategies import DEFAULT, STRATEGIES

    names = [n for n in chosen.split(",") if n] or list(DEFAULT)
    unknown = [n for n in names if n not in STRATEGIES]
    if unknown:
        raise SystemExit(f"unknown strategy {unknown[0]}; there are {', '.join(STRATEGIES)}")
    if not chosen and importlib.util.find_spec("vllm") is None:
        print("vLLM is not installed: without mq", file=sys.stderr)
        names.remove("mq")
    return names


@contextlib.contextmanager
def local_ray() -> Iterator[None]:
    """A Ray of our own on the loopback address, gone afterwards."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_CGRAPH_get_timeout", "300")
    os.environ.setdefault("VLLM_CONFIGURE_LOGGING", "0")  # vLLM would log to stdout
    os.environ["VLLM_PLUGINS"] = ""  # vLLM is here for its queue alone
    import ray

    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH")) if p)
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR",
             log_to_driver=False, _node_ip_address="127.0.0.1",
             runtime_env={"env_vars": {"PYTHONPATH": path, "VLLM_TPU_ASYNC_PATCH": "0",
                                       "VLLM_PLUGINS": "", "VLLM_CONFIGURE_LOGGING": "0"}})
    try:
        yield
    finally:
        ray.shutdown()


def _without_ray() -> bool:
    import importlib.util

    if importlib.util.find_spec("ray") is not None:
        return False
    print("Ray is not installed; pip install 'vllm-tpu-async-patch[demo]'", file=sys.stderr)
    return True


def _overhead(args: argparse.Namespace) -> int:
    if _without_ray():
        return 1
    from .measure import Setting, measure

    setting = Setting(args.workers, args.device_ms, args.host_ms, args.steps, args.rounds)
    names = _names(args.strategies)
    with local_ray():
        found = measure(names, setting)
    print(table(found))
    return _write(args.json, found)


def _sweep(args: argparse.Namespace) -> int:
    if _without_ray():
        return 1
    from .measure import Setting, measure
    from .plot import svg

    names, found = _names(args.strategies), []
    with local_ray():
        for workers in WORKERS:
            for device_ms in DEVICE_MS:
                setting = Setting(workers, device_ms, args.host_ms, args.steps, args.rounds)
                print(f"{workers} workers, device {device_ms} ms", file=sys.stderr)
                found.append(measure(names, setting, progress=False))
                print(table(found[-1]), end="\n\n", flush=True)
    with open(args.svg, "w", encoding="utf-8") as file:
        file.write(svg(found))
    print(f"wrote {args.svg}", file=sys.stderr)
    return _write(args.json, found)


def _write(path: str | None, found: Any) -> int:
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    return 0


def table(found: dict[str, Any]) -> str:
    """The figures of one setting, for people."""
    lines = [f"workers {found['workers']}, device {found['device_ms']:g} ms, "
             f"host {found['host_ms']:g} ms, {found['requests']} requests, "
             f"load {found['load']:.1f}",
             f"{'strategy':<12}{'ms/step':>9}{'device busy':>13}{'driver CPU ms':>15}"
             f"{'worker CPU ms':>15}{'bytes/step':>12}"]
    for name, row in found["strategies"].items():
        busy = f"{row['device_busy']:.1%}" if found["device_ms"] else "-"
        lines.append(f"{name:<12}{row['ms_per_step']:>9.3f}{busy:>13}{row['driver_cpu_ms']:>15.3f}"
                     f"{row['worker_cpu_ms']:>15.3f}{row['bytes_per_step']:>12}")
    return "\n".join(lines)
