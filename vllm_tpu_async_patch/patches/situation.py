"""Where a patched function finds itself: is this vLLM on TPU hosts, over Ray?"""

from __future__ import annotations

from typing import Any

TPU_PLATFORM = "tpu_inference.platforms.tpu_platform"
TPU_EXECUTOR = "tpu_inference.executors.ray_distributed_executor"
#: vLLM's name, from 0.18.0 on, for the class method with which an executor answers.
ANSWER = "supports_async_scheduling"


def on_tpu() -> bool:
    """Whether vLLM's platform is tpu-inference's."""
    from vllm.platforms import current_platform

    return any(cls.__module__ == TPU_PLATFORM for cls in type(current_platform).__mro__)


def ray_hosts() -> bool:
    """Whether tpu-inference is told that the hosts are connected by Ray."""
    from tpu_inference import envs

    try:
        return bool(envs.TPU_MULTIHOST_BACKEND == "ray")
    except ValueError:
        return False  # a value that tpu-inference does not know: it says so itself, later


def over_ray() -> bool:
    """Whether the TPU platform will put its Ray executor in place of whatever was asked for."""
    return on_tpu() and ray_hosts()


def executor_supports(executor: Any) -> bool:
    """What an executor says of itself; whatever a host framework put in its place may say nothing."""
    answer = getattr(executor, ANSWER, None)
    return bool(answer()) if callable(answer) else False
