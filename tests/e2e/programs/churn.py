"""Many requests through one engine, some aborted on the way; what the finished ones generated.

TASK: model, args (for LLM), requests, abort_every (0: none), result.
"""

from __future__ import annotations

import json
import random
import sys
import time

from vllm import LLM, SamplingParams

task = json.loads(sys.argv[1])
llm = LLM(task["model"], skip_tokenizer_init=True, dtype="float32", max_model_len=256,
          max_num_seqs=8, max_num_batched_tokens=64, enforce_eager=True,
          enable_prefix_caching=False, **task["args"])
engine = llm.llm_engine
shapes = random.Random(1)
todo = [(str(i), [shapes.randrange(3, 500) for _ in range(shapes.randrange(1, 40))],
         shapes.randrange(1, 14)) for i in range(task["requests"])]
# The choice of what is aborted, and when, must not depend on the mode.
doomed = {str(i): i % 3 + 1 for i in range(0, task["requests"], task["abort_every"])
          } if task["abort_every"] else {}
finished: dict[str, list[int]] = {}
steps_alive: dict[str, int] = {}
queue = list(reversed(todo))
while queue or engine.has_unfinished_requests():
    while queue and engine.get_num_unfinished_requests() < 24:
        name, prompt, length = queue.pop()
        engine.add_request(name, {"prompt_token_ids": prompt}, SamplingParams(
            temperature=0, max_tokens=length, detokenize=False, ignore_eos=True))
        steps_alive[name] = 0
    for output in engine.step():
        if output.finished:
            finished[output.request_id] = list(output.outputs[0].token_ids)
            steps_alive.pop(output.request_id, None)
    for name in list(steps_alive):
        steps_alive[name] += 1
        if steps_alive[name] == doomed.get(name):
            engine.abort_request([name])
            del steps_alive[name]
config = llm.llm_engine.vllm_config
sizes = None
if config.scheduler_config.async_scheduling:
    # The engine core may still be reading its last step, which only says what has finished.
    for _ in range(100):
        sizes = llm.collective_rpc("step_outbox_sizes")
        if not any(s["kept"] or s["unresolved"] for s in sizes):
            break
        time.sleep(0.1)
with open(task["result"], "w") as file:
    json.dump({"finished": finished, "outbox": sizes,
               "async": config.scheduler_config.async_scheduling,
               "executor": config.parallel_config.distributed_executor_backend.__qualname__}, file)
