# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
"""What the query summaries see of a request's stored tokens, read from its pages in place.

Twins: `growpage.budget.demand.attention_logits` over `KVCache.gather`, `growpage.budget.demand.group_attention` and
`growpage.budget.scorers.dual_timescale.larger_attention`.

Shape legend: X summaries (short, long), L layers, Hq query heads, H KV heads, G = Hq / H, d head dim, n stored tokens,
c candidates, P pages of the cache, b tokens a page.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from growpage.budget.base import GroupReduce

# Launch parameters: tokens a tile, tokens a program, warps, pipeline stages; for the softmax tokens a tile and warps.
LOGITS = {"BLOCK": 64, "SPAN": 512, "num_warps": 4, "num_stages": 6}
SOFTMAX = {"BLOCK": 2048, "num_warps": 8}

_INTERPRETED = bool(triton.knobs.runtime.interpret)


def attention_logits(
    queries: Tensor, data: Tensor, pages: Tensor, num_tokens: int, scale: float
) -> Tensor:
    """Scaled scores in float32: queries [X, L, Hq, d] over the first n slots of `pages` → [X, L, H, G, n].

    data: the cache, [L, 2, P, b, H, d]; pages: int32 or int64. X * G is at most 64.
    """
    num_layers, _, num_pages, page_size, num_kv_heads, head_dim = data.shape
    num_summaries, _, num_heads, _ = queries.shape
    group = num_heads // num_kv_heads
    logits = torch.empty(
        (num_summaries, num_layers, num_kv_heads, group, num_tokens),
        dtype=torch.float32,
        device=data.device,
    )
    num_spans = triton.cdiv(num_tokens, LOGITS["SPAN"])
    _logits_kernel[(num_kv_heads * num_spans, num_layers)](
        queries.to(torch.float32).contiguous(),
        data,
        pages,
        logits,
        num_tokens,
        num_pages,
        num_layers,
        scale,
        X=num_summaries,
        H=num_kv_heads,
        G=group,
        D=head_dim,
        PAGE=page_size,
        ROWS=max(16, triton.next_power_of_2(num_summaries * group)),
        SPLIT=data.dtype == torch.bfloat16,
        DOT_TYPE=tl.float32 if _INTERPRETED else tl.bfloat16,
        **LOGITS,
    )
    return logits


def group_attention(logits: Tensor, reduce: GroupReduce) -> Tensor:
    """Attention of a KV head's query heads as one distribution: [X, L, H, G, c] → [X, L, H, c].

    logits: rows that lie densely but for their length, as `full[..., :c]` of a contiguous `full`.
    """
    return _group_softmax(logits, reduce, take_larger=False)


def dual_timescale(logits: Tensor, reduce: GroupReduce) -> Tensor:
    """The larger attention of the summaries (Eq. 9): [X, L, H, G, c] → [L, H, c]. Logits as in `group_attention`."""
    return _group_softmax(logits, reduce, take_larger=True)


def _group_softmax(logits: Tensor, reduce: GroupReduce, *, take_larger: bool) -> Tensor:
    num_summaries, num_layers, num_kv_heads, group, num_candidates = logits.shape
    row_length = logits.stride(3)
    rows_of_one = num_layers * num_kv_heads
    assert logits.stride() == (
        rows_of_one * group * row_length,
        num_kv_heads * group * row_length,
        group * row_length,
        row_length,
        1,
    ), logits.stride()
    shape = (num_layers, num_kv_heads, num_candidates)
    out = torch.empty(
        shape if take_larger else (num_summaries, *shape), dtype=torch.float32, device=logits.device
    )
    _group_kernel[(rows_of_one if take_larger else num_summaries * rows_of_one,)](
        logits,
        out,
        row_length,
        num_candidates,
        rows_of_one,
        X=num_summaries if take_larger else 1,
        G=group,
        HEADS=triton.next_power_of_2(group),
        IS_MAX=reduce is GroupReduce.max,
        **SOFTMAX,
    )
    return out


@triton.jit
def _logits_kernel(
    queries_ptr, data_ptr, pages_ptr, logits_ptr, num_tokens, num_pages, num_layers, scale,
    X: tl.constexpr, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, SPLIT: tl.constexpr, DOT_TYPE: tl.constexpr, BLOCK: tl.constexpr,
    SPAN: tl.constexpr,
):  # fmt: skip
    """One program: SPAN tokens of one layer and KV head, against the X * G queries that read this head."""
    # Neighbouring programs read neighbouring heads of the same tokens: 256 bytes each of one line of the page.
    head = tl.program_id(0) % H
    first = (tl.program_id(0) // H) * SPAN
    layer = tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, D)
    rows = tl.arange(0, ROWS)
    is_row = rows < X * G
    # Row x * G + g of the tile is query head (head * G + g) of summary x; also its row of the logits.
    query_row = ((rows // G) * num_layers + layer) * (H * G) + head * G + rows % G
    q = tl.load(
        queries_ptr + query_row[:, None] * D + dims[None, :], mask=is_row[:, None], other=0.0
    )
    q = tl.trans(q * scale)
    # bf16 keys meet three bf16 parts of the float32 queries: together they hold all 24 bits of a query, products are
    # exact and sums are float32, as in the twin; the matrix units are idle anyway.
    high = q.to(tl.bfloat16)
    rest = q - high.to(tl.float32)
    middle = rest.to(tl.bfloat16)
    low = (rest - middle.to(tl.float32)).to(tl.bfloat16)
    keys = data_ptr + layer * 2 * num_pages * (PAGE * H * D) + head * D
    for start in range(first, tl.minimum(first + SPAN, num_tokens), BLOCK):
        slots = start + tl.arange(0, BLOCK)
        is_stored = slots < num_tokens
        page = tl.load(pages_ptr + slots // PAGE, mask=is_stored, other=0).to(tl.int64)
        row = (page * PAGE + slots % PAGE) * (H * D)
        k = tl.load(keys + row[:, None] + dims[None, :], mask=is_stored[:, None], other=0.0)
        if SPLIT:
            k = k.to(DOT_TYPE)
            scores = tl.dot(k, low.to(DOT_TYPE))
            scores = tl.dot(k, middle.to(DOT_TYPE), acc=scores)
            scores = tl.dot(k, high.to(DOT_TYPE), acc=scores)
        else:
            scores = tl.dot(k.to(tl.float32), q, input_precision="ieee")
        out_ptr = logits_ptr + query_row[None, :] * num_tokens + slots[:, None]
        tl.store(out_ptr, scores, mask=is_stored[:, None] & is_row[None, :])


@triton.jit
def _group_kernel(
    logits_ptr, out_ptr, row_length, num_candidates, rows_of_one, X: tl.constexpr, G: tl.constexpr,
    HEADS: tl.constexpr, IS_MAX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program: one layer and KV head of one summary (X = 1), or the larger of X summaries."""
    row = tl.program_id(0).to(tl.int64)
    out_ptr += row * num_candidates
    # The first summary is written, each later one is folded into what this program wrote.
    for x in tl.static_range(X):
        base_ptr = logits_ptr + (row + x * rows_of_one) * G * row_length
        _fold_attention(
            base_ptr, out_ptr, row_length, num_candidates, x > 0, G, HEADS, IS_MAX, BLOCK
        )


