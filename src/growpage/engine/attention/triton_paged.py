# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
"""Paged attention in Triton. Twins of the same names and signatures: `engine.attention.reference`.

Shape legend as there: T tokens, B sequences, P pages, N pages of the longest table, b tokens a page, Hq query heads,
H KV heads, G = Hq / H, d head dim; S splits of a context. Every function can be captured in a CUDA graph: grids
follow from shapes, lengths are read on the device.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Launch(NamedTuple):
    """Launch parameters of an attention kernel; block_m counts rows, a row being a token's query head."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


DECODE = Launch(block_m=16, block_n=64, num_warps=4, num_stages=3)
DECODE_FP32 = Launch(block_m=16, block_n=32, num_warps=8, num_stages=2)
PREFILL = Launch(block_m=128, block_n=64, num_warps=8, num_stages=3)
PREFILL_FP32 = Launch(block_m=32, block_n=16, num_warps=8, num_stages=2)
# Splitting stops where every multiprocessor has this many programs, or a split this few tokens.
PROGRAMS_PER_SM = 8
MIN_SPLIT_TOKENS = 256

LOG2_E = 1.4426950408889634


def store_kv(keys: Tensor, values: Tensor, k: Tensor, v: Tensor, slots: Tensor) -> None:
    """Write k, v [T, H, d] to physical slots [T] of a layer's cache, each [P, b, H, d].

    A negative slot marks a padding row, of which nothing is written; the twin takes none.
    """
    _check_cache(keys, values)
    k, v = _with_whole_rows(k), _with_whole_rows(v)
    num_tokens, num_kv_heads, head_dim = k.shape
    width = num_kv_heads * head_dim
    if num_tokens == 0:
        return
    _store_kernel[(num_tokens,)](
        keys,
        values,
        k,
        v,
        slots,
        keys.stride(0),
        k.stride(0),
        v.stride(0),
        PAGE=keys.shape[1],
        WIDTH=width,
        BLOCK=triton.next_power_of_2(width),
        num_warps=4,
    )


