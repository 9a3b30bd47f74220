"""The ways in: which door is open in which interpreter, and what an open door costs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_tpu_async_patch
from vllm_tpu_async_patch import startup

pytestmark = pytest.mark.unit

PACKAGE = Path(vllm_tpu_async_patch.__file__).parent
README = PACKAGE.parent / "README.rst"
FLAGS = ("none", "-P", "-s", "-E", "-I", "-S")
#: Door -> interpreter flags under which it is open.  README.rst has the same table.
OPEN = {"sitecustomize": ("none", "-P", "-s"), "start file": ("none", "-P", "-s", "-E", "-I")}
#: Where wrapt and packaging are: in the environment that runs the tests.
DEPENDENCIES = os.pathsep.join(p for p in sys.path if p.endswith("-packages"))
IS_WAITING = "import sys; print(any(type(f).__name__ == '_Waiting' for f in sys.meta_path))"
LOADED = "import sys; print(sorted(m for m in sys.modules if 'vllm' in m or 'wrapt' in m))"
CHILDREN = """
import multiprocessing, sys
def waiting():
    return any(type(f).__name__ == '_Waiting' for f in sys.meta_path)
def answer(queue):
    queue.put(waiting())
if __name__ == '__main__':
    for method in ('fork', 'spawn', 'forkserver'):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        child = context.Process(target=answer, args=(queue,))
        child.start(); child.join()
        print(method, queue.get())
