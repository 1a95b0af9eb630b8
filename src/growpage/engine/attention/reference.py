"""Plain-torch paged attention, written to be read.

Shape legend: T tokens, B sequences, P pages of a cache, N pages of the longest table, b tokens a page, Hq query
heads, H KV heads, d head dim. Query heads of a group are neighbours: query head i reads KV head i // (Hq / H).
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

_ROWS_AT_A_TIME = 4


def store_kv(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write k, v [T, H, d] to physical slots [T] of a layer's cache, each [P, b, H, d].

    Every slot is real: the negative ones of padding rows are for the kernel only.
    """
    keys.flatten(0, 1).index_copy_(0, slots, k.to(keys.dtype))
    values.flatten(0, 1).index_copy_(0, slots, v.to(values.dtype))


def paged_decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
) -> Tensor:
    """One query a sequence over its stored tokens, the newest included.

    q: [B, Hq, d]; keys, values: [P, b, H, d]; block_tables: [B, N] int64, padded with any valid page;
    context_lens: [B], stored tokens. Returns [B, Hq, d].
    """
    page_size = keys.shape[1]
    out = torch.empty_like(q)
    # Rows of like length together: little padding, and what is gathered stays in the processor's cache.
    for rows in torch.split(context_lens.argsort(), _ROWS_AT_A_TIME):
        lens = context_lens[rows]
        width = -(-int(lens[-1]) // page_size)
        tables = block_tables[rows, :width]
        k, v = _gather(keys, tables), _gather(values, tables)
        out[rows] = _decode_rows(q[rows], k, v, lens, scale)
    return out


def _decode_rows(q: Tensor, k: Tensor, v: Tensor, context_lens: Tensor, scale: float) -> Tensor:
    """q [B, Hq, d] over copied k, v [B, H, n, d], of which a row sees its first tokens; shortest row first."""
    num_seqs, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    # The query heads of a group stand where SDPA expects query positions, so keys are read once a group.
    grouped = q.view(num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim)
    slot = torch.arange(k.shape[2], device=q.device)
    is_stored = (slot < context_lens[:, None])[:, None, None, :]
    # What a page held before must not matter, and NaN would survive a weight of zero.
    shortest = int(context_lens[0])
    is_void = ~is_stored[:, :, 0, shortest:, None]
    for gathered in (k, v):
        gathered[:, :, shortest:].masked_fill_(is_void, 0.0)
    out = scaled_dot_product_attention(grouped, k, v, attn_mask=is_stored, scale=scale)
    return out.reshape(num_seqs, num_heads, head_dim)


def paged_prefill(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_table: Tensor,
    num_stored: int,
    scale: float,
) -> Tensor:
    """A chunk of one sequence over its stored tokens, of which the last T are the chunk itself.

    q: [T, Hq, d]; keys, values: [P, b, H, d]; block_table: [N]; num_stored: tokens in the cache with the chunk.
    The mask is by slot, not by position: an evicted token has no slot. Returns [T, Hq, d].
    """
    num_tokens = q.shape[0]
    k = _gather(keys, block_table[None])[:, :, :num_stored]
    v = _gather(values, block_table[None])[:, :, :num_stored]
    query_slot = torch.arange(num_stored - num_tokens, num_stored, device=q.device)
    is_visible = torch.arange(num_stored, device=q.device) <= query_slot[:, None]
    out = scaled_dot_product_attention(
        q.transpose(0, 1)[None], k, v, attn_mask=is_visible, scale=scale, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def paged_prefill_batch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    cu_query_lens: Tensor,
    context_lens: Tensor,
    max_query_len: int,
    scale: float,
) -> Tensor:
    """Chunks of several sequences, each as in `paged_prefill`.

    q: [T, Hq, d], chunk after chunk; keys, values: [P, b, H, d]; block_tables: [B, N], padded with any valid page;
    cu_query_lens: [B + 1] int32, where each chunk starts in q and, last, T; context_lens: [B], tokens in the cache
    with the chunk; max_query_len: an upper bound of the chunk lengths, for the kernel's launch. A chunk may be
    empty. Returns [T, Hq, d].
    """
    starts = cu_query_lens.tolist()
    out = torch.empty_like(q)
    for seq, num_stored in enumerate(context_lens.tolist()):
        start, stop = starts[seq], starts[seq + 1]
        assert stop - start <= max_query_len, (seq, start, stop, max_query_len)
        if stop > start:
            chunk = q[start:stop]
            out[start:stop] = paged_prefill(
                chunk, keys, values, block_tables[seq], num_stored, scale
            )
    return out


def _gather(cache: Tensor, block_tables: Tensor) -> Tensor:
    """Pages of a layer in table order: [P, b, H, d] and [B, N] → [B, H, N*b, d]."""
    num_seqs, num_pages = block_tables.shape
    pages = cache.index_select(0, block_tables.flatten())
    return pages.view(num_seqs, num_pages * cache.shape[1], *cache.shape[2:]).transpose(1, 2)
