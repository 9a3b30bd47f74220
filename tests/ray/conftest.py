"""A local Ray of the tests' own, and engines of stand-in workers on it."""

from __future__ import annotations

import os

import pytest

pytest.importorskip("ray")
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ.setdefault("RAY_CGRAPH_get_timeout", "60")


@pytest.fixture(scope="session")
def cluster():
    from vllm_tpu_async_patch.bench.cli import local_ray

    with local_ray():
        yield


@pytest.fixture(scope="session")
def engines(cluster):
    made = {}
    yield made
    for each in made.values():
        each.stop()


@pytest.fixture
def engine(engines):
    """Makes engines: ``engine(workers, mode, **options)``; processes are used again."""
    from tests.ray.standin import Engine

    used = []

    def make(workers=1, mode="auto", **options):
        if workers not in engines:
            engines[workers] = Engine(workers)
        one = engines[workers]
        used.append((workers, one))
        one.renew(mode, options)
        return one

    yield make
    for workers, one in used:
        if one.steps is not None:
            one.steps.close()
        if not one.usable and engines.get(workers) is one:
            engines.pop(workers).stop()
