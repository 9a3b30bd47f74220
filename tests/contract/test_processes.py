"""Parents and children, and doors with the switch at 0, on the real 0.13.3."""

from __future__ import annotations

import json
from pathlib import Path

import child
import gate_child
import pytest

import vllm_tpu_async_patch
from vllm_tpu_async_patch import startup

pytestmark = pytest.mark.contract

BOOTSTRAP = str(Path(vllm_tpu_async_patch.__file__).parent / "bootstrap")

#: The process that makes the configuration: the API server.
PARENT = """
import pickle, sys
from vllm.engine.arg_utils import EngineArgs
patched = "vllm_tpu_async_patch.hooks" in sys.modules
config = EngineArgs(model=sys.argv[1], max_model_len=64).create_engine_config()
config.model_config = None  # the rest is enough, and pickles without a tokenizer
pickle.dump(config, open(sys.argv[2], "wb"))
print("@", patched)
"""
#: The engine core: it looks for the request once more, and starts the executor.
ENGINE = """
import pickle, sys
from vllm.plugins import load_general_plugins
load_general_plugins()
patched = "vllm_tpu_async_patch.hooks" in sys.modules
config = pickle.load(open(sys.argv[1], "rb"))
from vllm_tpu_async_patch import report
report.note_request(config)
report.engine_starts(config, config.parallel_config.distributed_executor_backend)
print("@", patched)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text(json.dumps(gate_child.CONFIG))
    return str(folder)


def _run(program: str, *arguments: str, toggle: str) -> str:
    done = child.run("0.13.3", "-c", program, *arguments, VLLM_TPU_ASYNC_PATCH=toggle,
                     TPU_MULTIHOST_BACKEND="ray")
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"@ {toggle == '1'}" in done.stdout, "the door is not as the test needs it"
    return done.stdout + done.stderr


@pytest.mark.parametrize("parent", ["0", pytest.param("1", marks=pytest.mark.contract_all)])
def test_an_engine_whose_parent_was_not_patched_says_so(model: str, tmp_path: Path, parent: str
                                                        ) -> None:
    file = str(tmp_path / "config.pickle")
    _run(PARENT, model, file, toggle=parent)
    said = _run(ENGINE, file, toggle="1")
    unknown = "its configuration was made where the patch was not in place"
    assert (said.count(unknown) > 0) == (parent == "0"), said
    assert f"requested={'unknown' if parent == '0' else 'off'} effective=off" in said


SNAPSHOT = """
import hashlib, importlib, json, sys, types
if sys.argv[1] == "with":
    import vllm_tpu_async_patch
    from vllm.plugins import load_general_plugins
    load_general_plugins()
else:
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] == "vllm_tpu_async_patch":
                raise ModuleNotFoundError(name=name)
    sys.meta_path.insert(0, Absent())
from vllm.platforms import current_platform
current_platform.device_name

def plain(value):
    value = getattr(value, "__func__", value)
    if isinstance(value, types.FunctionType):
        return [value.__qualname__, hashlib.sha256(value.__code__.co_code).hexdigest(),
                repr([c for c in value.__code__.co_consts if not hasattr(c, "co_code")]),
                hasattr(value, "__wrapped__")]
    return type(value).__qualname__

seen = {}
for name in sys.argv[2:]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        continue  # another release's
    for key, value in vars(module).items():
        seen[f"{name}.{key}"] = plain(value)
        if isinstance(value, type):
            for attribute, member in vars(value).items():
                seen[f"{name}.{key}.{attribute}"] = plain(member)
ours = sorted(m for m in sys.modules if m.startswith("vllm_tpu_async_patch."))
from vllm import envs
print("@" + json.dumps([seen, ours, sorted(envs.environment_variables),
                        [type(f).__name__ for f in sys.meta_path if "ync" in type(f).__module__]]))
"""


def test_with_0_and_every_door_open_nothing_differs(tmp_path: Path) -> None:
    from vllm_tpu_async_patch.patches import PATCHES

    modules = [m for m in sorted({m for patch in PATCHES for m in patch.modules})
               if not m.startswith("vllm_tpu_async_patch")]
    assert len(modules) >= 8
    # What `enable` writes, in a folder that `site` reads start files from.
    site = tmp_path / "site"
    site.mkdir()
    (site / "vllm_tpu_async_patch.pth").write_text(startup.PTH)
    door = f"import site; site.addsitedir({str(site)!r})\n"
    answers = []
    for way in ("with", "without"):
        done = child.run("0.13.3", "-c", (door if way == "with" else "") + SNAPSHOT, way, *modules,
                         overlays=(BOOTSTRAP,) if way == "with" else (), VLLM_TPU_ASYNC_PATCH="0",
                         PYTHONHASHSEED="0", TPU_MULTIHOST_BACKEND="ray")
        found = [line for line in done.stdout.splitlines() if line.startswith("@")]
        assert found, done.stderr[-3000:]
        answers.append(json.loads(found[-1][1:]))
        assert "tpu-async-patch]" not in done.stdout + done.stderr
    (seen, ours, names, finders), (expected, _, expected_names, _) = answers
    assert len(expected) > 500
    assert {k for k in seen.keys() | expected.keys() if seen.get(k) != expected.get(k)} == set()
    assert names == expected_names and finders == []
    assert ours == ["vllm_tpu_async_patch._version", "vllm_tpu_async_patch.doors"]


KINDS = """
import importlib, inspect, json, pickle
from vllm_tpu_async_patch import hooks
from vllm_tpu_async_patch.patches.record import ABSENT
for patch in hooks.PATCHES:
    for module in patch.modules:
        try:
            importlib.import_module(module)
        except ImportError:
            pass
rows = []
for name, changes in hooks._changes.items():
    for change in changes:
        before, after = change.before, change.after
        if before is ABSENT or name == "variables" or not change.in_effect():
            continue
        row = {"what": f"{name}: {change}", "kind": type(after) is type(before)}
        if inspect.isfunction(before):
            row["signature"] = inspect.signature(after) == inspect.signature(before)
            for attribute in ("__doc__", "__name__", "__qualname__", "__module__", "__annotations__"):
                row[attribute] = getattr(after, attribute) == getattr(before, attribute)
            row["pickles"] = pickle.loads(pickle.dumps(after)) is after
            row["source"] = inspect.getsource(after) == inspect.getsource(before)
        elif inspect.isclass(before):
            row["signature"] = inspect.signature(after) == inspect.signature(before)
            row["subclass"] = issubclass(after, before)
            row["pickles"] = pickle.loads(pickle.dumps(after)) is after
        rows.append(row)
print("@" + json.dumps(rows))
"""


@pytest.mark.contract_all
def test_what_is_patched_stays_what_it_was() -> None:
    """Kind, signature, documentation, name, source and pickling of each attribute."""
    done = child.run("0.13.3", "-c", "import vllm_tpu_async_patch\n" + KINDS,
                     VLLM_TPU_ASYNC_PATCH="1", TPU_MULTIHOST_BACKEND="ray")
    found = [line for line in done.stdout.splitlines() if line.startswith("@")]
    assert found, done.stderr[-3000:]
    rows = json.loads(found[-1][1:])
    assert len(rows) >= 6, rows
    assert [row for row in rows if not all(row.values())] == []
