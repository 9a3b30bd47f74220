"""`vllm serve --async-scheduling` over Ray, as an operator starts it."""

from __future__ import annotations

from pathlib import Path

import pytest

from .harness import OFF, ON, serve

pytestmark = pytest.mark.e2e

PROMPTS = [[3, 4, 5, 6 + i] for i in range(3)] + [list(range(10, 100))]
REFUSAL = "Currently, async scheduling only supports `mp`, `uni`, or `external_launcher`"


def test_unpatched_the_engine_core_dies_at_start_up(tiny_model: str, tmp_path: Path) -> None:
    with serve(tiny_model, ["--async-scheduling"], OFF, tmp_path) as server:
        assert not server.wait_ready(), "it came up: this release does not need the patch"
        assert REFUSAL in server.output()
        assert "tpu_inference.executors.ray_distributed_executor.RayDistributedExecutor" in (
            server.output())


def test_patched_it_serves_what_the_sync_server_serves(tiny_model: str, tmp_path: Path) -> None:
    with serve(tiny_model, [], OFF, tmp_path) as server:
        assert server.wait_ready(), server.output()[-4000:]
        expected = [server.complete(prompt, 24) for prompt in PROMPTS]
    assert [len(tokens) for tokens in expected] == [24] * len(PROMPTS)

    arguments = ["--async-scheduling", "--distributed-executor-backend", "ray"]
    with serve(tiny_model, arguments, ON, tmp_path) as server:
        assert server.wait_ready(), server.output()[-4000:]
        assert [server.complete(prompt, 24) for prompt in PROMPTS] == expected
        assert "TPUAsyncRayWorkerWrapper" in server.output()


#: Activated by the variable and vLLM's entry points; by the interpreter's start where vLLM is told
#: to load no plugin.
DOORS = {"entry points": ((), {}), "run": (("vllm-tpu-async-patch", "run", "--"),
                                           {"VLLM_PLUGINS": ""})}


@pytest.mark.e2e_all
@pytest.mark.parametrize("door", DOORS)
def test_two_hosts_behind_an_api_server(tiny_model: str, tmp_path: Path, door: str) -> None:
    prefix, variables = DOORS[door]
    arguments = ["--async-scheduling", "--distributed-executor-backend", "ray"]
    with serve(tiny_model, arguments, ON, tmp_path, 2, prefix, **variables) as server:
        assert server.wait_ready(), server.output()[-4000:]
        answers = [server.complete(prompt, 8) for prompt in PROMPTS]
        assert [len(tokens) for tokens in answers] == [8] * len(PROMPTS)
        assert [server.complete(prompt, 8) for prompt in PROMPTS] == answers
        assert server.healthy()
        assert server.actors().count("TPUAsyncRayWorkerWrapper") == 2
        (line,) = [line for line in server.output().splitlines() if "requested=" in line]
        assert "requested=on effective=on" in line and "action=backport" in line
        assert "executor=vllm_tpu_async_patch.executor.TPUAsyncRayExecutor" in line
        assert server.stop() == 0, server.output()[-3000:]
        assert server.actors() == []
        assert "Traceback" not in server.output()
