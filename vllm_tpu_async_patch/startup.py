"""The verbs ``path``, ``run``, ``enable`` and ``disable``: being there when an interpreter starts."""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from . import envs

BOOTSTRAP = Path(__file__).resolve().parent / "bootstrap"
_NAME = "vllm_tpu_async_patch"

#: One line; inert unless the variable is set, silent where the package has been removed.
PTH = ('import os; os.environ.get("VLLM_TPU_ASYNC_PATCH", "").strip() in ("", "0") or exec("try:\\n'
       ' __import__(\'vllm_tpu_async_patch.doors\').doors.start()\\nexcept ImportError:\\n pass")\n')
#: Python 3.15 reads entry points from here and warns about import lines in a .pth file (PEP 829).
START = f"{_NAME}.doors:start\n"


def python_path(current: str | None) -> str:
    """``current`` with the bootstrap folder in front, once."""
    rest = [p for p in (current or "").split(os.pathsep) if p and p != str(BOOTSTRAP)]
    return os.pathsep.join([str(BOOTSTRAP), *rest])


def start_file() -> tuple[Path, str]:
    """Where this interpreter's start file belongs, and what it holds."""
    folder = Path(sysconfig.get_paths()["purelib"])
    if sys.version_info >= (3, 15):
        return folder / f"{_NAME}.start", START
    return folder / f"{_NAME}.pth", PTH


def _path(args: argparse.Namespace) -> int:
    print(BOOTSTRAP)
    return 0


def _run(args: argparse.Namespace) -> int:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = python_path(environment.get("PYTHONPATH"))
    # Whoever runs a command through us wants the patch, unless they said otherwise.
    environment.setdefault(envs.TOGGLE.name, "1")
    try:
        os.execvpe(args.cmd[0], args.cmd, environment)
    except OSError as error:
        print(f"vllm-tpu-async-patch: cannot run {args.cmd[0]}: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126


def _enable(args: argparse.Namespace) -> int:
    file, text = start_file()
    return _written(file, lambda: file.write_text(text), f"wrote {file}; it acts in interpreters "
                    f"that start with {envs.TOGGLE.name}=1")


def _disable(args: argparse.Namespace) -> int:
    file, _ = start_file()
    if not file.exists():
        print(f"nothing to do: {file} is not there")
        return 0
    return _written(file, file.unlink, f"removed {file}")


def _written(file: Path, act: Any, done: str) -> int:
    try:
        act()
    except OSError as error:
        print(f"vllm-tpu-async-patch: {file}: {error.strerror}; run this as the owner of the "
              f"environment", file=sys.stderr)
        return 1
    print(done)
    return 0


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verbs to the command line."""
    path = commands.add_parser("path", help="the folder to put first on PYTHONPATH")
    path.set_defaults(run=_path)
    run = commands.add_parser("run", help="run a command with that folder on PYTHONPATH",
                              usage="%(prog)s -- CMD...")
    run.add_argument("cmd", nargs="+", metavar="CMD", help="the command, after --")
    run.set_defaults(run=_run)
    enable = commands.add_parser("enable", help="write a start file into this environment")
    enable.set_defaults(run=_enable)
    disable = commands.add_parser("disable", help="remove that start file")
    disable.set_defaults(run=_disable)
