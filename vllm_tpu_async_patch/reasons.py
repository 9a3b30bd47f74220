"""Every reason for which something is refused, left alone or turned off, in an operator's words.

One text per reason, so that a log line can be looked up: README.rst lists them all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reason:
    """A text with ``{fields}``, and what an operator can do about it."""

    key: str
    text: str
    cure: str

    def __call__(self, **fields: Any) -> str:
        """The text with its fields filled in."""
        return self.text.format(**fields)


NO_VLLM = Reason(
    "no-vllm", "neither vllm-tpu nor vllm is installed in this interpreter",
    "Install the package into the environment that runs vLLM.")
NO_TPU_INFERENCE = Reason(
    "no-tpu-inference", "tpu-inference is not installed, so vLLM has no TPU platform here",
    "Nothing to do on a machine without TPU; else install the tpu-inference of your vllm-tpu.")
UNKNOWN = Reason(
    "unknown-version", "vLLM {vllm} is not in the compatibility table, nothing is touched",
    "Update this package. VLLM_TPU_ASYNC_PATCH_FORCE=1 applies it where every fact and body hash "
    "agrees with a known release.")
TORCH_XLA = Reason(
    "torch-xla", "this release runs on torch_xla without tpu-inference; there is no executor to "
    "patch", "Move to vllm-tpu 0.12.0 or later.")
SYNC_RUNNER = Reason(
    "synchronous-runner", "the TPU runner of this release has no asynchronous path",
    "Move to vllm-tpu 0.12.0 or later.")
PAIR = Reason(
    "wrong-pair", "vLLM {vllm} is released with tpu-inference {expected}, but {found} is installed",
    "Install the pair named in the compatibility table.")
DRIFT = Reason(
    "drift", "{fact} is not what release {row} has: expected {expected}, found {found}; nothing "
    "is touched",
    "Another tool or a hand-made change has altered vLLM or tpu-inference: reinstall the release, "
    "or remove that tool.")
FORCED_DRIFT = Reason(
    "forced-drift", "vLLM {vllm} is unknown and FORCE does not help: it differs from its nearest "
    "known release {row} in {fact}: expected {expected}, found {found}; nothing is touched",
    "Update this package.")
DISABLED = Reason(
    "disabled", "left out by VLLM_TPU_ASYNC_PATCH_DISABLE", "Remove the name from that variable.")
PIPELINE = Reason(
    "pipeline", "Async scheduling over Ray on TPU does not work with pipeline_parallel_size > 1: "
    "the first step fails on an assertion in the worker",
    "Drop --async-scheduling, or use tensor parallelism over the hosts instead.")
SPECULATION = Reason(
    "speculation", "Async scheduling does not work with speculative decoding on tpu-inference "
    "before 0.21.0: the TPU runner fails on an assertion at the second step",
    "Drop --async-scheduling or the speculative configuration.")
SCHEDULER = Reason(
    "scheduler-class", "the scheduler class {scheduler} is no AsyncScheduler: async scheduling is "
    "on, but each step waits for the one before it",
    "Remove --scheduler-cls, or derive the class from vLLM's AsyncScheduler.")
NOT_RAY = Reason(
    "not-ray", "TPU_MULTIHOST_BACKEND is not 'ray': the TPU platform chooses a single-host "
    "executor, which this package leaves alone", "Set TPU_MULTIHOST_BACKEND=ray for several hosts.")
NOT_TPU = Reason(
    "not-tpu", "the platform is not TPU, so this package leaves vLLM alone",
    "Look at vLLM's log for why the TPU platform was not chosen.")
NOT_REQUESTED = Reason(
    "not-requested", "async scheduling was not asked for; this release's default is off",
    "Add --async-scheduling.")
MADE_WITHOUT_US = Reason(
    "made-without-us", "this engine is patched, but its configuration was made where the patch was "
    "not in place (another process, or earlier in this one): what vLLM alone decided stays",
    "Set VLLM_TPU_ASYNC_PATCH for the process that makes the configuration too (the API server), "
    "or let the patch in earlier; README.rst, 'Other ways in'.")
TURNED_OFF = Reason(
    "turned-off", "vLLM turned async scheduling off while it validated the configuration",
    "Look for the warning that vLLM's log has at that point.")
V2_EXECUTOR = Reason(
    "v2-executor", "RayExecutorV2 is selected (VLLM_USE_RAY_V2_EXECUTOR_BACKEND); its own gate "
    "lets async scheduling through", "Nothing to do.")

REASONS: tuple[Reason, ...] = (
    NO_VLLM, NO_TPU_INFERENCE, UNKNOWN, TORCH_XLA, SYNC_RUNNER, PAIR, DRIFT, FORCED_DRIFT,
    DISABLED, PIPELINE, SPECULATION, SCHEDULER, NOT_RAY, NOT_TPU, NOT_REQUESTED,
    MADE_WITHOUT_US, TURNED_OFF, V2_EXECUTOR)
