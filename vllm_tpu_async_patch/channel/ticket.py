"""What driver and worker agree on: step inputs, tickets, checksums, failures."""

from __future__ import annotations

import enum
import pickle
import zlib
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple


class StepFailed(RuntimeError):
    """A step's output could not be produced or brought back.  The message says which and where."""


class Sampling(enum.Enum):
    """Stands where the grammar output goes when there is none yet."""

    LATER = "later"


#: ``(scheduler_output, LATER)`` sends the forward pass alone; ``(None, grammar_output)`` follows.
LATER = Sampling.LATER


class Report(enum.Enum):
    """Stands where a worker's KV report goes when it cannot be known yet."""

    IN_OUTPUT = "in the output"


class StepTicket(NamedTuple):
    """What the compiled graph returns for a dispatched step.

    Attributes:
        step: number of the step on this worker, from 1, one more at each dispatch.
        rank: rank of the worker.
        checksum: of the step and its requests as this worker received them; None if unknown.
        report: this worker's ``kv_connector_output``, or `Report.IN_OUTPUT` if only the resolved
            output has it.
        failure: what went wrong on this worker, ready for the operator; None if nothing did.
    """

    step: int
    rank: int
    checksum: int | None = None
    report: Any = None
    failure: str | None = None


def checksum(step: int, request_ids: Collection[str] | None) -> int | None:
    """One number for a step and the requests in it, in whatever order; None without requests.

    The same in every process, unlike ``hash()``.
    """
    if request_ids is None:
        return None
    return zlib.crc32("\n".join(sorted(request_ids)).encode(), step & 0xFFFFFFFF)


def scheduled_requests(scheduler_output: Any) -> Collection[str] | None:
    """The requests of a SchedulerOutput; None if it is of a kind that does not tell."""
    scheduled = getattr(scheduler_output, "num_scheduled_tokens", None)
    return scheduled.keys() if isinstance(scheduled, Mapping) else None


def output_requests(output: Any) -> Collection[str] | None:
    """The requests of a ModelRunnerOutput; None if it is of a kind that does not tell."""
    request_ids = getattr(output, "req_ids", None)
    return request_ids if isinstance(request_ids, (list, tuple)) else None


def encode(value: Any) -> bytes:
    """As bytes, which Ray sends through a compiled graph as they are.

    Anything else goes through Ray's own pickler, at about 100 us per step and direction; the C
    pickler needs a third of that for a SchedulerOutput.  What it cannot pickle (a class of
    ``__main__`` in a connector's metadata) goes through cloudpickle, as Ray would do it.
    """
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        import cloudpickle

        data: bytes = cloudpickle.dumps(value)
        return data


decode = pickle.loads
