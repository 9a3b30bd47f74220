"""The command line: one verb, one function."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from . import __version__, doctor, startup, table
from .bench.cli import add_parser as add_bench


def _status(args: argparse.Namespace) -> int:
    from .report import status

    print(json.dumps(status(), indent=2))
    return 0


def _demo(args: argparse.Namespace) -> int:
    from . import demo

    missing = demo.missing_packages()
    if missing:
        return _fail(f"the demo needs {', '.join(missing)}, not installed in {sys.prefix}; "
                     f"install with: pip install 'vllm-tpu-async-patch[demo]'")
    try:
        report = demo.run_demo(args.hosts, args.requests, args.max_tokens, args.device_ms)
    except demo.DemoFailed as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        return 130
    print(demo.table(report))
    if args.json:
        args.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if report["identical"] else 1


def _emulate(args: argparse.Namespace) -> int:
    from .emulation.run import emulate

    return emulate(args.cmd, hosts=args.hosts, device_ms=args.device_ms, port=args.port)


def _tiny_model(args: argparse.Namespace) -> int:
    from .emulation.model import write_tiny_model

    try:
        write_tiny_model(args.directory)
    except ImportError as error:
        return _fail(f"writing the model needs {error.name}; install with: "
                     f"pip install 'vllm-tpu-async-patch[demo]'")
    print(args.directory)
    return 0


def _fail(message: str) -> int:
    print(f"vllm-tpu-async-patch: {message}", file=sys.stderr)
    return 1


def _at_least(minimum: float, kind: type = int) -> object:
    def parse(text: str) -> float:
        value: float = kind(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be at least {minimum:g}")
        return value

    parse.__name__ = kind.__name__  # argparse puts it into "invalid int value: ..."
    return parse


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vllm-tpu-async-patch",
        description="Async scheduling for tpu-inference's Ray executor on pinned vLLM-TPU.")
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    status = commands.add_parser("status", help="what is patched in this process, as JSON")
    status.set_defaults(run=_status)
    doctor.add_parser(commands)
    table.add_parser(commands)
    startup.add_parsers(commands)
    add_bench(commands)

    demo = commands.add_parser(
        "demo", help="run the real vllm-tpu on emulated TPU hosts: sync, stock async, patched")
    _emulation_options(demo, device_ms=40.0)
    demo.add_argument("--requests", type=_at_least(1), default=6, help="prompts (default: 6)")
    demo.add_argument("--max-tokens", type=_at_least(1), default=64,
                      help="tokens generated for each prompt (default: 64)")
    demo.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    demo.set_defaults(run=_demo)

    emulate = commands.add_parser(
        "emulate", help="run a command on emulated TPU hosts (the patch stays as it is set)",
        usage="%(prog)s [--hosts N] [--device-ms D] [--port P] -- CMD...")
    _emulation_options(emulate, device_ms=0.0)
    emulate.add_argument("--port", type=_at_least(1), help="port of the Ray head (default: free)")
    emulate.add_argument("cmd", nargs="+", metavar="CMD", help="the command, after --")
    emulate.set_defaults(run=_emulate)

    tiny = commands.add_parser(
        "tiny-model", help="write a two-layer Llama with random weights and a tokenizer")
    tiny.add_argument("directory", metavar="DIR")
    tiny.set_defaults(run=_tiny_model)
    return parser


def _emulation_options(parser: argparse.ArgumentParser, device_ms: float) -> None:
    parser.add_argument("--hosts", type=_at_least(1), default=1, metavar="N",
                        help="emulated TPU hosts (default: 1)")
    parser.add_argument("--device-ms", type=_at_least(0, float), default=device_ms, metavar="D",
                        help="time for which a forward pass occupies the emulated device "
                             f"(default: {device_ms:g})")


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code (2: wrong usage)."""
    args = _parser().parse_args(argv)
    code: int = args.run(args)
    return code
