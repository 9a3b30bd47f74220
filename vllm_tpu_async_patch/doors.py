"""The doors through which the patch comes in unasked: vLLM's plugin entry points.

vLLM imports and calls every entry point that it finds.  A door opens only when
``VLLM_TPU_ASYNC_PATCH`` says so; until then nothing beyond ``os`` and ``sys`` is imported.
"""

import os
import sys

VARIABLE = "VLLM_TPU_ASYNC_PATCH"
ON = ("1", "strict")
OFF = ("", "0")

_warned = False


def wanted() -> bool:
    """Whether the environment asks for the patch.  An unknown value counts as off, with a warning."""
    global _warned
    value = os.environ.get(VARIABLE, "").strip().lower()
    if value in ON:
        return True
    if value not in OFF and not _warned:
        _warned = True
        print(f"[tpu-async-patch] {VARIABLE}={value!r} is not understood, treated as off; "
              f"accepted: 0, 1, strict", file=sys.stderr)
    return False


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
