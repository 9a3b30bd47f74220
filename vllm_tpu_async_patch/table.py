"""The compatibility table and the list of reasons, as text, JSON and reStructuredText."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap

from . import compat, reasons

COLUMNS = ("vLLM-TPU", "tpu-inference", "action", "why", "patches")


def _rows() -> list[tuple[str, ...]]:
    grouped: list[list[compat.Row]] = []
    for row in compat.ROWS.values():
        if grouped and _alike(grouped[-1][-1], row):
            grouped[-1].append(row)
        else:
            grouped.append([row])
    return [(_span([r.vllm for r in rows]), _span([r.tpu_inference or "none" for r in rows]),
             rows[0].action, rows[0].reason, ", ".join(rows[0].patches) or "none")
            for rows in grouped]


def _alike(one: compat.Row, other: compat.Row) -> bool:
    return ((one.action, one.reason, one.patches, bool(one.tpu_inference))
            == (other.action, other.reason, other.patches, bool(other.tpu_inference)))


def _span(versions: list[str]) -> str:
    distinct = list(dict.fromkeys(versions))
    return distinct[0] if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"


def as_json() -> list[dict[str, object]]:
    """Every row by itself, with all that it expects."""
    return [{"vllm": row.vllm, "tpu_inference": row.tpu_inference or None, "action": row.action,
             "reason": row.reason, "patches": list(row.patches), "facts": row.facts,
             "hashes": row.hashes, "evidence": row.evidence} for row in compat.ROWS.values()]


def as_rst() -> str:
    """The table that README.rst carries between its markers."""
    lines = [".. list-table::", "   :header-rows: 1", ""]
    for cells in (COLUMNS, *_rows()):
        for index, cell in enumerate(cells):
            lines.append(f"   {'* -' if index == 0 else '  -'} {cell.replace('`', '``')}")
    return "\n".join(lines) + "\n"


def as_text() -> str:
    """The table for a terminal."""
    lines = []
    for vllm, tpu_inference, action, reason, patches in _rows():
        lines.append(f"{vllm:20} {tpu_inference:20} {action}")
        lines += textwrap.wrap(reason, 96, initial_indent="    ", subsequent_indent="    ")
        lines += textwrap.wrap(f"patches: {patches}", 96, initial_indent="    ",
                               subsequent_indent="        ")
    return "\n".join(lines) + "\n"


def reasons_as_rst() -> str:
    """Every reason with its cure: the troubleshooting section of README.rst."""
    lines = []
    for reason in reasons.REASONS:
        text = reason.text.replace("`", "``").replace("{", "<").replace("}", ">")
        lines += [f"{text}", f"    {reason.cure}", ""]
    return "\n".join(lines).rstrip() + "\n"


def run(args: argparse.Namespace) -> int:
    """The verb ``table``."""
    if args.json:
        json.dump(as_json(), sys.stdout, indent=2)
        print()
    elif args.reasons:
        sys.stdout.write(reasons_as_rst())
    else:
        sys.stdout.write(as_rst() if args.rst else as_text())
    return 0


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb to the command line."""
    parser = commands.add_parser("table", help="which release gets what, and why")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="every row, with facts and body hashes")
    form.add_argument("--rst", action="store_true", help="as in README.rst")
    form.add_argument("--reasons", action="store_true",
                      help="the reasons for refusals and what to do, as in README.rst")
    parser.set_defaults(run=run)
