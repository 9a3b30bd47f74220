"""The compatibility table: one row per release, read from its wheel or source distribution."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from . import reasons
from .hashes import HASHES

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

_BACKPORT_REASON = ("vLLM's gate refuses async scheduling over Ray, and the Ray executor waits for "
                    "the device in every step")

_OLD = {"gate": "tuple", "default": "False", "executor": "waits in the graph", "worker": "vLLM's",
        "v2-default": "absent", "runner": "asynchronous, no speculation", "empty-step": "keeps",
        "future": "result+done+add_done_callback"}
_PLAIN = {**_OLD, "default": "None", "future": "result+done"}


def _hashes(vllm: str, tpu_inference: str) -> dict[str, str]:
    found = {}
    for target, by_hash in HASHES.items():
        release = vllm if target.startswith("vllm.") else tpu_inference
        for value, releases in by_hash.items():
            if release in releases.split():
                found[target] = value
    return found


def _row(vllm: str, action: str, reason: str, patches: tuple[str, ...], facts: dict[str, str],
         evidence: str, tpu_inference: str | None = None, like: str | None = None) -> Row:
    pair = vllm if tpu_inference is None else tpu_inference
    return Row(vllm, pair, action, reason, patches, facts, evidence, _hashes(vllm, like or pair))


_ROWS = (
    Row("0.9.3", "", STAND_ASIDE, reasons.TORCH_XLA(), evidence="no tpu-inference requirement"),
    Row("0.10.1.1", "", STAND_ASIDE, reasons.TORCH_XLA(), evidence="no tpu-inference requirement"),
    Row("0.11.1", "0.11.1", REFUSE, reasons.SYNC_RUNNER(),
        evidence="tpu_inference/runner/tpu_jax_runner.py: no sample_tokens"),
    _row("0.12.0", BACKPORT, _BACKPORT_REASON, BACKPORTED, _OLD, "vllm/config/vllm.py:524"),
    _row("0.13.2", BACKPORT, _BACKPORT_REASON, BACKPORTED, _OLD, "vllm/config/vllm.py:536"),
    _row("0.13.3", BACKPORT, _BACKPORT_REASON, BACKPORTED, _OLD, "vllm/config/vllm.py:536"),
)

#: In the order of their release.
ROWS: dict[str, Row] = {row.vllm: row for row in _ROWS}