@triton.jit
def _fold_attention(
    base_ptr, out_ptr, row_length, num_candidates, IS_LATER: tl.constexpr, G: tl.constexpr,
    HEADS: tl.constexpr, IS_MAX: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Softmax of G rows and their mean, or their maximum normalised again."""
    peak = tl.full([HEADS], float("-inf"), tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    for start in range(0, num_candidates, BLOCK):
        x = _load_group(base_ptr, start, row_length, num_candidates, G, HEADS, BLOCK)
        higher = tl.maximum(peak, tl.max(x, 1))
        total = total * tl.exp(peak - higher) + tl.sum(tl.exp(x - higher[:, None]), 1)
        peak = higher
    weight = 1.0 / total
    if IS_LATER:
        tl.debug_barrier()  # another thread may have written what this one reads back
    if IS_MAX:
        mass = 0.0
        for start in range(0, num_candidates, BLOCK):
            x = _load_group(base_ptr, start, row_length, num_candidates, G, HEADS, BLOCK)
            mass += tl.sum(tl.max(tl.exp(x - peak[:, None]) * weight[:, None], 0), 0)
        weight /= mass
    else:
        # Rows that fill up to a power of two repeat the last head and count for nothing.
        weight = tl.where(tl.arange(0, HEADS) < G, weight / G, 0.0)
    for start in range(0, num_candidates, BLOCK):
        x = _load_group(base_ptr, start, row_length, num_candidates, G, HEADS, BLOCK)
        share = tl.exp(x - peak[:, None]) * weight[:, None]
        attention = tl.max(share, 0) if IS_MAX else tl.sum(share, 0)
        slots = start + tl.arange(0, BLOCK)
        is_candidate = slots < num_candidates
        if IS_LATER:
            attention = tl.maximum(
                attention, tl.load(out_ptr + slots, mask=is_candidate, other=0.0)
            )
        tl.store(out_ptr + slots, attention, mask=is_candidate)


@triton.jit
def _load_group(
    base_ptr, start, row_length, num_candidates, G: tl.constexpr, HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    slots = start + tl.arange(0, BLOCK)
    heads = tl.minimum(tl.arange(0, HEADS), G - 1)
    pointers = base_ptr + heads[:, None].to(tl.int64) * row_length + slots[None, :]
    is_candidate = (slots < num_candidates)[None, :]
    # The padding is no `other` of the load: the running peak would then be a maximum of what was loaded, which triton
    # 3.6 takes out of the loop although the loop itself needs it (an assertion of its OptimizeThreadLocality).
    return tl.where(is_candidate, tl.load(pointers, mask=is_candidate, other=0.0), float("-inf"))
