"""``python -m vllm_tpu_async_patch``: the console script under another name."""

import sys

from .cli import main

sys.exit(main())
