"""How the emulation enters an interpreter: quickly, quietly, without pushing anybody aside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vllm_tpu_async_patch.emulation as emulation
from vllm_tpu_async_patch.emulation import imports

pytestmark = pytest.mark.unit

FOLDER = Path(emulation.__file__).parent
SITE = FOLDER / "site"
ROOT = FOLDER.parent.parent


def python(code: str, *path: Path, on: bool = True, **variables: str) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("TPU_EMULATION")}
    environment.update(variables, PYTHONPATH=os.pathsep.join(map(str, path)))
    if on:
        environment["TPU_EMULATION"] = "1"
    return subprocess.run([sys.executable, "-c", code], env=environment, text=True, check=True,
                          capture_output=True)


def customizer(folder: Path, code: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(code)
    return folder


def fake_tpu_inference(folder: Path) -> Path:
    package = folder / "tpu_inference"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "tpu_info.py").write_text(
        "def get_num_chips(): return 0\ndef get_tpu_type(): return None\n")
    return folder


def test_nothing_happens_unless_asked_for() -> None:
    show = "import sys; print('tpu_emulation' in sys.modules, len(sys.meta_path))"
    plain = python("import sys; print(False, len(sys.meta_path))", on=False)
    assert python(show, SITE, on=False).stdout == plain.stdout
    assert python(show, SITE, on=False, TPU_EMULATION="0").stdout == plain.stdout


def test_it_comes_in_without_the_parent_package_and_without_weight() -> None:
    show = "import sys; print(*sys.modules)"
    plain = set(python(show, ROOT, on=False).stdout.split())
    ours = set(python(show, SITE, ROOT).stdout.split()) - plain
    assert {"tpu_emulation", "tpu_emulation.imports"} <= ours
    assert not any(name.startswith("vllm_tpu_async_patch") for name in ours)
    assert {name.partition(".")[0] for name in ours} <= {"tpu_emulation", "sitecustomize",
                                                          "importlib", "warnings"}
    assert "importlib.util" not in ours


@pytest.mark.parametrize("on", [True, False])
def test_the_displaced_sitecustomize_runs_once_and_keeps_the_name(tmp_path: Path, on: bool) -> None:
    other = customizer(tmp_path / "other", "print('other')\nmine = 1\n")
    last = customizer(tmp_path / "last", "print('last')\n")
    show = "import sys, sitecustomize; print(sitecustomize.mine, sys.path[1:4])"
    lines = python(show, SITE, other, last, on=on).stdout.splitlines()
    assert lines == ["other", f"1 {[str(SITE), str(other), str(last)]}"]


def test_two_that_chain_do_not_run_each_other_in_circles(tmp_path: Path) -> None:
    chaining = customizer(tmp_path / "chaining", (SITE / "sitecustomize.py").read_text().replace(
        "_load()\nexcept", "print('chaining')\nexcept"))
    last = customizer(tmp_path / "last", "print('last')\n")
    for order in ((SITE, chaining, last), (chaining, SITE, last), (SITE, chaining, SITE, last)):
        run = python("import sys; print('tpu_emulation' in sys.modules)", *order)
        assert (run.stdout.splitlines(), run.stderr) == (["chaining", "last", "True"], "")


def test_the_displaced_one_fails_as_it_would_without_us(tmp_path: Path) -> None:
    other = customizer(tmp_path / "other", "import not_there\n")
    alone = python("print('runs')", other, on=False)
    behind = python("print('runs')", SITE, other)
    assert behind.stdout == alone.stdout == "runs\n"
    assert behind.stderr.splitlines()[-1] == alone.stderr.splitlines()[-1]
    assert "not_there" in behind.stderr


def test_an_interpreter_starts_even_if_we_are_broken(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "emulation")
    (tmp_path / "emulation" / "imports.py").write_text("raise OSError('broken')\n")
    other = customizer(tmp_path / "other", "print('other')\n")
    run = python("import sys; print('tpu_emulation' in sys.modules)",
                 tmp_path / "emulation" / "site", other)
    assert run.stdout.splitlines() == ["other", "False"]
    assert run.stderr == "[tpu-emulation] not active, OSError: broken\n"


def test_a_target_is_patched_after_its_import_and_it_is_said_once(tmp_path: Path) -> None:
    fake = fake_tpu_inference(tmp_path)
    run = python("import tpu_inference.tpu_info as t, tpu_emulation.host, inspect\n"
                 "print(t.get_num_chips(), t.get_tpu_type())\n"
                 "print(hasattr(t, 'get_node_name'))\n"  # what a release lacks stays away
                 "print(type(t.__loader__).__name__, type(t.__spec__.loader).__name__)\n"
                 "tpu_emulation.host.patch(t)\n", SITE, fake, TPU_EMULATION_HOSTS="2",
                 TPU_WORKER_ID="1", TPU_EMULATION_DEVICE_MS="2.5")
    assert run.stdout.splitlines() == ["1 v6e-2", "False", "SourceFileLoader SourceFileLoader"]
    (said,) = run.stderr.splitlines()
    assert said.startswith("[tpu-emulation] pid ")
    assert said.endswith(": this process emulates a TPU host on the CPU (host 1 of 2, device "
                         "2.5 ms); results are real, speed is not")


@pytest.mark.parametrize("order", ["wrapt first", "wrapt last"])
def test_it_shares_an_import_with_wrapts_hooks(tmp_path: Path, order: str) -> None:
    pytest.importorskip("wrapt")
    fake = fake_tpu_inference(tmp_path)
    hook = ("import wrapt\n"
            "wrapt.register_post_import_hook(lambda m: print('wrapt sees', m.get_num_chips()),"
            " 'tpu_inference.tpu_info')\n")
    if order == "wrapt first":
        # Activated late, by the same call as the second time in a process.
        code = ("import os, sys\n" + hook + "os.environ['TPU_EMULATION'] = '1'\n"
                "import vllm_tpu_async_patch.emulation as e; e.activate(); e.activate()\n")
        run = python(code + "import tpu_inference.tpu_info", ROOT, fake, on=False,
                     VLLM_TPU_ASYNC_PATCH="0")
    else:
        run = python(hook + "import tpu_inference.tpu_info", SITE, fake)
    assert run.stdout == "wrapt sees 1\n"
    assert run.stderr.count("[tpu-emulation]") == 1


def test_a_target_that_was_imported_before_is_patched_at_once(tmp_path: Path) -> None:
    fake = fake_tpu_inference(tmp_path)
    run = python("import os, tpu_inference.tpu_info as t\n"
                 "os.environ['TPU_EMULATION'] = '1'\n"
                 "import vllm_tpu_async_patch.emulation as e; e.activate(); print(t.get_num_chips())",
                 ROOT, fake, on=False, VLLM_TPU_ASYNC_PATCH="0")
    assert run.stdout == "1\n"


def test_every_target_has_its_patch() -> None:
    from vllm_tpu_async_patch.emulation import host

    assert set(imports.TARGETS) == set(host._PATCHES)


def test_every_variable_is_in_the_table() -> None:
    import re

    used = {name for source in FOLDER.rglob("*.py")
            for name in re.findall(r"\bTPU_EMULATION\w*", source.read_text())}
    assert used == set(emulation.VARIABLES)
