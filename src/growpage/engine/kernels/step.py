# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
"""What begins and ends a step on the device, beside each its twin in plain torch. All are safe in a CUDA graph.

Shape legend: T rows, B decode rows, S sampled rows, M query slots, N pages of a table, W >= N of a graph's tables.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 128


def resolve_tokens(token_ids: Tensor, last_tokens: Tensor) -> Tensor:
    """Token ids [T] int32, in which -1 - i stands for the last token of slot i: last_tokens [M] int32."""
    out = torch.empty_like(token_ids)
    if len(out):
        _resolve_kernel[(triton.cdiv(len(out), BLOCK),)](
            token_ids, last_tokens, out, len(out), BLOCK=BLOCK
        )
    return out


def resolve_tokens_reference(token_ids: Tensor, last_tokens: Tensor) -> Tensor:
    """The same in plain torch."""
    slots = (-1 - token_ids).clamp(min=0).long()
    return torch.where(token_ids < 0, last_tokens[slots], token_ids)


def keep_tokens(tokens: Tensor, slot_ids: Tensor, last_tokens: Tensor) -> None:
    """last_tokens [M] int32 at slot_ids [S] become tokens [S], or 0 where they are negative; slot -1 is nobody's."""
    if len(tokens):
        _keep_kernel[(triton.cdiv(len(tokens), BLOCK),)](
            tokens, slot_ids, last_tokens, len(tokens), BLOCK=BLOCK
        )


def keep_tokens_reference(tokens: Tensor, slot_ids: Tensor, last_tokens: Tensor) -> None:
    """The same in plain torch."""
    is_real = slot_ids >= 0
    last_tokens[slot_ids[is_real].long()] = tokens[is_real].clamp(min=0).to(last_tokens.dtype)


def forget_queries(slot_ids: Tensor, is_fresh: Tensor, num_updates: Tensor) -> None:
    """num_updates [M] = 0 at the slots [B] of the rows where is_fresh [B] is not 0."""
    if len(slot_ids):
        _forget_kernel[(triton.cdiv(len(slot_ids), BLOCK),)](
            slot_ids, is_fresh, num_updates, len(slot_ids), BLOCK=BLOCK
        )


def forget_queries_reference(slot_ids: Tensor, is_fresh: Tensor, num_updates: Tensor) -> None:
    """The same in plain torch."""
    num_updates[slot_ids[is_fresh != 0].long()] = 0


def unpack_tables(
    packed: Tensor, width: Tensor, context_lens: Tensor, out: Tensor, page_size: int
) -> None:
    """Rows of block tables to where a graph reads them, as far as their contexts go.

    packed: B rows of N = width[0] pages, one behind the other, from its first element on (its shape does not matter);
    context_lens: [B]; out: [B, W], of which the rest keeps what it holds: valid pages, if it held such before.
    """
    assert out.stride(1) == 1, out.stride()
    if len(out):
        _unpack_kernel[(len(out),)](
            packed, width, context_lens, out, out.stride(0), PAGE=page_size, BLOCK=BLOCK
        )


def unpack_tables_reference(
    packed: Tensor, width: Tensor, context_lens: Tensor, out: Tensor, page_size: int
) -> None:
    """The same in plain torch; packed: [B, N]."""
    assert packed.shape[1] == int(width)
    for row, context in enumerate(context_lens.tolist()):
        count = -(-context // page_size)
        out[row, :count] = packed[row, :count]


@triton.jit(do_not_specialize=["num_rows"])
def _resolve_kernel(tokens_ptr, last_ptr, out_ptr, num_rows, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_in = row < num_rows
    token = tl.load(tokens_ptr + row, mask=is_in, other=0)
    last = tl.load(last_ptr + (-1 - token), mask=is_in & (token < 0), other=0)
    tl.store(out_ptr + row, tl.where(token < 0, last, token), mask=is_in)


@triton.jit(do_not_specialize=["num_rows"])
def _keep_kernel(tokens_ptr, slot_ids_ptr, last_ptr, num_rows, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_in = row < num_rows
    slot = tl.load(slot_ids_ptr + row, mask=is_in, other=-1)
    token = tl.load(tokens_ptr + row, mask=is_in, other=0)
    token = tl.maximum(token, 0)
    tl.store(last_ptr + slot, token.to(last_ptr.dtype.element_ty), mask=slot >= 0)


@triton.jit(do_not_specialize=["num_rows"])
def _forget_kernel(slot_ids_ptr, fresh_ptr, num_updates_ptr, num_rows, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_in = row < num_rows
    slot = tl.load(slot_ids_ptr + row, mask=is_in, other=-1)
    is_fresh = tl.load(fresh_ptr + row, mask=is_in, other=0) != 0
    zero = tl.zeros([BLOCK], num_updates_ptr.dtype.element_ty)
    tl.store(num_updates_ptr + slot, zero, mask=is_fresh & (slot >= 0))


@triton.jit(do_not_specialize=["out_stride"])
def _unpack_kernel(
    packed_ptr, width_ptr, context_ptr, out_ptr, out_stride, PAGE: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    width = tl.load(width_ptr)
    count = tl.cdiv(tl.load(context_ptr + row), PAGE)
    for start in range(0, count, BLOCK):
        page = start + tl.arange(0, BLOCK)
        value = tl.load(packed_ptr + row * width + page, mask=page < count, other=0)
        tl.store(out_ptr + row * out_stride + page, value, mask=page < count)
