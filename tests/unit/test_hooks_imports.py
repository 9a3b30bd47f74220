"""The import hooks, whatever happens to the hooked module, with every wrapt that we accept.

Each case is a program in a process of its own: `leaf` is the hooked module, and the patch replaces
its function `answer`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import vllm_tpu_async_patch

pytestmark = pytest.mark.unit

ROOT = Path(vllm_tpu_async_patch.__file__).parents[1]
PRELUDE = """
import importlib, inspect, os, sys, threading
import wrapt
from vllm_tpu_async_patch import compat, hooks, report
from vllm_tpu_async_patch.patches.record import Patch, change
from vllm_tpu_async_patch.releases import Row

def apply(module):
    before = module.answer
    return [change(module, "answer", lambda: "ours over " + before())]

patch = Patch("leaf-patch", ("leaf",), "leaf.answer", "", "", "", "", lambda module: None, apply)
hooks.PATCHES = (patch,)
hooks.records = {patch.name: report.Record(patch.name, patch.target)}
row = Row("1.0", "1.0", "backport", "why", (patch.name,))
compat.verdict = lambda: compat.Verdict("backport", "why", (patch.name,), row)
state = lambda: hooks.records[patch.name].state
"""
LEAF = """
import os, time
def fail():
    return 1 / 0
time.sleep(0.05)  # threads shall meet here
if os.environ.get("LEAF_FAILS"):
    1 / 0
if os.environ.get("LEAF_INSTALLS"):
    import installer; installer.go()
def answer():
    return "stock"
