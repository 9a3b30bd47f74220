"""What the import hooks do where the installation is not what the table says."""

from __future__ import annotations

import logging
import types

import pytest

from vllm_tpu_async_patch import compat, hooks, probe, report
from vllm_tpu_async_patch.compat import Verdict
from vllm_tpu_async_patch.patches.record import Patch, Unexpected, change
from vllm_tpu_async_patch.releases import Row

pytestmark = pytest.mark.unit


def function():
    return "stock"


@pytest.fixture
def world(monkeypatch):
    """Two patches on one complete module, and a verdict that lists both."""
    # Other layers' tests in this process may have imported vLLM, which takes over our lines.
    levels = {name: getattr(logging, name) for name in ("DEBUG", "INFO", "WARNING", "ERROR")}
    monkeypatch.setattr(report, "logging", types.SimpleNamespace(
        getLogger=lambda name: types.SimpleNamespace(handlers=[]), **levels))
    module = types.ModuleType("some.module")
    module.first, module.second = function, function
    monkeypatch.setitem(hooks.sys.modules, "some.module", module)

    def patch(name, **more):
        return Patch(**{
            "name": name, "modules": ("some.module",), "target": name, "why": "", "how": "",
            "upstream": "", "ends": "", "probe": lambda module: None,
            "apply": lambda module: [change(module, name, lambda: "ours")], **more})

    def install(*patches, row=None, action="backport", listed=None):
        names = tuple(p.name for p in patches) if listed is None else listed
        row = row or Row("1.0", "1.0", action, "why", names)
        monkeypatch.setattr(hooks, "PATCHES", patches)
        monkeypatch.setattr(hooks, "records",
                            {p.name: report.Record(p.name, p.target) for p in patches})
        for name, value in (("_changes", {}), ("_busy", set()), ("_hooked", {p.name for p in patches}),
                            ("_active", False), ("_drifted", None)):
            monkeypatch.setattr(hooks, name, value)
        monkeypatch.setattr(report, "_said", set())
        monkeypatch.setattr(compat, "verdict", lambda: Verdict(
            action, "the reason", names if action in ("backport", "repair") else (), row))
        module.__spec__ = types.SimpleNamespace(_initializing=False)
        hooks.install()
        return {name: record.state for name, record in hooks.records.items()}

    return module, patch, install


def test_both_apply_where_all_agrees(world):
    module, patch, install = world
    assert install(patch("first"), patch("second")) == {"first": "applied", "second": "applied"}
    assert module.first() == module.second() == "ours"


def test_one_unexpected_object_takes_the_other_patch_back(world, capsys):
    module, patch, install = world

    def probe_(module):
        raise Unexpected("it is not a function")

    assert set(install(patch("first"), patch("second", probe=probe_)).values()) == {"drift"}
    assert module.first is module.second is function
    assert capsys.readouterr().err.count("[tpu-async-patch]") == 1


def test_an_imported_body_that_differs_from_its_source_is_drift(world, capsys):
    module, patch, install = world
    row = Row("1.0", "1.0", "backport", "why", ("first",), hashes={"some.module:first": "0" * 16})
    assert install(patch("first", relies_on=("some.module:first",)), row=row) == {"first": "drift"}
    assert module.first is function
    assert "some.module:first" in capsys.readouterr().err
    row = Row("1.0", "1.0", "backport", "why", ("first",),
              hashes={"some.module:first": probe.body_hash(function)})
    assert install(patch("first", relies_on=("some.module:first",)), row=row) == {
        "first": "applied"}


def test_a_half_imported_module_is_not_judged(world, monkeypatch):
    """tpu-inference's executor imports vLLM's in its first lines: it is there, and empty."""
    _, patch, install = world
    half = types.ModuleType("half.imported")
    half.__spec__ = types.SimpleNamespace(_initializing=True)
    monkeypatch.setitem(hooks.sys.modules, "half.imported", half)
    row = Row("1.0", "1.0", "backport", "why", ("first",), hashes={"half.imported:f": "0" * 16})
    assert install(patch("first", relies_on=("half.imported:f",)), row=row) == {"first": "applied"}
    half.__spec__._initializing = False
    assert install(patch("first", relies_on=("half.imported:f",)), row=row) == {"first": "drift"}


def test_a_patch_that_is_not_listed_is_not_applied(world):
    module, patch, install = world
    assert install(patch("first"), patch("second"), listed=("first",)) == {
        "first": "applied", "second": "not needed"}
    assert module.second is function


def test_superfluous_is_said_with_its_reason(world):
    module, patch, install = world
    assert install(patch("first", superfluous=lambda module: "V2 is on")) == {"first": "not needed"}
    assert hooks.records["first"].reason == "V2 is on" and module.first is function


@pytest.mark.parametrize("action", ["drift", "unknown", "refuse"])
def test_a_refusing_verdict_touches_nothing_and_is_said_once(world, capsys, action):
    module, patch, install = world
    install(patch("first"), patch("second"), action=action)
    assert module.first is module.second is function
    assert capsys.readouterr().err.count("the reason") == 1


def test_strict_applies_what_only_watches(world, monkeypatch):
    module, patch, install = world
    monkeypatch.setenv("VLLM_TPU_ASYNC_PATCH", "strict")
    states = install(patch("first", watches=True), patch("second"), action="drift")
    assert states == {"first": "applied", "second": "drift"}


def test_lines_go_to_vllms_log_where_it_is_set_up(caplog, capsys):
    root = logging.getLogger("vllm")
    root.addHandler(caplog.handler)
    try:
        report.say("hello", logging.WARNING)
    finally:
        root.removeHandler(caplog.handler)
    assert "[tpu-async-patch] hello" in caplog.text and not capsys.readouterr().err
