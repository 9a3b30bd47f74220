"""How a step's output travels: a ticket through the compiled graph, the output when it is ready.

::

    driver  submit ──(scheduler output, grammar)──> compiled graph ──> every worker: dispatch
            tickets <──────────────────────────────────────────────────┘ at once
            output <── Unix socket, or one actor call ── output rank: a thread resolves in order

`ticket` is what both halves agree on, `outbox` and `local` carry, `worker` and `driver` are the
two halves.  Nothing in here imports vLLM or tpu-inference; only `driver` needs Ray.

Why a plain Unix stream socket.  vLLM's MessageQueue (``bench overhead``, strategy ``mq``) is about
as fast while it spins, but a waiting reader
takes a whole core, and its writer has no way to tell that the reader has died; pyzmq adds two
threads and two hand-overs.  A stream socket blocks without polling, is part of the standard
library, and its end of file tells of a dead worker at once.
"""

from .outbox import Outbox
from .ticket import LATER, StepFailed, StepTicket

__all__ = ["LATER", "Outbox", "StepFailed", "StepTicket"]
