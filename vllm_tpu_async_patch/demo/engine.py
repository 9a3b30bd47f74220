"""One mode of the demo, in a process of its own: ``python -m vllm_tpu_async_patch.demo.engine TASK``.

TASK is a JSON object with ``model``, ``hosts``, ``requests``, ``max_tokens``, ``args`` (for
``LLM``) and ``result`` (the file to write).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main(task: dict[str, Any]) -> None:
    """Generate twice, a warm pass and a measured one, and write what came out."""
    from vllm import LLM, SamplingParams

    llm = LLM(task["model"], skip_tokenizer_init=True, tensor_parallel_size=task["hosts"],
              dtype="float32", max_model_len=256, max_num_seqs=8, max_num_batched_tokens=64,
              enforce_eager=True, enable_prefix_caching=False, **task["args"])
    prompts = [{"prompt_token_ids": [3, 4, 5, 6 + i]} for i in range(task["requests"])]
    sampling = SamplingParams(temperature=0, max_tokens=task["max_tokens"], detokenize=False,
                              ignore_eos=True)
    llm.generate(prompts, sampling, use_tqdm=False)  # compiles
    began = time.monotonic()
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    ended = time.monotonic()
    config = llm.llm_engine.vllm_config
    executor = config.parallel_config.distributed_executor_backend
    with open(task["result"], "w") as file:
        json.dump({
            "executor": f"{executor.__module__.split('.')[0]}.{executor.__qualname__}",
            "async_scheduling": bool(config.scheduler_config.async_scheduling),
            "began": began,
            "ended": ended,
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
        }, file)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
