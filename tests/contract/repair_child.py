"""Run by test_repairs beside one real release: its own functions, with stand-ins around them."""

from __future__ import annotations

import functools
import json
import os
import sys
from types import SimpleNamespace


def empty_step() -> dict:
    """A request ends in an empty step; a new one with the same id comes with a prompt of five."""
    import jax.numpy as jnp
    from tpu_inference.runner import tpu_runner

    runner_class = tpu_runner.TPUModelRunner
    state = SimpleNamespace(req_id="r", output_token_ids=[0])
    results = tpu_runner.AsyncPreResults(
        req_ids=["r"], next_tokens=jnp.array([7]), request_seq_lens=[(0, state, 3)],
        discard_sampled_tokens_req_indices=[], placeholder_req_id_to_index={"r": 0},
        logits_indices_selector=None)
    import numpy as np

    batch = SimpleNamespace(req_id_to_index={"r": 0}, num_tokens_no_spec=np.array([4]),
                            token_ids_cpu=np.zeros((1, 8), int), req_ids=["r"])

    def update_states(*_):  # the request is preempted, or has finished: it leaves the batch
        batch.req_id_to_index.clear()

    runner = SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=True), _pre_async_results=results,
        input_batch=batch, requests={"r": state}, max_model_len=8, vllm_config=None,
        persistent_batch_manager=SimpleNamespace(update_states=update_states),
        get_mrope_input_positions_fn=None)
    runner._modify_prev_results = functools.partial(runner_class._modify_prev_results, runner)
    step = SimpleNamespace(total_num_scheduled_tokens=0, finished_req_ids={"r"})
    runner_class._execute_model(runner, step)
    substituted = []
    if runner._pre_async_results is not None:
        indices = runner_class._prepare_async_token_substitution_indices_non_dp(runner, 1, [5])
        substituted = [np.asarray(part).tolist() for part in indices]
    return {"substituted": substituted, "token": state.output_token_ids[-1],
            "cleared": runner._pre_async_results is None}


def reports() -> dict:
    """One step over two hosts, the second of which finishes its transfer a step later."""
    import ray
    from tpu_inference.executors.ray_distributed_executor import RayDistributedExecutor
    from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
    from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

    def output(finished: set) -> ModelRunnerOutput:
        return ModelRunnerOutput(
            req_ids=["r"], req_id_to_index={"r": 0}, sampled_token_ids=[[1]], logprobs=None,
            prompt_logprobs_dict={}, pooler_output=[],
            kv_connector_output=KVConnectorOutput(finished_recving=finished or None))

    waiting: list = []

    class Worker:
        def __init__(self) -> None:
            self.execute_method = SimpleNamespace(remote=lambda name, step: waiting.pop(0))

    ray.get = lambda refs, timeout=None: refs  # the outputs are their own references
    executor = object.__new__(RayDistributedExecutor)
    executor.scheduler_config = SimpleNamespace(async_scheduling=True)
    executor.has_connector = True
    executor.workers = [Worker(), Worker()]
    executor.kv_output_aggregator = KVOutputAggregator(expected_finished_count=2)
    executor.forward_dag = SimpleNamespace(execute=lambda step: [1, 1])
    executor.shutdown = lambda *_: None
    seen = []
    for first, second in (({"r"}, set()), (set(), {"r"})):
        waiting[:] = [output(first), output(second)]
        try:
            future = executor._execute_dag(object(), None, non_block=True)
            result = future.result()
            seen.append(sorted(result.kv_connector_output.finished_recving or ()))
        except AssertionError as error:
            seen.append(f"AssertionError: {error}")
    return {"finished_recving": seen}


def get_class() -> dict:
    """What a host framework may put in place of an executor class: no AttributeError of ours."""
    from tpu_inference.executors import ray_distributed_executor as module

    stock = module.RayDistributedExecutor
    from vllm.platforms import current_platform
    from vllm.v1.executor.ray_executor import RayDistributedExecutor as Vllm

    seen = {}
    for name, stand_in in (("partial", functools.partial(stock)), ("factory", lambda c: stock(c)),
                           ("proxy", SimpleNamespace(wrapped=stock))):
        module.RayDistributedExecutor = stand_in
        hook = getattr(current_platform, "executors_supports_async_scheduling", None)
        answer = getattr(Vllm, "supports_async_scheduling", lambda: False)
        seen[name] = [("ray" in hook()) if hook else False, answer()]
    module.RayDistributedExecutor = stock
    return seen


def engine() -> list:
    """For each set of arguments the lines of an engine that makes its executor."""
    import io
    import logging

    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.executor.abstract import Executor

    answers = []
    for arguments in json.loads(sys.argv[3]):
        stream = io.StringIO()
        handler = logging.StreamHandler(stream)
        logging.getLogger("vllm.vllm_tpu_async_patch").addHandler(handler)
        config = EngineArgs(
            model=sys.argv[2], max_model_len=64, **arguments).create_engine_config()
        executor = type("Probe", (Executor.get_class(config),), {
            "_init_executor": lambda self: None, "__del__": lambda self: None})
        executor(config)
        logging.getLogger("vllm.vllm_tpu_async_patch").removeHandler(handler)
        answers.append(stream.getvalue().splitlines())
    return answers


def main() -> None:
    """argv: name of a function above, then its arguments."""
    if os.environ["VLLM_TPU_ASYNC_PATCH"] != "0":
        import vllm_tpu_async_patch  # noqa: F401
    print("\n@" + json.dumps(globals()[sys.argv[1]]()))


if __name__ == "__main__":
    main()
