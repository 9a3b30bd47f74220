"""Run by test_gate in a process with one release on its path: build real configs, print outcomes.

Prints one line of JSON: {"unpatched": {cell: outcome}, "patched": ..., "removed": ..., "status": ...}.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import sys
from pathlib import Path
from unittest import mock

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256,
    "intermediate_size": 512, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 128,
    "num_hidden_layers": 2, "vocab_size": 512, "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2}

OUR_NAME = "vllm_tpu_async_patch.executor.TPUAsyncRayExecutor"
TPU_NAME = "tpu_inference.executors.ray_distributed_executor.RayDistributedExecutor"

BACKENDS = ("none", "ray", "serve", "mp", "tpu-class", "tpu-name", "our-name", "other-ray-class")
ASYNC = (None, True, False)
HOSTS = ("ray", "")


def cells(short: bool) -> list[tuple[str, bool | None, int, str, str]]:
    """(backend, async, pipeline stages, speculation, multihost backend)."""
    full = [c for c in itertools.product(BACKENDS, ASYNC, (1, 2), ("-",), HOSTS)
            if c[0] != "serve" or c[2] == 1]
    full += itertools.product(("none", "ray"), ASYNC, (1,), ("ngram", "eagle"), HOSTS)
    return [c for c in full if c[4] == "ray" and c[2] == 1] if short else full


def name(cell: tuple) -> str:
    """The cell as a key of JSON: backend/async/PP/speculation/hosts."""
    backend, flag, stages, spec, hosts = cell
    word = {None: "auto", True: "on", False: "off"}[flag]
    return f"{backend}/{word}/pp{stages}/{spec}/{hosts or 'single'}"


def build(model: str, cell: tuple) -> list:
    """[effective, executor] or [error class, message] of one real create_engine_config()."""
    from vllm.engine.arg_utils import EngineArgs

    backend, flag, stages, spec, hosts = cell
    os.environ.pop("TPU_MULTIHOST_BACKEND", None)
    if hosts:
        os.environ["TPU_MULTIHOST_BACKEND"] = hosts
    arguments: dict = {"model": model, "max_model_len": 64, "pipeline_parallel_size": stages}
    if flag is not None:
        arguments["async_scheduling"] = flag
    with contextlib.ExitStack() as stack:
        if backend == "serve":
            from ray.util.placement_group import PlacementGroup

            # As in Ray Serve: no backend is named, the process is inside a placement group.
            arguments["tensor_parallel_size"] = 2
            group = object.__new__(PlacementGroup)
            for path, stand_in in (("ray.is_initialized", True),
                                   ("ray.util.get_current_placement_group", group),
                                   ("ray.get_runtime_context", mock.Mock(runtime_env=None))):
                stack.enter_context(mock.patch(path, return_value=stand_in))
        elif backend == "tpu-class":
            from tpu_inference.executors import ray_distributed_executor as module

            executor = module.RayDistributedExecutor
            # Patched, the module's name is ours; whoever imported it earlier has the stock class.
            arguments["distributed_executor_backend"] = (
                executor if executor.__module__ == module.__name__ else executor.__mro__[1])
        elif backend == "other-ray-class":
            from vllm.v1.executor.ray_executor import RayDistributedExecutor

            arguments["distributed_executor_backend"] = type(
                "Other", (RayDistributedExecutor,), {"__module__": __name__})
        elif backend != "none":
            arguments["distributed_executor_backend"] = {
                "tpu-name": TPU_NAME, "our-name": OUR_NAME}.get(backend, backend)
        if spec == "ngram":
            arguments["speculative_config"] = {
                "method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
        elif spec == "eagle":
            arguments["speculative_config"] = {
                "method": "eagle", "model": model, "num_speculative_tokens": 1}
        try:
            config = EngineArgs(**arguments).create_engine_config()
            # The engine core validates once more, with the platform's executor in place.
            first = config.scheduler_config.async_scheduling
            config.__post_init__()
        except Exception as error:
            return [type(error).__name__, str(error).partition(" [type=")[0]]
    chosen = config.parallel_config.distributed_executor_backend
    chosen = chosen if isinstance(chosen, str) else f"{chosen.__module__}.{chosen.__qualname__}"
    assert first == config.scheduler_config.async_scheduling
    return [first, chosen]


def main() -> None:
    """argv: directory for the model's config, and `short` for the TPU-over-Ray cells alone."""
    logging.disable(logging.CRITICAL)
    directory = Path(sys.argv[1])
    (directory / "config.json").write_text(json.dumps(CONFIG))
    selected = cells("short" in sys.argv[2:])
    answer: dict = {}

    def run(phase: str, some: list) -> None:
        answer[phase] = {name(cell): build(str(directory), cell) for cell in some}

    os.environ["VLLM_TPU_ASYNC_PATCH"] = "0"
    run("unpatched", selected)
    os.environ["VLLM_TPU_ASYNC_PATCH"] = "1"
    import vllm_tpu_async_patch

    vllm_tpu_async_patch.apply()
    run("patched", selected)
    answer["status"] = vllm_tpu_async_patch.status()
    vllm_tpu_async_patch.remove()
    os.environ["VLLM_TPU_ASYNC_PATCH"] = "0"
    run("removed", selected[::5])
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
