"""What a CPU lacks of a TPU host, and what stands in for it, module by module of tpu-inference.

Each function below gets its module right after its import.  Releases differ: what a release does
not have is skipped.
"""

from __future__ import annotations

import functools
import math
import os
import sys
from types import ModuleType
from typing import Any

KV_BLOCKS = 64
_announced = False


def hosts() -> int:
    """How many hosts the emulated pod has."""
    return int(os.environ.get("TPU_EMULATION_HOSTS") or 1)


def host() -> int:
    """Which of them this process is on, as a TPU VM tells it."""
    return int(os.environ.get("TPU_WORKER_ID") or 0)


def device_ms() -> float:
    return float(os.environ.get("TPU_EMULATION_DEVICE_MS") or 0)


def patch(module: ModuleType) -> None:
    """Put the stand-ins into a module of tpu-inference that has just been imported."""
    _PATCHES[module.__name__](module)
    _announce()


def _announce() -> None:
    global _announced
    if not _announced:
        _announced = True
        sys.stderr.write(
            f"[tpu-emulation] pid {os.getpid()}: this process emulates a TPU host on the CPU "
            f"(host {host()} of {hosts()}, device {device_ms():g} ms); results are real, "
            "speed is not\n")
        sys.stderr.flush()


def _replace(module: ModuleType, **stand_ins: Any) -> None:
    for name, stand_in in stand_ins.items():
        if hasattr(module, name):
            setattr(module, name, stand_in)


def _chips(module: ModuleType) -> None:
    """A TPU VM describes itself in files and through a metadata server; here is neither."""
    _replace(
        module,
        get_tpu_metadata=lambda key="": None,
        get_tpu_type=lambda: f"v6e-{hosts()}",
        get_node_name=lambda: f"emulated-tpu-{host()}",
        get_node_worker_id=host,
        get_num_cores_per_chip=lambda: 1,
        get_num_chips=lambda: 1,
    )


def _pci_devices(module: ModuleType) -> None:
    """The tpu-info package looks for chips on the PCI bus; the platform's name comes from there."""
    if hasattr(module, "TpuChip"):
        _replace(module, get_local_chips=lambda: (module.TpuChip.V6E, 1))


def _utils(module: ModuleType) -> None:
    """Devices without coordinates, memory statistics and a TPU's name."""
    import jax
    import numpy as np

    def make_optimized_mesh(axis_shapes, axis_names, *, devices=None):
        # Not jax.make_mesh: from JAX 0.9 on its axes are explicit, which the models do not expect.
        devices = np.array(jax.devices() if devices is None else devices)
        return jax.sharding.Mesh(devices.reshape(axis_shapes), axis_names)

    def get_device_name(num_devices=None):
        return "TPU v6e" if num_devices is None else f"TPU v6e-{num_devices}"

    _replace(module, make_optimized_mesh=make_optimized_mesh, get_device_name=get_device_name,
             # What the logs show.  How much the cache gets of it: _worker.
             hbm_usage_bytes=lambda devices: [(0, 32 << 30)] * len(devices))


def _topology(module: ModuleType) -> None:
    """Hosts in the order of their JAX processes; a TPU orders them by coordinates."""
    def get_device_topology_order_id(local_devices, global_devices):
        order = sorted({device.process_index for device in global_devices})
        return order.index(local_devices[0].process_index)

    _replace(module, get_device_topology_order_id=get_device_topology_order_id)


def _attention(module: ModuleType) -> None:
    """Pallas kernels for the TPU do not compile for the CPU."""
    from .attention import ragged_paged_attention

    _replace(module, ragged_paged_attention=ragged_paged_attention,
             ragged_paged_attention_hd64=ragged_paged_attention)


def _worker(module: ModuleType) -> None:
    worker = module.TPUWorker
    init_device = worker.init_device

    @functools.wraps(init_device)
    def joined_init_device(self, *args, **kwargs):
        if hosts() > 1:
            _join_the_other_hosts()
        return init_device(self, *args, **kwargs)

    def determine_available_memory(self):
        """Memory for about 64 blocks, or for one request of the greatest length.

        A TPU updates its cache in place.  A CPU does not (no buffer donation), so each step
        copies all of it, and a cache as large as memory allows makes each step take seconds.
        """
        config = self.vllm_config
        per_block = sum(spec.page_size_bytes
                        for spec in self.model_runner.get_kv_cache_spec().values())
        longest = math.ceil(config.model_config.max_model_len / config.cache_config.block_size)
        # One more: vLLM keeps a block for itself.  And 0.9 is vLLM's default for the utilization.
        memory = per_block * max(KV_BLOCKS, longest + 1) / 0.9
        return math.ceil(memory * config.cache_config.gpu_memory_utilization)

    worker.init_device = joined_init_device
    worker.determine_available_memory = determine_available_memory


