"""How a step's output travels: a ticket through the compiled graph, the output when it is ready.

::

    driver  submit ──(scheduler output, grammar)──> compiled graph ──> every worker: dispatch
            tickets <──────────────────────────────────────────────────┘ at once
            output <── Unix socket, or one actor call ── output rank: a thread resolves in order

`ticket` is what both halves agree on, `outbox` and `local` carry, `worker` and `driver` are the
two halves.  Nothing in here imports vLLM or tpu-inference; only `driver` needs Ray.

Why a plain Unix stream socket.  ``python -m vllm_tpu_async_patch.bench.transport`` compares it with
pyzmq over a Unix socket and with vLLM's MessageQueue.  Here (2 busy cores, load 8, 4000 bytes) a
round trip took 163, 169 and 172 us, in another run 208, 216 and 256: no difference that matters.
What does: a reader of the MessageQueue spins while it waits (0.35 to 0.48 CPU seconds in a second,
against 0.001), and neither it nor pyzmq tells that the other side has died.  A stream socket does,
at once, by its end of file; it knows its peer's user; and it needs no package.
"""

from .outbox import Outbox
from .ticket import LATER, StepFailed, StepTicket

__all__ = ["LATER", "Outbox", "StepFailed", "StepTicket"]
