"""Facts and body hashes: from source text and from objects, and that both agree."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from vllm_tpu_async_patch import probe

pytestmark = pytest.mark.unit

MODULE = '''\
import functools


def layer(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)
    return inner


try:
    class Nested:
        def method(self):
            return 1
except ImportError:
    Nested = None


class Owner:
    @layer
    @layer
    def method(self):
        """Two
lines."""
        return 1
        # a comment at the end

    @staticmethod
    def static(): return 2

    @classmethod
    def made(cls): return 3


class Child(Owner):
    pass
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    (tmp_path / "vllm" / "some.py").write_text(MODULE)
    for name in [n for n in sys.modules if n.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("vllm.some"), probe.Source({"vllm": tmp_path / "vllm"})
    for name in ("vllm", "vllm.some"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["Owner.method", "Owner.static", "Owner.made", "Nested.method",
                                  "layer"])
def test_source_and_object_have_the_same_hash(package, name):
    _, source = package
    assert source.hash(f"vllm.some:{name}") == probe.object_hash(f"vllm.some:{name}")
    assert source.hash(f"vllm.some:{name}") != probe.ABSENT


@pytest.mark.parametrize("name", ["Owner.gone", "Gone.method", "Child.method"])
def test_absent_is_a_word_not_an_error(package, name):
    _, source = package
    assert source.hash(f"vllm.some:{name}") == probe.ABSENT
    assert probe.object_hash(f"vllm.some:{name}") == probe.ABSENT


def test_absent_module(package):
    _, source = package
    assert source.hash("vllm.other:f") == source.hash("jax.numpy:f") == probe.ABSENT


def test_indentation_and_trailing_blanks_do_not_count_but_the_text_does():
    one, two = (probe._digest(text) for text in ("def f():\n    return 1", "  def f():\n"
                                                 "      return 1   \n"))
    assert one == two != probe._digest("def f():\n    return 2")


def test_a_replaced_function_is_seen(package):
    module, source = package
    module.Owner.method = lambda self: 2
    assert probe.object_hash("vllm.some:Owner.method") != source.hash("vllm.some:Owner.method")


def test_missing_source_text_is_an_error_that_says_so(package):
    module, _ = package
    exec("def made_up(): pass", vars(module))
    with pytest.raises(OSError, match="source"):
        probe.object_hash("vllm.some:made_up")


def test_nothing_is_imported_to_read_source(tmp_path):
    assert probe.Source({"vllm": Path(tmp_path)}).facts()["gate"] == probe.ABSENT


def test_recording_a_release_adds_its_hashes(package, monkeypatch):
    from vllm_tpu_async_patch import hashes

    _, source = package
    monkeypatch.setattr(probe, "_targets", lambda: ["vllm.some:Owner.method"])
    monkeypatch.setattr(hashes, "HASHES",
                        {"vllm.some:Owner.method": {source.hash("vllm.some:Owner.method"): "1.0"}})
    space: dict = {}
    exec(probe.record("2.0", "2.0", source), space)
    assert list(space["HASHES"]["vllm.some:Owner.method"].values()) == ["1.0 2.0"]
