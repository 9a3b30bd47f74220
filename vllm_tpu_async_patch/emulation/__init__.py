"""TPU hosts emulated on CPU, so that the real vllm-tpu, tpu-inference and Ray run without a TPU.

Results are real, speed is not.  `run.emulate` starts emulated hosts and runs a command among them;
`cluster.EmulatedCluster` does it for a program; `model.write_tiny_model` writes something to serve.

The half that lives inside the emulated processes comes in through ``site/sitecustomize.py``, under
the name ``tpu_emulation`` and not as a part of the parent package: importing the parent applies the
patch, and an emulated host is to be as unpatched as its user wants it.  Hence only relative
imports in this folder.
"""

# Every Python that an emulated host starts comes through here: the standard library's lightest
# part only, until one of the modules in `host.TARGETS` is imported.
import os

#: Every variable of the emulation.  `cluster` sets them; a process without the first is untouched.
VARIABLES = {
    "TPU_EMULATION": "1: this process belongs to an emulated cluster; anything else: do nothing",
    "TPU_EMULATION_CLUSTER": "the cluster's own folder; marks its processes, so that all are ended",
    "TPU_EMULATION_HOSTS": "number of emulated hosts, one chip each (this one is TPU_WORKER_ID)",
    "TPU_EMULATION_COORDINATOR": "host:port where the hosts' JAX processes find each other",
    "TPU_EMULATION_DEVICE_MS": "least time of a forward pass on the device, ms; 0: no clock",
    "TPU_EMULATION_RECORD": "folder for the devices' busy intervals, a file per worker process",
}


def activate() -> None:
    """Make this interpreter emulate a TPU host as soon as it imports tpu-inference.

    Does nothing unless ``TPU_EMULATION=1``, and nothing the second time.
    """
    if os.environ.get("TPU_EMULATION") == "1":
        from . import imports

        imports.install()
