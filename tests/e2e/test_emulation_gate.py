"""Nothing reads an array of the emulated device before its step is over."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("jax", reason="needs vllm-tpu")

pytestmark = pytest.mark.e2e

#: In a process of its own: the gate changes JAX's arrays for good.
PROGRAM = """
import time
import jax, jax.numpy as jnp, numpy as np
from vllm_tpu_async_patch.emulation.device import DeviceClock, Gate

SECONDS = 0.25
double = jax.jit(lambda x: x * 2)
double(jnp.arange(4)).block_until_ready()
clock, gate = DeviceClock(SECONDS * 1000), Gate()
gate.install()

def step():
    clock.dispatch(1, lambda: double(jnp.arange(4)))
    return gate.hold(double(jnp.arange(4)), clock.last), clock.last

ways = {
    "device_get": jax.device_get,
    "device_get of a tree": lambda x: jax.device_get({"tokens": [x, x]}),
    "after copy_to_host_async": lambda x: np.asarray(jax.device_get(jax.copy_to_host_async(x))),
    "tolist": lambda x: x.tolist(),
    "__array__": lambda x: x.__array__(),
    "block_until_ready": lambda x: x.block_until_ready(),
    "jax.block_until_ready": jax.block_until_ready,
}
for name, read in ways.items():
    tokens, its = step()
    assert not tokens.is_ready(), name
    read(tokens)
    assert time.monotonic() >= its.end >= its.submitted + SECONDS, name
    assert tokens.is_ready() and jax.device_get(tokens).tolist() == [0, 2, 4, 6], name

# The device works on it with no wait, as the next step does, and so is everything else read.
tokens, its = step()
derived = double(tokens)
other = jax.device_get(double(jnp.arange(4)))
assert not its.over() and not gate.step(derived)
assert other.tolist() == [0, 2, 4, 6]

# Two steps in flight: the first one's tokens do not wait for the second.
first, its = step()
second, later = step()
jax.device_get(first)
assert its.over() and not later.over()

# What is gone is forgotten: another array may get its address.
assert len(gate._held) == 3, len(gate._held)
del tokens, first, second
assert not gate._held
print("fine")
"""


def test_every_way_to_read_waits_for_the_step() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True,
                          env={**os.environ, "JAX_PLATFORMS": "cpu",
                               "VLLM_TPU_ASYNC_PATCH": "0"})
    assert done.stdout == "fine\n", done.stderr