def _join_the_other_hosts() -> None:
    """libtpu makes one system of a pod's hosts; for CPUs it is jax.distributed and gloo."""
    import jax
    from jax._src.lib import xla_client

    address = os.environ["TPU_EMULATION_COORDINATOR"]
    collectives = xla_client._xla.make_gloo_tcp_collectives
    # Left alone, both would listen on every address of the machine.
    xla_client._xla.make_gloo_tcp_collectives = functools.partial(collectives,
                                                                  hostname="127.0.0.1")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # A TPU runs what it is given in that order; the CPU may not.  Two collectives that the hosts
    # run in different order (say, those of sampling and of log-probs) wait for each other for ever.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
    jax.distributed.initialize(address, hosts(), host(), coordinator_bind_address=address)
    _put_local_arrays_on_a_global_mesh()


def _put_local_arrays_on_a_global_mesh() -> None:
    """On a TPU host the CPU is a second, local backend; here it is the pod itself.

    So arrays that tpu-inference makes "on the CPU" have to become local again, and putting
    one of them on all hosts' devices is not a transfer between two backends any more.
    """
    import jax
    import numpy as np

    put, devices = jax.device_put, jax.devices

    def is_local(leaf):
        if isinstance(leaf, jax.Array):
            return (not isinstance(leaf, jax.core.Tracer) and leaf.is_fully_addressable
                    and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key))
        return isinstance(leaf, np.ndarray)

    @functools.wraps(put)
    def device_put(x, device=None, **kwargs):
        if not isinstance(device, jax.sharding.Sharding) or device.is_fully_addressable:
            return put(x, device, **kwargs)

        def spread(leaf):
            if not is_local(leaf):
                return put(leaf, device, **kwargs)
            data = np.asarray(leaf)
            return jax.make_array_from_callback(data.shape, device, lambda index: data[index])

        return jax.tree.map(spread, x)

    @functools.wraps(devices)
    def cpu_is_local(backend=None):
        return jax.local_devices() if backend == "cpu" else devices(backend)

    jax.device_put, jax.devices = device_put, cpu_is_local


def _runner(module: ModuleType) -> None:
    """Give the runner a device clock (see `device`), if one is wanted or its record is."""
    record = os.environ.get("TPU_EMULATION_RECORD") or None
    if not device_ms() and record is None:
        return
    from .device import DeviceClock, Gate

    clock, gate = DeviceClock(device_ms(), record, host()), Gate()
    runner = module.TPUModelRunner
    load_model, execute_model = runner.load_model, runner.execute_model
    scheduled: list[int] = []  # tokens of the step under way; empty outside of one

    @functools.wraps(load_model)
    def clocked_load_model(self, *args, **kwargs):
        load_model(self, *args, **kwargs)
        forward = self.model_fn

        @functools.wraps(forward)
        def model_fn(*args, **kwargs):
            if not scheduled:  # precompilation
                return forward(*args, **kwargs)
            # Without the first result: the cache's buffers go to the next step and end there.
            return clock.dispatch(scheduled[-1], lambda: forward(*args, **kwargs),
                                  lambda results: results[1:])

        self.model_fn = model_fn

    @functools.wraps(execute_model)
    def clocked_execute_model(self, scheduler_output, *args, **kwargs):
        scheduled.append(scheduler_output.total_num_scheduled_tokens)
        try:
            return execute_model(self, scheduler_output, *args, **kwargs)
        finally:
            scheduled.pop()

    runner.load_model = clocked_load_model
    runner.execute_model = clocked_execute_model
    if not device_ms():
        return
    gate.install()

    def held(function):
        @functools.wraps(function)
        def with_held_result(*args, **kwargs):
            result = function(*args, **kwargs)
            return result if clock.last is None else gate.hold(result, clock.last)

        return with_held_result

    module.sample = held(module.sample)
    if hasattr(runner, "_compute_and_gather_logprobs"):
        runner._compute_and_gather_logprobs = staticmethod(
            held(runner._compute_and_gather_logprobs))
    if hasattr(module, "RejectionSampler"):
        module.RejectionSampler.__call__ = held(module.RejectionSampler.__call__)


_PATCHES = {
    "tpu_info.device": _pci_devices,
    "tpu_inference.tpu_info": _chips,
    "tpu_inference.utils": _utils,
    "tpu_inference.distributed.utils": _topology,
    "tpu_inference.layers.common.attention_interface": _attention,
    "tpu_inference.runner.tpu_runner": _runner,
    "tpu_inference.worker.tpu_worker": _worker,
}
