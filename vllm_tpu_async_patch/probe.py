"""Facts about vLLM and tpu-inference, read from their source text and from imported objects.

A fact is a word for how a release does something (``gate: tuple``); a body hash is the fact about
one function.  Reading the source needs no import of vLLM, so the whole row of the compatibility
table is confirmed before anything is touched; the object that is patched is hashed once more.

``python -m vllm_tpu_async_patch.probe DIRECTORY...`` prints the facts and hashes of an unpacked
release; with ``--record`` it files the hashes in the table.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

#: Value of a fact or hash whose subject the release does not have.
ABSENT = "absent"

PACKAGES = ("vllm", "tpu_inference")

GATE_BACKENDS = ("mp", "uni", "external_launcher")
GATE = "vllm.config.vllm:VllmConfig.__post_init__"
V2_ENV = "VLLM_USE_RAY_V2_EXECUTOR_BACKEND"
TPU_EXECUTOR = "tpu_inference.executors.ray_distributed_executor"
TPU_RUNNER = "tpu_inference.runner.tpu_runner"


def _digest(text: str) -> str:
    lines = text.splitlines()
    indent = lines[0][:len(lines[0]) - len(lines[0].lstrip())]
    body = "\n".join(line.removeprefix(indent).rstrip() for line in lines)
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _trimmed(text: str) -> str:
    # inspect takes comments that follow a function along, and Pythons differ in which.
    lines = text.splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip())
    body = "\n".join(line[indent:] if not line[:indent].strip() else line for line in lines)
    node = ast.parse(body).body[0]
    return "\n".join(lines[:node.end_lineno])


def body_hash(function: Any) -> str:
    """Shortened sha256 of a function's source text, decorators included, indentation not.

    Raises:
        OSError: there is no source text to be had, or it cannot be parsed.
    """
    if isinstance(function, (classmethod, staticmethod)):
        function = function.__func__
    try:
        return _digest(_trimmed(inspect.getsource(inspect.unwrap(function))))
    except (TypeError, SyntaxError, IndexError) as error:
        raise OSError(f"no source text: {error}") from error


def object_hash(target: str) -> str:
    """Body hash of an imported ``module:qualified.name``, or ABSENT.

    Raises:
        OSError: the object is there, its source text is not.
    """
    module, _, qualname = target.partition(":")
    owner: Any = sys.modules.get(module)
    for name in qualname.split("."):
        if owner is None:
            return ABSENT
        owner = vars(owner).get(name) if isinstance(owner, type) else getattr(owner, name, None)
    return ABSENT if owner is None else body_hash(owner)


class Source:
    """The source of one release: the directories that hold its packages.

    Args:
        roots: for each package the directory *of* the package.
    """

    def __init__(self, roots: Mapping[str, Path]) -> None:
        self.roots = dict(roots)
        self._trees: dict[str, _Module | None] = {}

    def module(self, name: str) -> _Module | None:
        """The parsed module, or None where the release does not have it."""
        if name not in self._trees:
            package, _, rest = name.partition(".")
            root = self.roots.get(package)
            path = root.joinpath(*rest.split(".")).with_suffix(".py") if root else None
            self._trees[name] = _Module(path) if path and path.is_file() else None
        return self._trees[name]

    def find(self, target: str) -> ast.AST | None:
        """The definition of ``module:qualified.name``, or None."""
        name, _, qualname = target.partition(":")
        module = self.module(name)
        return module.find(qualname) if module else None

    def hash(self, target: str) -> str:
        """Body hash of ``module:qualified.name``, or ABSENT."""
        module = self.module(target.partition(":")[0])
        node = self.find(target)
        return ABSENT if module is None or node is None else _digest(module.text(node))

    def facts(self, names: Iterable[str] | None = None) -> dict[str, str]:
        """The facts called ``names`` (default: all): structural ones by word, hashes by target."""
        wanted = FACTS if names is None else names
        return {name: FACTS[name](self) if name in FACTS else self.hash(name) for name in wanted}


class _Module:
    def __init__(self, path: Path) -> None:
        self._source = path.read_text(encoding="utf-8")

    @cached_property
    def _lines(self) -> list[str]:
        return self._source.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self._source)

    def text(self, node: Any) -> str:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        return "\n".join(self._lines[first - 1:node.end_lineno])

    def find(self, qualname: str) -> ast.AST | None:
        node: ast.AST | None = self.tree
        for name in qualname.split("."):
            node = next((n for n in _defined_in(node) if n.name == name), None)
            if node is None:
                return None
        return node


def _defined_in(node: Any) -> Iterator[Any]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield child
        elif isinstance(child, (ast.Try, ast.If, ast.ExceptHandler)):
            yield from _defined_in(child)


def _mentions(node: ast.AST | None, word: str) -> bool:
    return node is not None and any(
        word in (getattr(n, "attr", None), getattr(n, "id", None)) for n in ast.walk(node))


def _default_of(node: ast.AST | None, field: str) -> str:
    for statement in getattr(node, "body", ()):
        if isinstance(statement, ast.AnnAssign) and getattr(statement.target, "id", "") == field:
            value = statement.value
            if isinstance(value, ast.Call):  # Field(default=...)
                value = next((k.value for k in value.keywords if k.arg == "default"), None)
            return ast.unparse(value) if value else ABSENT
    return ABSENT


def _gate(source: Source) -> str:
    node = source.find(GATE)
    if _mentions(node, "supports_async_scheduling"):
        return "classmethod"
    for inner in ast.walk(node) if node else ():
        if isinstance(inner, ast.Tuple) and len(inner.elts) == len(GATE_BACKENDS) and all(
                isinstance(e, ast.Constant) and e.value == name
                for e, name in zip(inner.elts, GATE_BACKENDS)):
            return "tuple"
    return ABSENT


def _executor(source: Source) -> str:
    dag = source.find(f"{TPU_EXECUTOR}:RayDistributedExecutor._execute_dag")
    if dag is None:
        return ("waits in the graph"
                if source.find(f"{TPU_EXECUTOR}:RayDistributedExecutor") else ABSENT)
    if _mentions(dag, "kv_output_aggregator"):
        return "asynchronous"
    return "asynchronous, connector refused" if _mentions(dag, "has_connector") else (
        "asynchronous, reports of other hosts dropped")


def _worker(source: Source) -> str:
    if source.find(f"{TPU_EXECUTOR}:RayWorkerWrapper.get_execute_model_output"):
        return "keeps outputs"
    return "vLLM's" if source.module(TPU_EXECUTOR) else ABSENT


def _v2_default(source: Source) -> str:
    module = source.module("vllm.envs")
    if module is None:
        return ABSENT
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and len(node.args) == 2:
            name, default = node.args
            if isinstance(name, ast.Constant) and name.value == V2_ENV:
                return str(getattr(default, "value", ABSENT))
    return ABSENT


def _runner(source: Source) -> str:
    if source.find(f"{TPU_RUNNER}:AsyncTPUModelRunnerOutput") is None:
        return "synchronous" if source.module(TPU_RUNNER) else ABSENT
    module = source.module(TPU_RUNNER)
    assert module is not None
    refuses = any(isinstance(n, ast.Assert) and "speculative" in ast.unparse(n)
                  for n in ast.walk(module.tree))
    return "asynchronous, no speculation" if refuses else "asynchronous"


def _empty_step(source: Source) -> str:
    node = source.find(f"{TPU_RUNNER}:TPUModelRunner._execute_model")
    if node is None or not _mentions(source.module(TPU_RUNNER).tree,  # type: ignore[union-attr]
                                     "_pre_async_results"):
        return ABSENT
    return "clears" if _mentions(node, "_pre_async_results") else "keeps"


def _future(source: Source) -> str:
    core = source.find("vllm.v1.engine.core:EngineCore.step_with_batch_queue")
    if core is None:
        return ABSENT
    used = ["result"] + [n for n in ("done", "add_done_callback") if _mentions(core, n)]
    return "+".join(used)


#: name -> how it is read.  The table states the value that each release is expected to have.
FACTS: dict[str, Callable[[Source], str]] = {
    "gate": _gate,
    "default": lambda s: _default_of(s.find("vllm.config.scheduler:SchedulerConfig"),
                                     "async_scheduling"),
    "executor": _executor,
    "worker": _worker,
    "v2-default": _v2_default,
    "runner": _runner,
    "empty-step": _empty_step,
    "future": _future,
}


@cache
def installed_source() -> Source:
    """The packages on this interpreter's path, located without importing them."""
    from importlib.machinery import PathFinder

    roots = {}
    for package in PACKAGES:
        spec = PathFinder.find_spec(package)
        for location in (spec.submodule_search_locations or ()) if spec else ():
            roots[package] = Path(location)
            break
    return Source(roots)


