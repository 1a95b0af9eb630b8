# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
"""Compaction of pages: the kept tokens of every layer and KV head move to the front of the target pages.

Twin: `growpage.engine.budget_ops.TorchOps.move`.

Why moving in place is free of races. Token i of the result comes from source slot kept[i] >= i, since `kept` increases.
One program owns all tokens of its layer, of keys or values, of its head (or of a part of the head's dimensions), so no
other program reads or writes what it does. It takes chunks of tokens in rising order, and stores a chunk only behind a
barrier that follows its loads. The store of token i overwrites a target slot that either is no source slot, or is the
source slot s <= i, when no page stands later among the sources than among the targets (`_is_in_order`). Whoever needs
slot s is token m with kept[m] = s, so m <= s <= i: its load was issued with the same chunk or an earlier one, hence
before the barrier. Later chunks have no use for it: kept[m] >= m > i >= s. Where that order does not hold (own pages
move forward past shared ones) tokens go through a scratch buffer, a few layers at a time; there the launch boundary is
the barrier.

Shape legend: L layers, H KV heads, d head dim, P pages of the cache, b tokens a page, r kept tokens.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from growpage.engine.kernels.page_list import page_list

# Launch parameters: tokens that a program has in its registers at a time, warps.
MOVE = {"CHUNK": 64, "num_warps": 4}
MAX_WORDS = 64  # 4-byte words of a head that one program moves: 256 bytes, and all programs of 36 layers fit at once
SCRATCH_BYTES = 128 << 20  # few launches gain more than a scratch that stays in the L2 cache
SCRATCH_SPLITS = 8  # programs a row where the order of chunks does not matter


def move_kept(
    data: Tensor, source_pages: Sequence[int], target_pages: Sequence[int], kept: Tensor
) -> None:
    """Token i of the target pages becomes token kept[..., i] of the source pages, keys and values.

    data: the cache, [L, 2, P, b, H, d]; kept: [L, H, r] int32 or int64, increasing. Source pages that are no targets
    stay as they were; so do the slots from r on of the target pages.
    """
    num_layers, _, _, page_size, num_kv_heads, head_dim = data.shape
    num_kept = kept.shape[-1]
    assert kept.shape == (num_layers, num_kv_heads, num_kept), kept.shape
    assert kept.is_contiguous()
    assert num_kept <= len(target_pages) * page_size, (num_kept, target_pages)
    words = data.view(torch.int32)
    target_pages = target_pages[: triton.cdiv(num_kept, page_size)]
    sources = page_list(source_pages, data.device)
    targets = page_list(target_pages, data.device)
    if _is_in_order(source_pages, target_pages):
        _move(words, sources, words, targets, kept, num_kept, num_splits=1)
        return
    layer_bytes = 2 * len(target_pages) * page_size * num_kv_heads * head_dim * data.itemsize
    group = min(num_layers, max(1, SCRATCH_BYTES // layer_bytes))
    scratch = words.new_empty((group, 2, len(target_pages), *words.shape[3:]))
    straight = page_list(range(len(target_pages)), data.device)
    for first in range(0, num_layers, group):
        layers = words[first : first + group]
        held = scratch[: len(layers)]
        chosen = kept[first : first + group]
        _move(layers, sources, held, straight, chosen, num_kept, num_splits=SCRATCH_SPLITS)
        _move(held, straight, layers, targets, None, num_kept, num_splits=SCRATCH_SPLITS)


def _is_in_order(source_pages: Sequence[int], target_pages: Sequence[int]) -> bool:
    """No page that is both stands later among the sources than among the targets."""
    place = {page: index for index, page in enumerate(source_pages)}
    return all(place.get(page, 0) <= index for index, page in enumerate(target_pages))


def _move(
    source: Tensor,
    source_pages: Tensor,
    target: Tensor,
    target_pages: Tensor,
    kept: Tensor | None,
    num_kept: int,
    *,
    num_splits: int,
) -> None:
    """Both caches [L, 2, P, b, H, w] in 4-byte words; kept [L, H, r], None for all tokens as they are."""
    num_layers, _, num_source_pages, page_size, num_kv_heads, width = source.shape
    words = min(width, MAX_WORDS)
    num_chunks = triton.cdiv(num_kept, MOVE["CHUNK"])
    _move_kernel[(num_kv_heads * (width // words), 2 * num_layers, min(num_splits, num_chunks))](
        source,
        source_pages,
        num_source_pages,
        target,
        target_pages,
        target.shape[2],
        source_pages if kept is None else kept,
        num_kept,
        IS_CHOSEN=kept is not None,
        PAGE=page_size,
        H=num_kv_heads,
        WIDTH=width,
        WORDS=words,
        **MOVE,
    )


@triton.jit
def _move_kernel(
    source_ptr, source_pages_ptr, num_source_pages, target_ptr, target_pages_ptr, num_target_pages,
    kept_ptr, num_kept, IS_CHOSEN: tl.constexpr, PAGE: tl.constexpr, H: tl.constexpr,
    WIDTH: tl.constexpr, WORDS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One program: keys or values of one layer, one head or a part of it; with one split, all its tokens in order."""
    head = tl.program_id(0) % H
    part = tl.program_id(0) // H
    plane = tl.program_id(1).to(tl.int64)  # layer * 2, plus 1 for values
    length = tl.cdiv(tl.cdiv(num_kept, CHUNK), tl.num_programs(2)) * CHUNK
    first = tl.program_id(2) * length
    last = tl.minimum(first + length, num_kept)
    kept_ptr += (plane // 2 * H + head) * num_kept
    dims = head * WIDTH + part * WORDS + tl.arange(0, WORDS)[None, :]
    source_ptr += plane * num_source_pages * (PAGE * H * WIDTH) + dims
    target_ptr += plane * num_target_pages * (PAGE * H * WIDTH) + dims
    row = _source_rows(source_pages_ptr, kept_ptr, first, last, IS_CHOSEN, PAGE, CHUNK)
    for start in range(first, last, CHUNK):
        tokens = start + tl.arange(0, CHUNK)
        is_kept = (tokens < last)[:, None]
        chunk = tl.load(source_ptr + row[:, None] * (H * WIDTH), mask=is_kept, other=0)
        page = tl.load(target_pages_ptr + tokens // PAGE, mask=tokens < last, other=0).to(tl.int64)
        out_ptr = target_ptr + (page * PAGE + tokens % PAGE)[:, None] * (H * WIDTH)
        tl.debug_barrier()  # no store before every load of this chunk: see the proof above
        # Looked up while the chunk is on its way; a barrier before it would put the waits one after the other.
        row = _source_rows(source_pages_ptr, kept_ptr, start + CHUNK, last, IS_CHOSEN, PAGE, CHUNK)
        tl.store(out_ptr, chunk, mask=is_kept)


@triton.jit
def _source_rows(
    source_pages_ptr, kept_ptr, start, last, IS_CHOSEN: tl.constexpr, PAGE: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Where tokens start .. start + CHUNK of the result are now: page * PAGE + slot, int64."""
    tokens = start + tl.arange(0, CHUNK)
    is_kept = tokens < last
    slots = tl.load(kept_ptr + tokens, mask=is_kept, other=0).to(tl.int32) if IS_CHOSEN else tokens
    page = tl.load(source_pages_ptr + slots // PAGE, mask=is_kept, other=0).to(tl.int64)
    return page * PAGE + slots % PAGE
