# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
"""Which tokens a compaction keeps, all layers and KV heads in one launch and without a sort.

Twin: `growpage.budget.selection.select_tokens`.

A row of scores stays in the registers of one program, as integers of the same order. The k-th largest integer of a page
or a row is found by halving the range of integers 32 times; of the keys equal to it the newest stay, counted from the
row's end. So the result is the twin's, bit for bit, on any finite scores.

Shape legend: L layers, H KV heads, n stored tokens, c historical candidates.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from growpage.budget import selection

MAX_TOKENS = 32768  # a row in the registers of one program: 32 values a thread
TOKENS_PER_WARP = 1024  # 32 values a thread
MAX_REGISTERS = 168  # a thread: three programs of 4096 tokens share a multiprocessor


def select_tokens(
    scores: Tensor, *, num_tokens: int, num_retained: int, page_size: int, k_loc: int
) -> Tensor:
    """Slots that stay, per layer and KV head, in their order.

    scores: [L, H, c] fp32, finite, higher stays; slots c..num_tokens are protected. Returns [L, H, num_retained] int64,
    increasing. Each historical page keeps at least `k_loc` of its candidates; when the quotas exceed what may stay,
    each is lowered to an equal share. Among equal scores the newer token stays. Rows beyond MAX_TOKENS go to the twin.
    """
    num_layers, num_kv_heads, num_candidates = scores.shape
    num_pages = triton.cdiv(num_tokens, page_size)
    block_pages = triton.next_power_of_2(max(num_pages, TOKENS_PER_WARP // page_size))
    if block_pages * page_size > MAX_TOKENS:
        return selection.select_tokens(
            scores,
            num_tokens=num_tokens,
            num_retained=num_retained,
            page_size=page_size,
            k_loc=k_loc,
        )
    num_chosen = num_retained - (num_tokens - num_candidates)
    assert 0 < num_chosen <= num_candidates, (num_chosen, num_candidates)
    if selection.local_quota_total(num_candidates, page_size, k_loc) > num_chosen:
        k_loc = num_chosen // triton.cdiv(num_candidates, page_size)
    kept = torch.empty(
        (num_layers, num_kv_heads, num_retained), dtype=torch.int64, device=scores.device
    )
    _select_kernel[(num_layers * num_kv_heads,)](
        scores.to(torch.float32).contiguous(),
        kept,
        num_tokens,
        num_candidates,
        num_retained,
        num_chosen,
        k_loc,
        HAS_QUOTA=k_loc > 0,
        PAGES=block_pages,
        PAGE=page_size,
        **_config(block_pages * page_size),
    )
    return kept


def _config(num_tokens: int) -> dict[str, int]:
    """Launch parameters; the warps of a program share 65536 registers, 2048 for each number a thread."""
    num_warps = min(32, max(4, num_tokens // TOKENS_PER_WARP))
    return {"num_warps": num_warps, "maxnreg": min(MAX_REGISTERS, 2048 // num_warps)}


@triton.jit
def _select_kernel(
    scores_ptr, kept_ptr, num_tokens, num_candidates, num_retained, num_chosen, k_loc,
    HAS_QUOTA: tl.constexpr, PAGES: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """One program: one layer and KV head. Tiles are [pages, slots of a page]."""
    LOWEST: tl.constexpr = -0x80000000
    LIFTED: tl.constexpr = 0x7FFFFFFF
    row = tl.program_id(0).to(tl.int64)
    slots = tl.arange(0, PAGES)[:, None] * PAGE + tl.arange(0, PAGE)[None, :]
    is_candidate = slots < num_candidates
    scores = tl.load(scores_ptr + row * num_candidates + slots, mask=is_candidate, other=0.0)
    order = _ordered(scores)
    order = tl.where(is_candidate, order, LOWEST)
    if HAS_QUOTA:
        order = tl.where(_largest_of_pages(order, k_loc) & is_candidate, LIFTED, order)
    stays = _largest_of_all(order, num_chosen) & is_candidate
    stays = (stays | ((slots >= num_candidates) & (slots < num_tokens))).to(tl.int32)
    in_page = tl.sum(stays, 1)
    rank = (tl.cumsum(in_page, 0) - in_page)[:, None] + tl.cumsum(stays, 1) - 1
    # As int64 last: what moves between threads on the way to the store, through shared memory, is half as wide.
    out = kept_ptr + row * num_retained + rank.to(tl.int64)
    tl.store(out, slots.to(tl.int64), mask=(stays > 0) & (rank < num_retained))


@triton.jit
def _ordered(scores):
    """Integers in the order of the floats; -0.0 and 0.0 are equal, as they are for a sort."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _largest_of_pages(order, k):
    """The k largest of each row of the tile; among equals the later ones."""
    # Not from constants: triton 3.6 and 3.7 fold a bisection from the lowest and the highest integer to a constant,
    # with a shift of 64 bits, and compare every page of a thread with the threshold of the first.
    low = tl.min(order, 1)
    high = tl.max(order, 1)
    # `high` has fewer than k above it; in the end it is the smallest integer of which that is true.
    for _ in range(32):
        middle = (low & high) + ((low ^ high) >> 1)  # the mean rounded down, without overflow
        is_few = tl.sum((order > middle[:, None]).to(tl.int32), 1) < k
        high = tl.where(is_few, middle, high)
        low = tl.where(is_few, low, middle + 1)
    is_above = order > high[:, None]
    is_tie = (order == high[:, None]).to(tl.int32)
    num_missing = k - tl.sum(is_above.to(tl.int32), 1)
    place = tl.sum(is_tie, 1)[:, None] - tl.cumsum(is_tie, 1)  # ties later in the page
    return is_above | ((is_tie > 0) & (place < num_missing[:, None]))


@triton.jit
def _largest_of_all(order, k):
    """The k largest of the whole tile; among equals the later ones."""
    low = tl.min(tl.min(order, 1), 0)
    high = tl.max(tl.max(order, 1), 0)
    for _ in range(32):
        middle = (low & high) + ((low ^ high) >> 1)
        is_few = tl.sum(tl.sum((order > middle).to(tl.int32), 1), 0) < k
        high = tl.where(is_few, middle, high)
        low = tl.where(is_few, low, middle + 1)
    is_above = order > high
    is_tie = (order == high).to(tl.int32)
    num_missing = k - tl.sum(tl.sum(is_above.to(tl.int32), 1), 0)
    ties_of_page = tl.sum(is_tie, 1)
    before = (tl.cumsum(ties_of_page, 0) - ties_of_page)[:, None] + tl.cumsum(is_tie, 1)
    place = tl.sum(ties_of_page, 0) - before  # ties later in the row
    return is_above | ((is_tie > 0) & (place < num_missing))
