"""The compatibility table: one row per release, read from its wheel or source distribution."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from . import reasons
from .hashes import HASHES
from .patches import PATCHES

BACKPORT = "backport"
REPAIR = "repair"
NATIVE = "native"
STAND_ASIDE = "stand-aside"
REFUSE = "refuse"


@dataclass(frozen=True)
class Row:
    """One release.

    Attributes:
        vllm: base version of vllm-tpu (or of plain vLLM), the key.
        tpu_inference: base version that it is released with; "" where there is no such release.
        action: what this package does there.
        reason: why, in an operator's words.
        patches: the patch records that apply.
        facts: what the release is expected to look like, see `probe.FACTS`.
        evidence: where that was read.
        hashes: body hash of each upstream function that the patches replace or rely on.
    """

    vllm: str
    tpu_inference: str
    action: str
    reason: str
    patches: tuple[str, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    evidence: str = ""
    hashes: dict[str, str] = field(default_factory=dict)

    @cached_property
    def expected(self) -> dict[str, str]:
        """Facts and hashes together: all that must agree before anything is touched."""
        return {**self.facts, **self.hashes}


#: The patches that bring what later releases have themselves.
BACKPORTED = ("platform-hook", "tpu-whitelist", "executor-answer", "uniproc-answer",
               "multiproc-answer", "gate", "ray-executor", "host-rank")

_WATCH = ("variables", "request", "engine-line")
_BACKPORT = (*BACKPORTED, "empty-step", "spec-guard", *_WATCH)
_V2 = ("ray-name", "pp-guard", *_WATCH)
_V1_REPAIR = ("ray-name", "empty-step", "pp-guard", *_WATCH)

_BACKPORT_REASON = ("vLLM's gate refuses async scheduling over Ray, and the Ray executor waits for "
                    "the device in every step")

_PLAIN_REASON = ("plain vLLM without a tpu-inference release of its own: backported only where all "
                 "of tpu-inference agrees with release 0.13.3")
_RAY_NAME_REASON = ("asynchronous over Ray itself, but the backend name `ray` (also Ray Serve) is "
                    "refused, and pipeline parallelism and speculative decoding slip through")
_KV_REASON = {
    "0.18.0": f"{_RAY_NAME_REASON}; a KV connector fails an assertion at the first step",
    "0.19.0": f"{_RAY_NAME_REASON}; KV reports of all hosts but the first are lost"}
_V2_GATE_REASON = ("asynchronous over Ray itself, but pipeline parallelism slips through; the name "
                   "`ray` is refused only with VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0")
_V2_REASON = ("asynchronous over Ray itself with RayExecutorV2; only the pipeline-parallel guard, "
              "and with VLLM_USE_RAY_V2_EXECUTOR_BACKEND=0 the name `ray`, are mended")

_OLD = {"gate": "tuple", "default": "False", "executor": "waits in the graph", "worker": "vLLM's",
        "v2-default": "absent", "runner": "asynchronous, no speculation", "empty-step": "keeps",
        "future": "result+done+add_done_callback"}
_PLAIN = {**_OLD, "default": "None", "future": "result+done"}
_V1 = {"gate": "classmethod", "default": "None", "executor": "asynchronous",
       "worker": "keeps outputs", "v2-default": "0", "runner": "asynchronous, no speculation",
       "empty-step": "keeps", "future": "result+done"}
_V1_0180 = {**_V1, "executor": "asynchronous, connector refused"}
_V1_0190 = {**_V1, "executor": "asynchronous, reports of other hosts dropped"}
_SPEC = {**_V1, "v2-default": "1", "runner": "asynchronous"}
_CONFIG = {**_SPEC, "future": "result"}
_CLEARS = {**_CONFIG, "empty-step": "clears"}


def _hashes(patches: tuple[str, ...], vllm: str, tpu_inference: str) -> dict[str, str]:
    relied_on = {t for patch in PATCHES if patch.name in patches for t in patch.relies_on}
    found = {}
    for target in sorted(relied_on):
        by_hash = HASHES.get(target, {})
        release = vllm if target.startswith("vllm.") else tpu_inference
        for value, releases in by_hash.items():
            if release in releases.split():
                found[target] = value
    return found


def _row(vllm: str, action: str, reason: str, patches: tuple[str, ...], facts: dict[str, str],
         evidence: str, tpu_inference: str | None = None, like: str | None = None) -> Row:
    pair = vllm if tpu_inference is None else tpu_inference
    return Row(vllm, pair, action, reason, patches, facts, evidence, _hashes(patches, vllm, like or pair))


def _plain(version: str, also: tuple[str, ...]) -> Row:
    return _row(version, BACKPORT, _PLAIN_REASON, (*_BACKPORT, *also), _PLAIN,
                "vllm/config/vllm.py, VllmConfig.__post_init__", tpu_inference="", like="0.13.3")


_ROWS = (
    Row("0.9.3", "", STAND_ASIDE, reasons.TORCH_XLA(), evidence="no tpu-inference requirement"),
    Row("0.10.1.1", "", STAND_ASIDE, reasons.TORCH_XLA(), evidence="no tpu-inference requirement"),
    Row("0.11.1", "0.11.1", REFUSE, reasons.SYNC_RUNNER(),
        evidence="tpu_inference/runner/tpu_jax_runner.py: no sample_tokens"),
    _row("0.12.0", BACKPORT, _BACKPORT_REASON, _BACKPORT, _OLD, "vllm/config/vllm.py:524"),
    _row("0.13.2", BACKPORT, _BACKPORT_REASON, _BACKPORT, _OLD, "vllm/config/vllm.py:536"),
    _row("0.13.3", BACKPORT, _BACKPORT_REASON, _BACKPORT, _OLD, "vllm/config/vllm.py:536"),
    *(_plain(v, ()) for v in ("0.14.0", "0.14.1", "0.15.0", "0.15.1")),
    # From 0.16.0 on vLLM's own gate has no pipeline-parallel check.
    *(_plain(v, ("pp-guard",)) for v in ("0.16.0", "0.17.0", "0.17.1")),
    _row("0.18.0", REPAIR, _KV_REASON["0.18.0"], ("kv-reports", "spec-guard", *_V1_REPAIR),
         _V1_0180, "tpu_inference/executors/ray_distributed_executor.py:478"),
    _row("0.19.0", REPAIR, _KV_REASON["0.19.0"], ("kv-reports", "spec-guard", *_V1_REPAIR),
         _V1_0190, "tpu_inference/executors/ray_distributed_executor.py:64"),
    _row("0.20.0", REPAIR, _RAY_NAME_REASON, ("spec-guard", *_V1_REPAIR), _V1,
         "vllm/config/vllm.py:781"),
    _row("0.21.0", REPAIR, _V2_GATE_REASON, _V1_REPAIR, _SPEC, "vllm/config/vllm.py:818"),
    _row("0.22.0", REPAIR, _V2_GATE_REASON, _V1_REPAIR, _SPEC, "vllm/config/vllm.py:909",
         tpu_inference="0.22.1"),
    _row("0.23.0", REPAIR, _V2_GATE_REASON, _V1_REPAIR, _CONFIG, "vllm/config/vllm.py:931"),
    _row("0.24.0", NATIVE, _V2_REASON, _V1_REPAIR, _CONFIG, "vllm/config/vllm.py:938"),
    *(_row(v, NATIVE, _V2_REASON, _V2, _CLEARS, f"vllm/config/vllm.py:{line}") for v, line in (
        ("0.25.0", 1001), ("0.26.0", 1026), ("0.27.0", 1057), ("0.28.0", 1189), ("0.29.0", 1232),
        ("0.30.0", 1511), ("0.31.0", 1533), ("0.32.0", 1559))),
)

#: In the order of their release.
ROWS: dict[str, Row] = {row.vllm: row for row in _ROWS}
