"""The command line: one verb, one function."""

from __future__ import annotations

import argparse
import json
import sys

from . import doctor, table


def _status(args: argparse.Namespace) -> int:
    from . import status

    json.dump(status(), sys.stdout, indent=2)
    print()
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit code (2: wrong usage)."""
    parser = argparse.ArgumentParser(prog="vllm-tpu-async-patch")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("status", help="what is patched in this process").set_defaults(run=_status)
    doctor.add_parser(commands)
    table.add_parser(commands)
    args = parser.parse_args(argv)
    code: int = args.run(args)
    return code