"""


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the package and nothing else."""
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    shutil.copytree(PACKAGE, _site(folder) / PACKAGE.name,
                    ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _site(venv: Path) -> Path:
    (site,) = venv.glob("lib/python*/site-packages")
    return site


def _python(venv: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items()
             if not k.startswith(("PYTHON", "VLLM", "TPU", "COV"))}
    return subprocess.run([str(venv / "bin/python"), *args], env={**clean, **environment},
                          capture_output=True, text=True, cwd=venv)


def _bootstrap(venv: Path) -> str:
    return str(_site(venv) / PACKAGE.name / "bootstrap")


@pytest.fixture
def start_file(venv: Path) -> Path:
    file = _site(venv) / "vllm_tpu_async_patch.pth"
    file.write_text(startup.PTH)
    yield file
    file.unlink(missing_ok=True)


def _matrix(venv: Path, start_file: Path) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for door in OPEN:
        environment = {"VLLM_TPU_ASYNC_PATCH": "1"}
        if door == "sitecustomize":
            start_file.unlink(missing_ok=True)
            environment["PYTHONPATH"] = _bootstrap(venv)
        else:
            start_file.write_text(startup.PTH)
        open_in = []
        for flag in FLAGS:
            if flag == "-P" and sys.version_info < (3, 11):
                open_in.append(flag)  # that Python does not know the flag
                continue
            flags = [] if flag == "none" else [flag]
            done = _python(venv, *flags, "-c", IS_WAITING, **environment)
            assert done.returncode == 0 and done.stderr == "", (door, flag, done.stderr)
            if done.stdout.strip() == "True":
                open_in.append(flag)
        found[door] = tuple(open_in)
    return found


def test_the_doors_that_are_open_are_those_of_the_readme(venv: Path, start_file: Path) -> None:
    found = _matrix(venv, start_file)
    for door, flags in found.items():
        print(f"{door:14}", *(f"{flag}:{'yes' if flag in flags else 'no'}" for flag in FLAGS))
    assert found == OPEN
    text = README.read_text()
    for door, flags in OPEN.items():
        row = [line.split() for line in text.splitlines() if line.startswith(door)]
        cells = ["yes" if flag in flags else "no" for flag in FLAGS]
        assert row and row[0][-len(FLAGS):] == cells, f"README.rst: {door}: {row}, not {cells}"


@pytest.mark.parametrize("value", ["", "0", None])
def test_off_means_that_nothing_is_imported(venv: Path, start_file: Path, value: str | None
                                            ) -> None:
    toggle = {} if value is None else {"VLLM_TPU_ASYNC_PATCH": value}
    done = _python(venv, "-c", LOADED, PYTHONPATH=_bootstrap(venv), **toggle)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_on_without_vllm_imports_the_door_and_no_third_party(venv: Path, start_file: Path) -> None:
    done = _python(venv, "-c", LOADED, VLLM_TPU_ASYNC_PATCH="1")
    assert done.stderr == ""
    assert eval(done.stdout) == ["vllm_tpu_async_patch", "vllm_tpu_async_patch._version",
                                 "vllm_tpu_async_patch.doors"]


def test_the_import_of_vllm_opens_the_door(venv: Path, start_file: Path, tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm/__init__.py").write_text(
        "import sys\nprint('hooks' if 'vllm_tpu_async_patch.hooks' in sys.modules else 'bare')")
    path = os.pathsep.join([str(tmp_path), DEPENDENCIES])
    done = _python(venv, "-c", "import vllm", PYTHONPATH=path, VLLM_TPU_ASYNC_PATCH="1")
    assert done.stdout == "hooks\n", done.stderr
    done = _python(venv, "-c", "import vllm", PYTHONPATH=path, VLLM_TPU_ASYNC_PATCH="0")
    assert done.stdout == "bare\n", done.stderr


def test_a_value_that_is_not_understood_is_off_and_said_once(venv: Path, start_file: Path) -> None:
    done = _python(venv, "-c", IS_WAITING, PYTHONPATH=_bootstrap(venv), VLLM_TPU_ASYNC_PATCH="yes")
    assert done.stdout == "False\n"
    assert done.stderr.count("\n") == 1
    assert "'yes'" in done.stderr and "0, 1, strict" in done.stderr


def test_a_removed_package_leaves_a_silent_start_file(venv: Path, start_file: Path) -> None:
    package = _site(venv) / PACKAGE.name
    package.rename(package.with_name("elsewhere"))
    try:
        done = _python(venv, "-c", "print('up')", VLLM_TPU_ASYNC_PATCH="1")
    finally:
        package.with_name("elsewhere").rename(package)
    assert (done.stdout, done.stderr) == ("up\n", "")


@pytest.mark.parametrize("door", OPEN)
def test_children_of_every_kind_come_in_the_same_way(venv: Path, start_file: Path, tmp_path: Path,
                                                     door: str) -> None:
    script = tmp_path / "children.py"
    script.write_text(CHILDREN)
    environment = {"VLLM_TPU_ASYNC_PATCH": "1"}
    if door == "sitecustomize":
        start_file.unlink()
        environment["PYTHONPATH"] = _bootstrap(venv)
    done = _python(venv, str(script), **environment)
    assert done.stdout.split() == ["fork", "True", "spawn", "True", "forkserver", "True"], (
        done.stderr)


def _other_sitecustomize(folder: Path, text: str) -> str:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(text)
    return str(folder)


def test_another_sitecustomize_runs_too_in_either_order(venv: Path, tmp_path: Path) -> None:
    ours = _bootstrap(venv)
    plain = _other_sitecustomize(tmp_path / "plain", "print('other')")
    chaining = _other_sitecustomize(tmp_path / "chaining", (
        "import os, sys\nprint('other')\nhere = os.path.dirname(__file__)\n"
        "sys.path.remove(here)\nsys.modules.pop('sitecustomize')\nimport sitecustomize\n"
        "sys.path.insert(0, here)\n"))
    for path in (f"{ours}{os.pathsep}{plain}", f"{chaining}{os.pathsep}{ours}"):
        done = _python(venv, "-c", IS_WAITING, PYTHONPATH=path, VLLM_TPU_ASYNC_PATCH="1")
        assert done.stdout == "other\nTrue\n", (path, done.stderr)
        assert done.stderr == ""


def test_what_the_other_sitecustomize_raises_is_not_hidden_and_we_run(venv: Path, tmp_path: Path
                                                                      ) -> None:
    broken = _other_sitecustomize(tmp_path / "broken", "raise ValueError('theirs')")
    done = _python(venv, "-c", IS_WAITING, VLLM_TPU_ASYNC_PATCH="1",
                   PYTHONPATH=f"{_bootstrap(venv)}{os.pathsep}{broken}")
    assert done.stdout == "True\n" and "theirs" in done.stderr


def _cli(venv: Path, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return _python(venv, "-m", "vllm_tpu_async_patch", *args,
                   **{"VLLM_TPU_ASYNC_PATCH": "0", **environment})


def test_enable_writes_one_file_and_disable_removes_it(venv: Path) -> None:
    before = set(_site(venv).iterdir())
    done = _cli(venv, "enable")
    assert done.returncode == 0, done.stderr
    (new,) = set(_site(venv).iterdir()) - before
    assert str(new) in done.stdout
    assert _python(venv, "-c", IS_WAITING, VLLM_TPU_ASYNC_PATCH="1").stdout == "True\n"
    assert _cli(venv, "disable").returncode == 0
    assert set(_site(venv).iterdir()) == before
    assert "nothing to do" in _cli(venv, "disable").stdout


def test_run_puts_the_folder_on_the_path_once_and_keeps_the_exit_code(venv: Path) -> None:
    show = "import os, sys; print(os.environ['PYTHONPATH']); sys.exit(7)"
    python = str(venv / "bin/python")
    inner = ("run", "--", python, "-m", "vllm_tpu_async_patch", "run", "--", python, "-c", show)
    done = _cli(venv, *inner, PYTHONPATH="/elsewhere")
    assert done.returncode == 7, done.stderr
    assert done.stdout == f"{_bootstrap(venv)}{os.pathsep}/elsewhere\n"


def test_run_switches_on_what_is_unset_and_leaves_an_explicit_off(venv: Path) -> None:
    python = str(venv / "bin/python")
    for value, expected in (("0", "False"), (None, "True")):
        toggle = {} if value is None else {"VLLM_TPU_ASYNC_PATCH": value}
        done = _python(venv, "-m", "vllm_tpu_async_patch", "run", "--", python, "-c", IS_WAITING,
                       PYTHONPATH=DEPENDENCIES, **toggle)
        assert done.stdout == f"{expected}\n", done.stderr


def test_run_names_a_command_that_is_not_there(venv: Path) -> None:
    done = _cli(venv, "run", "--", "no-such-command")
    assert done.returncode == 127
    assert "no-such-command" in done.stderr and "Traceback" not in done.stderr


def test_path_prints_the_folder(venv: Path) -> None:
    assert _cli(venv, "path").stdout.strip() == _bootstrap(venv)