"""
#: Runs the programs of standard input, each in a child, and prints what each child said.
FORK = """
import json, tempfile, traceback
said = {}
for name, program in json.load(sys.stdin).items():
    with tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if not child:
            try:
                exec(program, globals())
            except BaseException:
                traceback.print_exc(file=errors)
                errors.flush()
                os._exit(1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        errors.seek(0)
        said[name] = errors.read() or ("" if code == 0 else f"ended with {code}")
json.dump(said, sys.stdout)
"""

CASES = {
    "before, during and after the import": """
hooks.install()
import leaf
assert leaf.answer() == "ours over stock" and state() == "applied"
hooks.install()
assert leaf.answer() == "ours over stock"
hooks.uninstall()
assert leaf.answer() == "stock" and state() == "removed"
hooks.install()
assert leaf.answer() == "ours over stock"
""",
    "reloaded": """
hooks.install()
import leaf
for _ in range(2):
    importlib.reload(leaf)
    assert leaf.answer() == "ours over stock" and state() == "applied", leaf.answer()
hooks.uninstall()
assert leaf.answer() == "stock"
importlib.reload(leaf)
assert leaf.answer() == "stock"
""",
    "reloaded, imported before us": """
import leaf
hooks.install()
importlib.reload(leaf)
assert leaf.answer() == "ours over stock" and state() == "applied", leaf.answer()
""",
    "deleted and imported again": """
hooks.install()
import leaf as old
for _ in range(2):
    del sys.modules["leaf"]
    leaf = importlib.import_module("leaf")
    assert leaf is not old and leaf.answer() == "ours over stock", leaf.answer()
hooks.uninstall()
assert leaf.answer() == "stock"
""",
    "a reload that fails": """
hooks.install()
import leaf
os.environ["LEAF_FAILS"] = "1"
try:
    importlib.reload(leaf)
except ZeroDivisionError:
    pass
else:
    raise AssertionError("the reload did not fail")
del os.environ["LEAF_FAILS"]
importlib.reload(leaf)
assert leaf.answer() == "ours over stock" and state() == "applied"
""",
    "an import that fails, then succeeds": """
hooks.install()
os.environ["LEAF_FAILS"] = "1"
try:
    import leaf
except ZeroDivisionError:
    pass
assert "leaf" not in sys.modules and state() == "waiting"
del os.environ["LEAF_FAILS"]
import leaf
assert leaf.answer() == "ours over stock"
""",
    "installed while it is half-imported": """
sys.modules["installer"] = type(sys)("installer")
sys.modules["installer"].go = hooks.install
os.environ["LEAF_INSTALLS"] = "1"
import leaf
assert not hasattr(sys.modules["installer"], "error")
# wrapt's hook on a module that is under way runs at once, and never at its end.
hooks.install()
assert leaf.answer() == "ours over stock"
""",
    "threads import and install at once": """
start, answers, errors = threading.Barrier(12), [], []
def importer():
    start.wait()
    try:
        answers.append(importlib.import_module("leaf").answer())
    except Exception as error:
        errors.append(error)
def installer():
    start.wait()
    try:
        hooks.install()
    except Exception as error:
        errors.append(error)
threads = [threading.Thread(target=t) for t in (importer, installer) * 6]
for t in threads: t.start()
for t in threads: t.join(30)
assert not any(t.is_alive() for t in threads), "deadlock"
assert not errors, errors
hooks.install()
import leaf
assert leaf.answer() == "ours over stock" and state() == "applied"
""",
    "run as a program": """
import runpy
hooks.install()
names = runpy.run_module("leaf", run_name="__main__")
assert names["answer"]() == "stock"
import leaf
assert leaf.answer() == "ours over stock"
""",
    "sources, resources and tracebacks": """
hooks.install()
import leaf, bundle
plain = sys.modules["json"].__loader__ if "json" in sys.modules else importlib.import_module("json").__loader__
for again in (False, True):
    if again:
        importlib.reload(leaf)
    assert "def answer" in inspect.getsource(leaf)
    assert type(leaf.__loader__) is type(leaf.__spec__.loader) is type(plain), leaf.__loader__
    assert leaf.__loader__.get_source("leaf")
from importlib import resources
assert resources.files("bundle").joinpath("data.txt").read_text() == "data"
try:
    leaf.fail()
except ZeroDivisionError as error:
    import traceback
    assert "1 / 0" in "".join(traceback.format_exception(error))
else:
    raise AssertionError("no error")
""",
    "two patches on one another, and the other module is reloaded": """
def over(name):
    def apply(module):
        before = module.answer
        return [change(module, "answer", lambda: name + " over " + before())]
    return Patch(name, ("leaf", "bundle"), "leaf.answer", "", "", "", "", lambda m: None, apply)
hooks.PATCHES = (over("first"), over("second"))
hooks.records = {p.name: report.Record(p.name, p.target) for p in hooks.PATCHES}
compat.verdict = lambda: compat.Verdict("backport", "why", ("first", "second"), row)
hooks.install()
import leaf, bundle
importlib.reload(bundle)
assert leaf.answer() == "second over first over stock", leaf.answer()
hooks.uninstall()
assert leaf.answer() == "stock"
""",
    "another tool wrapped it before": """
import leaf
wrapt.wrap_function_wrapper(leaf, "answer", lambda w, i, a, k: "theirs over " + w())
theirs = leaf.answer
hooks.install()
assert leaf.answer() == "ours over theirs over stock"
hooks.uninstall()
assert leaf.answer is theirs
""",
    "another tool wrapped it after": """
hooks.install()
import leaf
wrapt.wrap_function_wrapper(leaf, "answer", lambda w, i, a, k: "theirs over " + w())
theirs = leaf.answer
assert leaf.answer() == "theirs over ours over stock"
try:
    hooks.uninstall()
except RuntimeError as error:
    assert "leaf.answer" in str(error) and "remove that first" in str(error), error
else:
    raise AssertionError("removed in the wrong order without a word")
assert leaf.answer is theirs and leaf.answer() == "theirs over ours over stock"
leaf.answer = theirs.__wrapped__
hooks.uninstall()
assert leaf.answer() == "stock"
""",
    "another tool hooks the same import": """
seen = []
wrapt.register_post_import_hook(lambda m: seen.append(m.answer()), "leaf")
hooks.install()
wrapt.register_post_import_hook(lambda m: seen.append(m.answer()), "leaf")
import leaf
assert seen == ["stock", "ours over stock"], seen
""",
    "another tool's finder in front and behind": """
class Theirs:
    def find_spec(self, name, path=None, target=None):
        return None
sys.meta_path.insert(0, Theirs())
hooks.install()
sys.meta_path.insert(0, Theirs())
import leaf
importlib.reload(leaf)
assert leaf.answer() == "ours over stock"
""",
    "an error of ours does not fail the import": """
def broken(module):
    raise LookupError("ours")
hooks.PATCHES = (Patch("leaf-patch", ("leaf",), "leaf.answer", "", "", "", "", lambda m: None, broken),)
hooks.install()
import leaf
assert leaf.answer() == "stock" and state() == "failed"
importlib.reload(leaf)
assert leaf.answer() == "stock"
""",
}


@pytest.fixture(scope="session")
def oldest_wrapt(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("wrapt")
    # One that installs here.
    version = "1.14.0" if sys.version_info < (3, 11) else "1.14.2"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target",
                    str(folder), f"wrapt=={version}"], check=True)
    return str(folder)


@pytest.fixture(scope="module", params=["newest", "newest, no C extension", "1.14",
                                        "1.14, no C extension"])
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
             ) -> dict[str, str]:
    """Case -> what went wrong, with one wrapt."""
    environment = {"WRAPT_DISABLE_EXTENSIONS": "1"} if "no C" in request.param else {}
    wrapt = [request.getfixturevalue("oldest_wrapt")] if "1.14" in request.param else []
    world = _world(tmp_path_factory.mktemp("world"))
    return _run(CASES, [*wrapt, str(world), str(ROOT)], **environment)


def _world(folder: Path) -> Path:
    (folder / "leaf.py").write_text(LEAF)
    (folder / "bundle").mkdir()
    (folder / "bundle/__init__.py").write_text("")
    (folder / "bundle/data.txt").write_text("data")
    return folder


def _run(cases: dict[str, str], path: list[str], **environment: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("VLLM", "WRAPT"))}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + FORK], input=json.dumps(cases), text=True,
        capture_output=True, env={**clean, "PYTHONPATH": os.pathsep.join(path),
                                  "VLLM_TPU_ASYNC_PATCH": "0", **environment})
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    assert set(found) == set(cases)
    return found


@pytest.mark.parametrize("case", CASES)
def test_hooked_imports(case: str, outcomes: dict[str, str]) -> None:
    assert outcomes[case] == ""


def test_a_case_that_fails_is_seen(tmp_path: Path) -> None:
    path = [str(_world(tmp_path)), str(ROOT)]
    assert "no patch" in _run({"wrong": "import leaf; assert leaf.answer() != 'stock', 'no patch'"},
                              path)["wrong"]


def test_hooked_imports_from_a_zip(tmp_path: Path) -> None:
    (tmp_path / "world").mkdir()
    world, archive = _world(tmp_path / "world"), tmp_path / "world.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for file in world.rglob("*"):
            packed.write(file, file.relative_to(world))
    names = ("reloaded", "deleted and imported again", "sources, resources and tracebacks")
    cases = {name: CASES[name].replace("is type(plain)", "is not type(plain)") for name in names}
    assert set(_run(cases, [str(archive), str(ROOT)]).values()) == {""}