def _targets() -> list[str]:
    from .patches import PATCHES

    return sorted({target for patch in PATCHES for target in patch.relies_on})


def record(vllm: str, tpu_inference: str, source: Source) -> str:
    """Text of `hashes.py` with the hashes of one more release.

    Args:
        vllm: base version of vllm-tpu or vllm; hashes of its modules are filed under it.
        tpu_inference: the same for tpu-inference.
        source: the unpacked release.
    """
    from .hashes import HASHES

    table = {target: {value: names.split() for value, names in HASHES.get(target, {}).items()}
             for target in _targets()}
    for target, by_hash in table.items():
        release = vllm if target.startswith("vllm.") else tpu_inference
        value = source.hash(target)
        if value == ABSENT or any(release in names for names in by_hash.values()):
            continue
        by_hash.setdefault(value, []).append(release)
    lines = ['"""Body hashes of upstream functions: target -> hash -> the releases that have it.',
             "", "Written by ``python -m vllm_tpu_async_patch.probe --record``.", '"""', "",
             "from __future__ import annotations", "", "HASHES: dict[str, dict[str, str]] = {"]
    for target, by_hash in table.items():
        lines += [f'    "{target}": {{']
        for value, names in by_hash.items():
            prefix, text = f'        "{value}": ', " ".join(names)
            while len(prefix) + len(text) > 92:
                cut = text.rindex(" ", 0, 92 - len(prefix)) + 1
                lines.append(f'{prefix}"{text[:cut]}"')
                prefix, text = " " * len(prefix), text[cut:]
            lines.append(f'{prefix}"{text}",')
        lines += ["    },"]
    return "\n".join([*lines, "}", ""])


def main(argv: list[str] | None = None) -> int:
    """Print facts and hashes of a release, or file its hashes in the package's own table."""
    import argparse
    import json

    parser = argparse.ArgumentParser(prog="python -m vllm_tpu_async_patch.probe")
    parser.add_argument("directory", nargs="*", type=Path,
                        help="where the wheels are unpacked; default: what is installed")
    parser.add_argument("--record", nargs=2, metavar=("VLLM", "TPU_INFERENCE"),
                        help="write the hashes into hashes.py under these versions")
    args = parser.parse_args(argv)
    source = Source({package: directory / package for directory in args.directory
                     for package in PACKAGES if (directory / package).is_dir()}
                    ) if args.directory else installed_source()
    if args.record:
        text = record(*args.record, source)
        Path(__file__).with_name("hashes.py").write_text(text, encoding="utf-8")
        return 0
    json.dump({"facts": source.facts(), "hashes": source.facts(_targets())}, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
