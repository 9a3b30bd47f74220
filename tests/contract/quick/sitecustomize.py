"""For the children of the contract tests: they import vLLM and end, the collector finds nothing."""

import gc

gc.set_threshold(100_000, 50, 1000)
