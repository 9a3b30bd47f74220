"""Ragged paged attention in plain jax.numpy: the stand-in for tpu-inference's Pallas kernels."""

import jax
import jax.numpy as jnp


def ragged_paged_attention(queries, keys, values, kv_cache, kv_lens, page_indices, cu_q_lens,
                           distribution, attention_sink=None, *, use_causal_mask=True, sm_scale=1.0,
                           sliding_window=None, soft_cap=None, q_scale=None, k_scale=None,
                           v_scale=None, out_dtype=None, **tuning):
    """The contract of tpu-inference's kernels, those for 64-wide heads included.

    Args:
        queries: [tokens, query heads, head size], the sequences one after the other, then padding.
        keys, values: [tokens, key heads, head size], of the same tokens.
        kv_cache: [pages, page size, ...]; what follows is the room of one token, heads interleaved
            (key, value, key, value, ...).
        kv_lens: [sequences] length of each, the new tokens included.
        page_indices: [sequences * pages per sequence].
        cu_q_lens: [sequences + 1] where each sequence's tokens begin.
        distribution: its last entry is the number of sequences.  What the other arrays hold
            beyond it is padding: anything at all.  In particular `cu_q_lens` is not sorted there.
        tuning: block sizes and limits of the real kernels, which change no result.

    Returns:
        The attention's output, shaped as `queries`, and the cache with the new tokens in it.
    """
    tokens, heads, size = queries.shape
    kv_heads = keys.shape[1]
    sequences = kv_lens.shape[0]
    pages, page = kv_cache.shape[:2]
    table = page_indices.reshape(sequences, -1)

    sequence, position, real = _place(tokens, kv_lens, cu_q_lens, distribution[-1])
    rows = table[sequence]                                                # [tokens, pages each]
    slot = jnp.take_along_axis(rows, position[:, None] // page, axis=1)[:, 0] * page
    slot = jnp.where(real, slot + position % page, pages * page)          # outside: not written
    new = jnp.stack([keys, values], axis=2).reshape(tokens, -1).astype(kv_cache.dtype)
    cache = kv_cache.reshape(pages * page, -1)
    cache = cache.at[slot, :new.shape[1]].set(new, mode="drop")

    scale = sm_scale * (1.0 if q_scale is None else q_scale) * (1.0 if k_scale is None else k_scale)
    grouped = queries.reshape(tokens, kv_heads, heads // kv_heads, size).astype(jnp.float32) * scale
    paged = cache.reshape(pages, page, -1)
    last = position if use_causal_mask else kv_lens[sequence] - 1

    def add_page(number, carry):
        """Softmax over one more page of every token's context, as flash attention does it."""
        high, total, output = carry
        context = paged[rows[:, number]][..., :new.shape[1]].astype(jnp.float32)
        context = context.reshape(tokens, page, kv_heads, 2, size)
        scores = jnp.einsum("tkgh,tpkh->tkgp", grouped, context[:, :, :, 0])
        if soft_cap is not None:
            scores = soft_cap * jnp.tanh(scores / soft_cap)
        at = number * page + jnp.arange(page)[None]
        seen = at <= last[:, None]
        if sliding_window is not None:
            seen &= at > position[:, None] - sliding_window
        scores = jnp.where(seen[:, None, None], scores, -jnp.inf)
        higher = jnp.maximum(high, scores.max(axis=-1))
        weights = jnp.exp(scores - higher[..., None])
        shrink = jnp.exp(high - higher)
        output = output * shrink[..., None] + jnp.einsum("tkgp,tpkh->tkgh", weights,
                                                         context[:, :, :, 1])
        return higher, total * shrink + weights.sum(axis=-1), output

    # Where the softmax begins: at nothing, or at the sink, a score without a value.  Finite, so
    # that a page of which a token sees nothing takes part with weight 0 and not with NaN.
    low = jnp.full(grouped.shape[:3], -1e30, jnp.float32)
    begin = (low, jnp.zeros_like(low), jnp.zeros_like(grouped))
    if attention_sink is not None:
        sink = attention_sink.astype(jnp.float32).reshape(1, kv_heads, -1)
        begin = (jnp.broadcast_to(sink, low.shape), jnp.ones_like(low), begin[2])
    # Only as many pages as the longest sequence has: contexts here are short, tables are not.
    longest = jnp.max(jnp.where(real, last, 0)) // page + 1
    _, total, output = jax.lax.fori_loop(0, longest, add_page, begin)
    output = output / jnp.maximum(total, 1e-30)[..., None]
    output = output * (1.0 if v_scale is None else v_scale)
    output = jnp.where(real[:, None, None], output.reshape(queries.shape), 0)
    return output.astype(out_dtype or queries.dtype), cache.reshape(kv_cache.shape)


def _place(tokens, kv_lens, cu_q_lens, count):
    """For each token its sequence, its position in there, and whether it is one or padding."""
    sequences = kv_lens.shape[0]
    token = jnp.arange(tokens)
    real = token < cu_q_lens[count]
    ends = jnp.where(jnp.arange(sequences) < count, cu_q_lens[1:], jnp.iinfo(jnp.int32).max)
    sequence = jnp.minimum(jnp.searchsorted(ends, token, side="right"), sequences - 1)
    position = kv_lens[sequence] - cu_q_lens[sequence + 1] + token
    return sequence, jnp.where(real, position, 0), real
