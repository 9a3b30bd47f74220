"""The half of ``doctor`` that imports vLLM; its answer is one marked line on stdout."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any


def patches() -> dict[str, Any]:
    """What becomes of each patch when everything that it touches is imported."""
    from . import apply, compat, envs, hooks, report, status

    if not apply():
        for record in hooks.records.values():
            record.become(report.DISABLED, f"{envs.TOGGLE.name}=0", quiet=True)
    elif compat.verdict().patches:
        from .patches import PATCHES

        for module in dict.fromkeys(patch.modules[0] for patch in PATCHES):
            try:
                import_module(module)
            except ImportError:
                continue  # the patch stays waiting, and is reported so
    else:
        hooks.settle()
    return {"patches": status()["patches"]}


def serve(arguments: list[str]) -> dict[str, Any]:
    """What ``vllm serve`` with these arguments would get, by vLLM's own parser and validation."""
    from . import compat, doors, report

    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if doors.wanted():
        from . import apply

        apply()
    config, error = None, None
    asked = _asked(arguments)
    try:
        config = _engine_args(arguments).create_engine_config()
        config.__post_init__()  # as the engine core does after its handshake
    except Exception as refused:
        error = " ".join(str(refused).partition(" [type=")[0].split())
    if error is not None or config is None:
        return {"requested": asked, "effective": "off", "executor": None, "reason": error,
                "error": error, "action": compat.verdict().action}
    chosen = config.parallel_config.distributed_executor_backend
    executor = chosen if isinstance(chosen, str) else f"{chosen.__module__}.{chosen.__qualname__}"
    return {"requested": asked, "executor": executor, "error": None,
            "effective": "on" if config.scheduler_config.async_scheduling else "off",
            "reason": report.explain(config) if doors.wanted() else (
                "this package is not switched on"), "action": compat.verdict().action}


def _asked(arguments: list[str]) -> str:
    names = [word.partition("=")[0].replace("_", "-") for word in arguments]
    if "--no-async-scheduling" in names:
        return "off"
    return "on" if "--async-scheduling" in names else "auto"


def _engine_args(arguments: list[str]) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.openai.cli_args import make_arg_parser

    try:
        from vllm.utils.argparse_utils import FlexibleArgumentParser
    except ImportError:
        from vllm.utils import FlexibleArgumentParser
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    if getattr(args, "model_tag", None):
        args.model = args.model_tag
    return AsyncEngineArgs.from_cli_args(args)


def main(argv: list[str]) -> int:
    """argv: ``--patches``, or ``--command`` and the arguments of vllm serve."""
    from .doctor import _MARK

    answer = patches() if argv[0] == "--patches" else serve(argv[1:])
    print(f"\n{_MARK}{json.dumps(answer)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
