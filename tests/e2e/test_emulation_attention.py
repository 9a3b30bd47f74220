"""The stand-in attention against plain loops, and against tpu-inference's own reference."""

from __future__ import annotations

from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="needs vllm-tpu")
jax = pytest.importorskip("jax", reason="needs vllm-tpu")
jax.config.update("jax_platforms", "cpu")  # vllm-tpu brings libtpu, which would look for a TPU

pytestmark = pytest.mark.e2e

PAGE = 4
#: (tokens before, new tokens) of each sequence: decodes first, then chunks, whole prompts last.
BATCHES = [
    [(5, 1)],
    [(0, 7)],
    [(3, 1), (8, 1), (0, 1)],
    [(11, 1), (2, 1), (4, 4), (9, 6), (0, 3)],
]


def call(batch: list[tuple[int, int]], heads: int = 4, kv_heads: int = 2, size: int = 128,
         max_sequences: int = 8, tokens: int = 32, dtype: str = "float32", seed: int = 0
         ) -> dict[str, Any]:
    """A call of the kernel, with a cache that holds what came before, and garbage in the padding."""
    random = np.random.default_rng(seed)
    pages_each, count = 6, len(batch)
    pages = max_sequences * pages_each + 3
    lens = np.array([before + new for before, new in batch])
    new = np.array([n for _, n in batch])
    packing = 1 if dtype == "float32" else 2
    shape = ((pages, PAGE, 2 * kv_heads // packing, packing, 128) if size == 128
             else (pages, PAGE, kv_heads // packing, packing, 128))
    # Padding as it comes from the runner, or worse: in no order, and pointing at real pages.
    starts = random.permutation(np.arange(max_sequences + 1)).astype(np.int32)
    starts[:count + 1] = np.concatenate([[0], np.cumsum(new)])
    kv_lens = random.integers(0, 20, max_sequences).astype(np.int32)
    kv_lens[:count] = lens
    table = random.permutation(pages)[:max_sequences * pages_each].astype(np.int32)
    return {
        "queries": random.normal(size=(tokens, heads, size)).astype(np.float32),
        "keys": random.normal(size=(tokens, kv_heads, size)).astype(np.float32),
        "values": random.normal(size=(tokens, kv_heads, size)).astype(np.float32),
        "kv_cache": jax.numpy.asarray(random.normal(size=shape), dtype),
        "kv_lens": kv_lens, "page_indices": table, "cu_q_lens": starts,
        "distribution": np.array([0, 0, count], np.int32),
    }


def by_hand(a: dict[str, Any], window: int | None = None, cap: float | None = None,
            sink: Any = None, scale: float = 1.0) -> tuple[Any, Any]:
    """Token by token, head by head."""
    queries, keys, values = a["queries"], a["keys"], a["values"]
    tokens, heads, size = queries.shape
    kv_heads = keys.shape[1]
    table = a["page_indices"].reshape(len(a["kv_lens"]), -1)
    cache = np.array(a["kv_cache"], np.float32).reshape(-1, PAGE, kv_heads, 2, size)
    output = np.zeros_like(queries)
    for s in range(a["distribution"][-1]):
        first, last = a["cu_q_lens"][s], a["cu_q_lens"][s + 1]
        before = a["kv_lens"][s] - (last - first)
        for t in range(first, last):
            at = before + t - first
            place = cache[table[s, at // PAGE], at % PAGE]
            place[:, 0], place[:, 1] = keys[t], values[t]
        for t in range(first, last):
            at = before + t - first
            seen = range(0 if window is None else max(0, at - window + 1), at + 1)
            context = np.stack([cache[table[s, p // PAGE], p % PAGE] for p in seen])
            for h in range(heads):
                group = h // (heads // kv_heads)
                score = context[:, group, 0] @ queries[t, h] * scale
                if cap is not None:
                    score = cap * np.tanh(score / cap)
                if sink is not None:
                    score = np.append(score, sink[h])
                weight = np.exp(score - score.max())
                weight /= weight.sum()
                output[t, h] = weight[:len(seen)] @ context[:, group, 1]
    return output, cache


def attention(a: dict[str, Any], *sink: Any, **options: Any) -> tuple[Any, Any]:
    from vllm_tpu_async_patch.emulation.attention import ragged_paged_attention

    output, cache = jax.jit(lambda *a: ragged_paged_attention(*a, *sink, **options))(*a.values())
    return np.asarray(output), np.asarray(cache)


def same(found: Any, expected: Any, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("heads, kv_heads", [(2, 2), (4, 2), (3, 1)])
def test_against_loops(batch: list[tuple[int, int]], heads: int, kv_heads: int) -> None:
    a = call(batch, heads, kv_heads)
    output, cache = attention(a, sm_scale=0.1, chunk_prefill_size=None, vmem_limit_bytes=1)
    expected, expected_cache = by_hand(a, scale=0.1)
    same(output, expected)  # padding included: zeros
    assert np.array_equal(cache.reshape(expected_cache.shape), expected_cache)
    assert cache.shape == a["kv_cache"].shape


@pytest.mark.parametrize("options, by", [
    ({"sliding_window": 3}, {"window": 3}),
    ({"sliding_window": 6, "sm_scale": 0.2}, {"window": 6, "scale": 0.2}),
    ({"soft_cap": 5.0}, {"cap": 5.0}),
    ({"q_scale": 0.5, "k_scale": 0.25}, {"scale": 0.125}),
])
def test_options(options: dict[str, Any], by: dict[str, Any]) -> None:
    a = call(BATCHES[-1], seed=1)
    same(attention(a, **options)[0], by_hand(a, **by)[0])


def test_the_values_scale_scales_the_output() -> None:
    a = call(BATCHES[-1], seed=2)
    same(attention(a, v_scale=0.5)[0], 0.5 * by_hand(a)[0])


def test_heads_of_64_with_a_sink() -> None:
    a = call(BATCHES[-1], size=64, seed=3)
    sink = np.random.default_rng(4).normal(size=4).astype(np.float32)
    output, cache = attention(a, sink, sm_scale=0.125)
    expected, expected_cache = by_hand(a, sink=sink, scale=0.125)
    same(output, expected)
    assert np.array_equal(cache.reshape(expected_cache.shape), expected_cache)


def test_a_batch_that_fills_every_place() -> None:
    a = call([(i, 1) for i in range(8)], tokens=8)
    same(attention(a)[0], by_hand(a)[0])


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-5), ("bfloat16", 2e-2)])
def test_against_the_reference_of_the_release(dtype: str, tolerance: float) -> None:
    """The kernels' authors' own, which the kernels are tested against; its layout of the cache too."""
    kernel = pytest.importorskip("tpu_inference.kernels.ragged_paged_attention.v3.kernel")
    a = call(BATCHES[-1], dtype=dtype, seed=5)
    for name in ("queries", "keys", "values"):
        a[name] = jax.numpy.asarray(a[name], dtype)
    count = int(a["distribution"][-1])
    output, cache = attention(a, sm_scale=0.1)
    expected, expected_cache = kernel.ref_ragged_paged_attention(
        *(jax.numpy.asarray(value) for value in a.values()), sm_scale=0.1)
    real = int(a["cu_q_lens"][count])
    same(np.float32(output[:real]), np.float32(expected[:real]), tolerance)
    assert np.array_equal(np.float32(cache), np.float32(expected_cache))
