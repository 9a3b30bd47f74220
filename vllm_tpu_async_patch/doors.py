"""The doors through which the patch comes in unasked: interpreter start and vLLM's plugins.

vLLM imports and calls every entry point that it finds.  A door opens only when
``VLLM_TPU_ASYNC_PATCH`` says so; until then nothing beyond ``os`` and ``sys`` is imported.  All
doors lead to `vllm_tpu_async_patch.apply`, which is idempotent.
"""

import os
import sys

VARIABLE = "VLLM_TPU_ASYNC_PATCH"
ON = ("1", "strict")
OFF = ("", "0")

_warned = False


def wanted() -> bool:
    """Whether the environment asks for the patch."""
    return _toggle() in ON


def switched_off() -> bool:
    """Whether the environment forbids the patch, however it was asked for."""
    return _toggle() == "0"


def _toggle() -> str:
    """The variable's value: one of ON and OFF.  Any other counts as off, with one warning."""
    global _warned
    value = os.environ.get(VARIABLE, "").strip().lower()
    if value in ON or value in OFF:
        return value
    if not _warned:
        _warned = True
        print(f"[tpu-async-patch] {VARIABLE}={value!r} is not understood, treated as off; "
              f"accepted: 0, 1, strict", file=sys.stderr)
    return "0"


def general() -> None:
    """Entry point of ``vllm.general_plugins``: runs in every vLLM process, may run again."""
    if wanted():
        _open("vllm.general_plugins")


def platform() -> None:
    """Entry point of ``vllm.platform_plugins``, the earliest door inside vLLM.

    Returns None: to vLLM this is a platform that is not present.
    """
    if wanted():
        _open("vllm.platform_plugins")


def start() -> None:
    """Door at interpreter start: ``bootstrap/sitecustomize.py`` or the start file of ``enable``.

    Costs an interpreter that never sees vLLM next to nothing: it only waits for the import of
    vLLM or tpu-inference to begin.
    """
    if not wanted() or any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        return
    if any(name in sys.modules for name in _Waiting.FOR):
        _open("interpreter start")
    else:
        sys.meta_path.insert(0, _Waiting())


class _Waiting:
    """On sys.meta_path until somebody imports vLLM; finds nothing itself."""

    FOR = ("vllm", "tpu_inference")

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self.FOR:
            try:
                sys.meta_path.remove(self)  # type: ignore[arg-type]
            except ValueError:
                return  # another thread was here first
            _open("interpreter start")


def _open(door: str) -> None:
    # vLLM swallows what a platform plugin raises and dies of what a general plugin raises;
    # neither helps an operator, so the failure is reported here and vLLM goes on unpatched.
    try:
        from . import apply

        apply()
    except Exception:
        import traceback

        print(f"[tpu-async-patch] could not be applied through {door}; vLLM goes on without it:\n"
              f"{traceback.format_exc()}", file=sys.stderr)