def paged_decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    scale: float,
) -> Tensor:
    """One query a sequence over its stored tokens, the newest included.

    q: [B, Hq, d]; keys, values: [P, b, H, d]; block_tables: [B, N], padded with any valid page; context_lens: [B],
    stored tokens. Returns [B, Hq, d]; zeros where the context is 0, as in the padding rows of a graph.
    """
    _check_cache(keys, values)
    q, block_tables = _with_unit_stride(q), _with_unit_stride(block_tables)
    num_seqs, num_heads, head_dim = q.shape
    _, page_size, num_kv_heads, _ = keys.shape
    out = q.new_empty(q.shape)
    if num_seqs == 0:
        return out
    launch = DECODE_FP32 if q.dtype == torch.float32 else DECODE
    num_splits = _num_splits(
        num_seqs * num_kv_heads, block_tables.shape[1] * page_size, _num_sms(q.device)
    )
    if num_splits == 1:
        parts, lse = out, out
    else:
        parts = q.new_empty((num_seqs, num_heads, num_splits, head_dim), dtype=torch.float32)
        lse = q.new_empty((num_seqs, num_heads, num_splits), dtype=torch.float32)
    group = num_heads // num_kv_heads
    _decode_kernel[(num_kv_heads, num_seqs, num_splits)](
        q,
        keys,
        values,
        block_tables,
        context_lens,
        parts,
        lse,
        q.stride(0),
        q.stride(1),
        keys.stride(0),
        block_tables.stride(0),
        num_splits,
        scale * LOG2_E,
        MIN_SPLIT=MIN_SPLIT_TOKENS,
        IS_SPLIT=num_splits > 1,
        G=group,
        H=num_kv_heads,
        D=head_dim,
        PAGE=page_size,
        BLOCK_M=max(launch.block_m, triton.next_power_of_2(group)),
        BLOCK_N=launch.block_n,
        UPCAST=_is_interpreted(q),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    if num_splits > 1:
        _merge_kernel[(num_heads, num_seqs)](
            parts,
            lse,
            context_lens,
            out,
            num_splits,
            MIN_SPLIT=MIN_SPLIT_TOKENS,
            BLOCK_N=launch.block_n,
            D=head_dim,
            BLOCK_S=triton.next_power_of_2(num_splits),
            CHUNK=min(16, triton.next_power_of_2(num_splits)),
            num_warps=2,
        )
    return out


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
    """Chunks of several sequences, each over its stored tokens, of which the last are the chunk itself.

    q: [T, Hq, d], chunk after chunk; keys, values: [P, b, H, d]; block_tables: [B, N], padded with any valid page;
    cu_query_lens: [B + 1] int32, where each chunk starts in q and, last, T; context_lens: [B], tokens in the cache
    with the chunk, at least its length; max_query_len: an upper bound of the chunk lengths. A chunk may be empty.
    The mask is by slot: query i of n over a context of c sees the slots below c - n + i + 1. Returns [T, Hq, d].
    """
    _check_cache(keys, values)
    q, block_tables = _with_unit_stride(q), _with_unit_stride(block_tables)
    num_heads, head_dim = q.shape[1:]
    _, page_size, num_kv_heads, _ = keys.shape
    out = q.new_empty(q.shape)
    if q.shape[0] == 0:
        return out
    launch = PREFILL_FP32 if q.dtype == torch.float32 else PREFILL
    group = num_heads // num_kv_heads
    num_blocks = triton.cdiv(max_query_len * group, launch.block_m)
    _prefill_kernel[(num_kv_heads, num_blocks, context_lens.shape[0])](
        q,
        keys,
        values,
        block_tables,
        cu_query_lens,
        context_lens,
        out,
        q.stride(0),
        q.stride(1),
        keys.stride(0),
        block_tables.stride(0),
        scale * LOG2_E,
        G=group,
        H=num_kv_heads,
        D=head_dim,
        PAGE=page_size,
        BLOCK_M=launch.block_m,
        BLOCK_N=launch.block_n,
        UPCAST=_is_interpreted(q),
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return out


# -- choices of the host ----------------------------------------------------------------------


def _num_splits(num_rows: int, max_tokens: int, num_sms: int) -> int:
    """Splits of each of `num_rows` (sequence, KV head) pairs that may hold up to `max_tokens`."""
    wanted = round(PROGRAMS_PER_SM * num_sms / num_rows)
    return max(1, min(wanted, -(-max_tokens // MIN_SPLIT_TOKENS)))


@cache
def _num_sms(device: torch.device) -> int:
    if device.type != "cuda":
        return 4  # the interpreter gains nothing from more programs
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _is_interpreted(x: Tensor) -> bool:
    """Whether tiles must become float32 as soon as they are loaded: the interpreter's bfloat16 is wrong."""
    return not x.is_cuda


def _check_cache(keys: Tensor, values: Tensor) -> None:
    """Tokens of a page must lie one behind the other; pages may lie anywhere."""
    assert keys[0].is_contiguous(), keys.stride()
    assert values[0].is_contiguous(), values.stride()
    assert keys.stride(0) == values.stride(0), (keys.stride(), values.stride())


def _with_unit_stride(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _with_whole_rows(x: Tensor) -> Tensor:
    """x [T, H, d] with every token's heads in one piece, as in a slice of a fused projection."""
    is_whole = x.stride(2) == 1 and (x.stride(1) == x.shape[2] or x.shape[1] == 1)
    return x if is_whole else x.contiguous()


# -- device code ------------------------------------------------------------------------------


@triton.jit
def _store_kernel(
    keys_ptr,
    values_ptr,
    k_ptr,
    v_ptr,
    slots_ptr,
    page_stride,
    k_stride,
    v_stride,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a token."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token).to(tl.int64)
    if slot >= 0:
        column = tl.arange(0, BLOCK)
        is_column = column < WIDTH
        start = (slot // PAGE) * page_stride + (slot % PAGE) * WIDTH
        k = tl.load(k_ptr + token * k_stride + column, mask=is_column)
        v = tl.load(v_ptr + token * v_stride + column, mask=is_column)
        tl.store(keys_ptr + start + column, k.to(keys_ptr.dtype.element_ty), mask=is_column)
        tl.store(values_ptr + start + column, v.to(values_ptr.dtype.element_ty), mask=is_column)


@triton.jit
def _pages(table_ptr, first, end, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """Pages of the slots first .. first + BLOCK_N: one where the tile lies in one page, else one a slot."""
    if PAGE >= BLOCK_N:
        pages = tl.load(table_ptr + first // PAGE, mask=first < end, other=0)
    else:
        slots = first + tl.arange(0, BLOCK_N)
        pages = tl.load(table_ptr + slots // PAGE, mask=slots < end, other=0)
    return pages.to(tl.int64)


@triton.jit
def _tile(
    ptr,
    pages,
    first,
    page_stride,
    H: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Pointers [BLOCK_N, D] to one head of the slots from `first`; ptr points to that head."""
    slots = tl.arange(0, BLOCK_N)
    dims = tl.arange(0, D)
    if PAGE >= BLOCK_N:
        start = ptr + pages * page_stride + (first % PAGE) * (H * D)
        tile = start + slots[:, None] * (H * D) + dims[None, :]
    else:
        start = ptr + pages * page_stride + ((first + slots) % PAGE) * (H * D)
        tile = start[:, None] + dims[None, :]
    return tile


@triton.jit
def _attend(
    q,
    out,
    total,
    peak,
    k_ptr,
    v_ptr,
    table_ptr,
    first,
    end,
    limits,
    page_stride,
    scale_log2,
    IS_MASKED: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Fold the slots first .. end into a running softmax, in base 2; row r sees the slots below limits[r].

    Every row must see a slot of the first tile that it ever folds. Without the mask, whole tiles are read and seen.
    """
    pages = _pages(table_ptr, first, end, PAGE, BLOCK_N)
    for start in range(first, end, BLOCK_N):
        slots = start + tl.arange(0, BLOCK_N)
        k_tile = _tile(k_ptr, pages, start, page_stride, H, D, PAGE, BLOCK_N)
        v_tile = _tile(v_ptr, pages, start, page_stride, H, D, PAGE, BLOCK_N)
        if IS_MASKED:
            is_stored = (slots < end)[:, None]
            k = tl.load(k_tile, mask=is_stored, other=0.0)
            v = tl.load(v_tile, mask=is_stored, other=0.0)
        else:
            k = tl.load(k_tile)
            v = tl.load(v_tile)
        # A tile early, so that the next loads of keys do not wait for a table entry.
        pages = _pages(table_ptr, start + BLOCK_N, end, PAGE, BLOCK_N)
        if UPCAST:
            k = k.to(tl.float32)
            v = v.to(tl.float32)
        logits = tl.dot(q, tl.trans(k), input_precision="ieee")
        if IS_MASKED:
            logits = tl.where(slots[None, :] < limits[:, None], logits, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(logits, 1) * scale_log2)
        weights = tl.exp2(logits * scale_log2 - new_peak[:, None])
        decay = tl.exp2(peak - new_peak)
        total = total * decay + tl.sum(weights, 1)
        out = tl.dot(weights.to(v.dtype), v, out * decay[:, None], input_precision="ieee")
        peak = new_peak
    return out, total, peak


@triton.jit
def _split_tokens(context, num_splits, MIN_SPLIT: tl.constexpr, BLOCK_N: tl.constexpr):
    """Tokens of a context that each split reads, in whole tiles; the last splits may get fewer or none."""
    tokens = tl.maximum(tl.cdiv(context, num_splits), MIN_SPLIT)
    return tl.cdiv(tokens, BLOCK_N) * BLOCK_N


@triton.jit(do_not_specialize=["table_stride", "num_splits"])
def _decode_kernel(
    q_ptr,
    keys_ptr,
    values_ptr,
    tables_ptr,
    context_ptr,
    parts_ptr,
    lse_ptr,
    q_stride,
    q_head_stride,
    page_stride,
    table_stride,
    num_splits,
    scale_log2,
    MIN_SPLIT: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    G: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One program a KV head, sequence and split; its rows are the query heads of the group.

    Neighbouring programs read neighbouring heads of the same tokens. A split without tokens writes nothing.
    """
    head = tl.program_id(0)
    seq = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    context = tl.load(context_ptr + seq).to(tl.int32)
    first = 0
    end = context
    if IS_SPLIT:
        tokens = _split_tokens(context, num_splits, MIN_SPLIT, BLOCK_N)
        first = split * tokens
        end = tl.minimum(first + tokens, context)
        if first >= context:
            return
    members = tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    is_member = members < G
    heads = head * G + members
    q_rows = q_ptr + seq * q_stride + heads * q_head_stride
    q = tl.load(q_rows[:, None] + dims[None, :], mask=is_member[:, None], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    out, total, peak = _attend(
        q,
        tl.zeros([BLOCK_M, D], tl.float32),
        tl.zeros([BLOCK_M], tl.float32),
        tl.full([BLOCK_M], float("-inf"), tl.float32),
        keys_ptr + head * D,
        values_ptr + head * D,
        tables_ptr + seq * table_stride,
        first,
        end,
        tl.zeros([BLOCK_M], tl.int32) + end,
        page_stride,
        scale_log2,
        True,
        H,
        D,
        PAGE,
        BLOCK_N,
        UPCAST,
    )
    out = out / tl.where(total > 0, total, 1.0)[:, None]  # an empty context gives zeros
    part = (seq * (H * G) + heads) * num_splits + split
    tile = parts_ptr + part[:, None] * D + dims[None, :]
    tl.store(tile, out.to(parts_ptr.dtype.element_ty), mask=is_member[:, None])
    if IS_SPLIT:
        tl.store(lse_ptr + part, peak + tl.log2(total), mask=is_member)


@triton.jit(do_not_specialize=["num_splits"])
def _merge_kernel(
    parts_ptr,
    lse_ptr,
    context_ptr,
    out_ptr,
    num_splits,
    MIN_SPLIT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    D: tl.constexpr,
    BLOCK_S: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Splits of one query head and sequence, weighted by the mass that each saw."""
    seq = tl.program_id(1).to(tl.int64)
    row = seq * tl.num_programs(0) + tl.program_id(0)
    context = tl.load(context_ptr + seq).to(tl.int32)
    num_used = tl.cdiv(context, _split_tokens(context, num_splits, MIN_SPLIT, BLOCK_N))
    lse_ptr += row * num_splits
    parts_ptr += row * num_splits * D
    splits = tl.arange(0, BLOCK_S)
    lse = tl.load(lse_ptr + splits, mask=splits < num_used, other=float("-inf"))
    peak = tl.max(lse, 0)
    dims = tl.arange(0, D)
    out = tl.zeros([D], tl.float32)
    total = tl.zeros([CHUNK], tl.float32)
    for start in range(0, num_used, CHUNK):
        chunk = start + tl.arange(0, CHUNK)
        is_used = chunk < num_used
        weight = tl.exp2(tl.load(lse_ptr + chunk, mask=is_used, other=float("-inf")) - peak)
        tile = parts_ptr + chunk[:, None] * D + dims[None, :]
        part = tl.load(tile, mask=is_used[:, None], other=0.0)
        out += tl.sum(weight[:, None] * part, 0)
        total += weight
    mass = tl.sum(total, 0)
    out = out / tl.where(mass > 0, mass, 1.0)
    tl.store(out_ptr + row * D + dims, out.to(out_ptr.dtype.element_ty))


@triton.jit(do_not_specialize=["table_stride"])
def _prefill_kernel(
    q_ptr,
    keys_ptr,
    values_ptr,
    tables_ptr,
    cu_ptr,
    context_ptr,
    out_ptr,
    q_stride,
    q_head_stride,
    page_stride,
    table_stride,
    scale_log2,
    G: tl.constexpr,
    H: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One program a KV head, block of rows and sequence; rows are (token, query head of the group), token first.

    A group shares the tiles it reads, and short chunks still fill a block. The last tokens, which see most, start
    first.
    """
    head = tl.program_id(0)
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    seq = tl.program_id(2).to(tl.int64)
    chunk_start = tl.load(cu_ptr + seq).to(tl.int64)
    num_tokens = (tl.load(cu_ptr + seq + 1) - chunk_start).to(tl.int32)
    first_row = block * BLOCK_M
    if first_row >= num_tokens * G:
        return
    num_before = tl.load(context_ptr + seq).to(tl.int32) - num_tokens
    rows = first_row + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    tokens = rows // G
    heads = head * G + rows % G
    is_row = (tokens < num_tokens)[:, None]
    q_rows = q_ptr + (chunk_start + tokens) * q_stride + heads * q_head_stride
    q = tl.load(q_rows[:, None] + dims[None, :], mask=is_row, other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    limits = num_before + tokens + 1
    seen_by_all = num_before + first_row // G + 1
    whole = seen_by_all // BLOCK_N * BLOCK_N
    end = num_before + tl.minimum((first_row + BLOCK_M - 1) // G + 1, num_tokens)
    k_ptr = keys_ptr + head * D
    v_ptr = values_ptr + head * D
    table_ptr = tables_ptr + seq * table_stride
    out = tl.zeros([BLOCK_M, D], tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    out, total, peak = _attend(
        q,
        out,
        total,
        peak,
        k_ptr,
        v_ptr,
        table_ptr,
        0,
        whole,
        limits,
        page_stride,
        scale_log2,
        False,
        H,
        D,
        PAGE,
        BLOCK_N,
        UPCAST,
    )
    out, total, peak = _attend(
        q,
        out,
        total,
        peak,
        k_ptr,
        v_ptr,
        table_ptr,
        whole,
        end,
        limits,
        page_stride,
        scale_log2,
        True,
        H,
        D,
        PAGE,
        BLOCK_N,
        UPCAST,
    )
    out = out / total[:, None]
    out_rows = out_ptr + ((chunk_start + tokens) * (H * G) + heads) * D
    tl.store(out_rows[:, None] + dims[None, :], out.to(out_ptr.dtype.element_ty), mask=is_row)
