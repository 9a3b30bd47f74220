"""The demo: one workload on emulated TPU hosts, three ways, and whether the tokens agree.

Each mode runs the real vllm-tpu in a process and an emulated cluster of its own (`engine` is what
runs there), so that no mode can profit from, or be hurt by, what another left behind.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .. import envs
from ..emulation.cluster import EmulatedCluster
from ..emulation.device import busy, read_record
from ..emulation.model import write_tiny_model
from ..patches import PATCHES
from ..patches.host_rank import HOST_RANK

#: Mode -> whether the patch is on, and what LLM(...) and the process get.
MODES: dict[str, dict[str, Any]] = {
    "sync": {"patched": False, "args": {"async_scheduling": False}, "in_process": False},
    # Unpatched, an engine-core process would refuse async scheduling at its second validation.
    "stock-async": {"patched": False, "args": {"async_scheduling": True}, "in_process": True},
    "patched": {"patched": True, "args": {"async_scheduling": True,
                                          "distributed_executor_backend": "ray"},
                "in_process": False},
}

_SHOWN_LINES = 25


@dataclass
class Run:
    """What one mode did.  `seconds` and `device_busy` are of the measured pass, warm."""

    mode: str
    executor: str
    async_scheduling: bool
    requests: int
    output_tokens: int
    seconds: float
    steps: int
    device_busy: float
    tokens_sha256: str


class DemoFailed(Exception):
    """A mode did not finish; the message holds the last lines of its process."""


def missing_packages() -> list[str]:
    """Distributions that the demo needs and that are not installed."""
    missing = []
    for names in (("vllm-tpu", "vllm"), ("tpu-inference",), ("ray",)):
        if all(_version(name) is None for name in names):
            missing.append(names[0])
    return missing


def run_demo(hosts: int, requests: int, max_tokens: int, device_ms: float) -> dict[str, Any]:
    """Run every mode; returns the report in the shape of ``--json``.

    Args:
        hosts: emulated TPU hosts; the model is split over them (tensor parallel).
        requests: prompts in the batch.
        max_tokens: tokens generated for each.
        device_ms: time for which one forward pass occupies the emulated device.

    Raises:
        DemoFailed: a mode failed.
    """
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(prefix="vtap-demo-") as folder:
        model = Path(folder, "model")
        write_tiny_model(str(model))
        for number, mode in enumerate(MODES, 1):
            say(f"{mode} ({number}/{len(MODES)}): starting {hosts} emulated host(s) and the engine, "
                f"about half a minute")
            run = _run_mode(mode, Path(folder), str(model), hosts, requests, max_tokens, device_ms)
            say(f"{mode}: {run.output_tokens} tokens in {run.seconds:.1f} s, device busy "
                f"{run.device_busy:.1%}")
            runs.append(run)
    return {
        "vllm": _version("vllm-tpu") or _version("vllm"),
        "tpu_inference": _version("tpu-inference"),
        "ray": _version("ray"),
        "jax": _version("jax"),
        "hosts": hosts,
        "device_ms": device_ms,
        "identical": len({run.tokens_sha256 for run in runs}) == 1,
        "runs": [asdict(run) for run in runs],
    }


def table(report: dict[str, Any]) -> str:
    """The report as text."""
    header = ("mode", "executor", "async", "requests", "tokens", "seconds", "tokens/s", "steps",
              "device busy")
    rows = [header] + [
        (r["mode"], r["executor"], "on" if r["async_scheduling"] else "off", str(r["requests"]),
         str(r["output_tokens"]), f"{r['seconds']:.2f}",
         f"{r['output_tokens'] / r['seconds']:.1f}", str(r["steps"]), f"{r['device_busy']:.1%}")
        for r in report["runs"]]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = [f"vllm-tpu {report['vllm']}, tpu-inference {report['tpu_inference']}, ray "
             f"{report['ray']}, jax {report['jax']}; {report['hosts']} emulated host(s), "
             f"{report['device_ms']:g} ms a forward pass", ""]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
              for row in rows]
    lines.append("")
    if report["hosts"] > 1:
        lines.append(f"sync and stock-async run with the patch `{HOST_RANK.name}` alone: without "
                     f"it this release does not run on more than one host")
    lines.append(f"tokens identical: {'yes' if report['identical'] else 'NO'}")
    return "\n".join(lines)


def say(text: str) -> None:
    """One line of progress on stderr."""
    print(f"[demo] {text}", file=sys.stderr, flush=True)


def _run_mode(mode: str, folder: Path, model: str, hosts: int, requests: int, max_tokens: int,
              device_ms: float) -> Run:
    record, result = folder / f"{mode}-record", folder / f"{mode}.json"
    record.mkdir()
    task = {"model": model, "hosts": hosts, "requests": requests, "max_tokens": max_tokens,
            "result": str(result), "args": MODES[mode]["args"]}
    toggles = _toggles(MODES[mode]["patched"], hosts)
    with EmulatedCluster(hosts, device_ms, record=str(record), env=toggles) as cluster:
        environment = {**cluster.environment, **toggles}
        if MODES[mode]["in_process"]:
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        _run_child(mode, task, environment, folder / f"{mode}.log", cluster)
        done = json.loads(result.read_text())
        intervals = [i for i in read_record(str(record), host=0)
                     if done["began"] <= i.start <= done["ended"]]
    digest = hashlib.sha256(json.dumps(done["tokens"]).encode()).hexdigest()
    return Run(mode, done["executor"], done["async_scheduling"], len(done["tokens"]),
               sum(map(len, done["tokens"])), done["ended"] - done["began"], len(intervals),
               busy(intervals), digest)


def _toggles(patched: bool, hosts: int) -> dict[str, str]:
    if patched:
        return {envs.TOGGLE.name: "1", envs.DISABLE.name: ""}
    if hosts == 1:
        return {envs.TOGGLE.name: "0"}
    others = ",".join(p.name for p in PATCHES if p is not HOST_RANK)
    return {envs.TOGGLE.name: "1", envs.DISABLE.name: others}


def _run_child(mode: str, task: dict[str, Any], environment: dict[str, str], log: Path,
               cluster: EmulatedCluster) -> None:
    command = [sys.executable, "-m", f"{__name__}.engine", json.dumps(task)]
    with log.open("w") as output:
        child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                 stderr=subprocess.STDOUT, start_new_session=True)
        # The engine core is a child of the child; the whole session ends with the cluster.
        cluster.take_charge(child.pid)
        code = child.wait()
    if code != 0:
        lines = log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
        raise DemoFailed(f"mode {mode} ended with exit code {code}; its last lines:\n"
                         + "\n".join(lines))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
