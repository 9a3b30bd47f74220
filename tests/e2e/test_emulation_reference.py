"""The emulation is right, not only consistent with itself: against transformers' own Llama."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vllm_tpu_async_patch.emulation.cluster import EmulatedCluster
from vllm_tpu_async_patch.emulation.device import read_record

pytest.importorskip("vllm", reason="needs vllm-tpu")

pytestmark = pytest.mark.e2e

GENERATED = 16
#: One that is a decode at once, some that fit a step, some that need several.
LENGTHS = (1, 2, 5, 9, 23, 40, 70)
STEP_TOKENS = 16
DEVICE_MS = 15.0
#: Between the best token's logit and the second best's, at every place.  In float32 the two
#: implementations differ by some 1e-5.
MARGIN = 0.05

REFERENCE = """
import json, random, sys
import torch
from transformers import LlamaForCausalLM

task = json.loads(sys.argv[1])
model = LlamaForCausalLM.from_pretrained(task["model"], dtype=torch.float32).eval()

@torch.no_grad()
def greedy(prompt):
    tokens, margins, logprobs = list(prompt), [], []
    for _ in range(task["generated"]):
        logits = model(torch.tensor([tokens])).logits[0, -1]
        best = logits.topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        logprobs.append(float(logits.log_softmax(-1).max()))
        tokens.append(int(best.indices[0]))
    return {"prompt": prompt, "tokens": tokens[len(prompt):], "margin": min(margins),
            "logprobs": logprobs}

draw, answers = random.Random(7), []
for length in task["lengths"]:
    candidates = (greedy([draw.randrange(3, 512) for _ in range(length)]) for _ in range(50))
    answers.append(next(a for a in candidates if a["margin"] > task["margin"]))
json.dump(answers, open(task["result"], "w"))
"""

ENGINE = """
import json, sys
from vllm import LLM, SamplingParams

task = json.loads(sys.argv[1])
llm = LLM(task["model"], skip_tokenizer_init=True, dtype="float32", max_model_len=256,
          max_num_seqs=8, max_num_batched_tokens=task["step_tokens"], enforce_eager=True,
          enable_prefix_caching=False, tensor_parallel_size=task["hosts"])
outputs = llm.generate([{"prompt_token_ids": p} for p in task["prompts"]], SamplingParams(
    temperature=0, max_tokens=task["generated"], ignore_eos=True, detokenize=False, logprobs=1),
    use_tqdm=False)
json.dump([{"tokens": list(o.outputs[0].token_ids),
            "logprobs": [place[token].logprob for place, token in
                         zip(o.outputs[0].logprobs, o.outputs[0].token_ids)]}
           for o in outputs], open(task["result"], "w"))
"""


def run(program: str, environment: dict[str, str], folder: Path, **task: Any) -> Any:
    result = folder / "result.json"
    done = subprocess.run([sys.executable, "-c", program, json.dumps({
        **task, "result": str(result), "generated": GENERATED})], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-5000:]
    return json.loads(result.read_text())


@pytest.fixture(scope="module")
def reference(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    answers = run(REFERENCE, dict(os.environ), tmp_path_factory.mktemp("reference"),
                  model=tiny_model, lengths=LENGTHS, margin=MARGIN)
    assert [len(a["prompt"]) for a in answers] == list(LENGTHS)
    assert all(a["margin"] > MARGIN for a in answers)
    assert len({tuple(a["tokens"]) for a in answers}) == len(LENGTHS)
    return answers


@pytest.mark.parametrize("hosts", [pytest.param(1, marks=pytest.mark.e2e_all), 2])
def test_the_tokens_are_those_of_transformers(tiny_model: str, tmp_path: Path, hosts: int,
                                              reference: list[dict[str, Any]]) -> None:
    # The releases that we pin do not run on two hosts without the patch that this repository is.
    toggle = {"VLLM_TPU_ASYNC_PATCH": "0" if hosts == 1 else "1"}
    record = tmp_path / "record"
    with EmulatedCluster(hosts, DEVICE_MS, record=str(record), env=toggle) as cluster:
        answers = run(ENGINE, cluster.environment, tmp_path, model=tiny_model, hosts=hosts,
                      prompts=[a["prompt"] for a in reference], step_tokens=STEP_TOKENS)

    assert [a["tokens"] for a in answers] == [r["tokens"] for r in reference]
    for answer, expected in zip(answers, reference):
        assert answer["logprobs"] == pytest.approx(expected["logprobs"], abs=1e-3)

    intervals = [read_record(str(record), host) for host in range(hosts)]
    # Every token of every prompt once, and every generated one but the last.
    scheduled = sum(LENGTHS) + len(LENGTHS) * (GENERATED - 1)
    for of_host in intervals:
        assert [i.step for i in of_host] == list(range(1, len(of_host) + 1))
        assert sum(i.tokens for i in of_host) == scheduled
        # In chunks, and several requests at once.
        assert max(i.tokens for i in of_host) == STEP_TOKENS
        assert len(of_host) < sum(LENGTHS)
        assert all(i.end - i.start >= DEVICE_MS / 1000 - 1e-9 for i in of_host)
        assert all(a.end <= b.start for a, b in zip(of_host, of_host[1:]))
    assert len({len(of_host) for of_host in intervals}) == 1
