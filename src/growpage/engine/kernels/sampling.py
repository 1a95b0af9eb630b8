# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
"""Batched sampling in two launches; the twins are `row_keys` and `draw` of engine/sampler.py.

The integers of the noise are theirs, bit for bit; its logarithms may differ in the last place. Safe in a CUDA graph
as long as no row is filtered.

Shape legend: B rows, V vocabulary, S splits of it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from growpage.engine import sampler
from growpage.engine.sampler import Filters

BLOCK, NUM_WARPS = 2048, 8
NUM_PROGRAMS = 2112  # 132 multiprocessors hold 8 programs of 8 warps: two rounds of them


def row_keys(words: Tensor, output_positions: Tensor) -> Tensor:
    """Keys [B, 2] int32 from seed words [B, 2] int32 and output positions [B] int32."""
    assert words.dtype == torch.int32, words.dtype
    assert words.is_contiguous(), words.stride()
    num_rows = words.shape[0]
    keys = torch.empty_like(words)
    if num_rows:
        block = 128
        _row_keys_kernel[(triton.cdiv(num_rows, block),)](
            words, output_positions, keys, num_rows, BLOCK=block, num_warps=4
        )
    return keys


def draw(
    logits: Tensor, temperature: Tensor, keys: Tensor, filters: Filters | None = None
) -> Tensor:
    """One token a row: logits [B, V], temperature [B] fp32 (0: argmax), keys [B, 2] int32 → [B] int64.

    Of equal values the lower token id wins, as with torch.argmax; NOT_FINITE (-1) where NaN or infinity wins, or there
    is nothing else. With filters the sort of the twin is needed, so the whole call is the twin's.
    """
    if filters is not None:
        return sampler.draw(logits, temperature, keys, filters)
    assert logits.stride(-1) == 1, logits.stride()
    assert keys.dtype == torch.int32, keys.dtype
    assert temperature.dtype == torch.float32, temperature.dtype
    assert all(t.is_contiguous() for t in (keys, temperature))
    num_rows, vocab_size = logits.shape
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return tokens
    num_splits, split_size = _config(num_rows, vocab_size)
    shape = (num_rows, num_splits)
    best = torch.empty(shape, dtype=torch.float32, device=logits.device)
    best_token = torch.empty(shape, dtype=torch.int32, device=logits.device)
    _split_kernel[shape](
        logits, temperature, keys, best, best_token, logits.stride(0), vocab_size, split_size,
        HAS_FAST_LOG=logits.is_cuda, BLOCK=BLOCK, num_warps=NUM_WARPS,
    )  # fmt: skip
    _reduce_kernel[(num_rows,)](
        best, best_token, tokens, num_splits,
        BLOCK=max(triton.next_power_of_2(num_splits), 16), num_warps=1,
    )  # fmt: skip
    return tokens


def _config(num_rows: int, vocab_size: int) -> tuple[int, int]:
    """Number of splits and tokens in each, a multiple of BLOCK; no split is empty."""
    num_blocks = triton.cdiv(vocab_size, BLOCK)
    num_splits = min(max(NUM_PROGRAMS // num_rows, 1), num_blocks)
    split_size = triton.cdiv(num_blocks, num_splits) * BLOCK
    return triton.cdiv(vocab_size, split_size), split_size


@triton.jit
def _mix(bits):
    """As in the twin, signed integers and masks: the compiler makes logical shifts of them."""
    bits ^= (bits >> 16) & 0xFFFF
    bits = tl.mul(bits, 0x7FEB352D, sanitize_overflow=False)
    bits ^= (bits >> 15) & 0x1FFFF
    bits = tl.mul(bits, -2073254261, sanitize_overflow=False)
    return bits ^ ((bits >> 16) & 0xFFFF)


@triton.jit
def _mixed_count(counter, low):
    return _mix(tl.mul(counter, -1640531527, sanitize_overflow=False) ^ low)


@triton.jit
def _mixed_sum(bits, high):
    return _mix(tl.add(bits, high, sanitize_overflow=False))


@triton.jit
def _log2(x, HAS_FAST_LOG: tl.constexpr):
    return libdevice.fast_log2f(x) if HAS_FAST_LOG else tl.log2(x)


@triton.jit
def _gumbel(bits, HAS_FAST_LOG: tl.constexpr):
    """-log(-log(u)) at the midpoints u = (k + 1/2) / 2^23, to about one unit in the last place of the twin's.

    u and 1 - u are exact. The hardware's logarithm is off by up to 2^-22 around 1, where the largest noise comes
    from; the series takes over there.
    """
    one_to_two = (((bits >> 9) & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    u = one_to_two - 0.999999940395355224609375  # 1 - 2^-24
    v = 1.0 - u
    series = 1 / 5 + v * (1 / 6 + v * (1 / 7))
    series = v * (1.0 + v * (1 / 2 + v * (1 / 3 + v * (1 / 4 + v * series))))
    exponential = tl.where(v < 0.125, series, -0.6931471805599453 * _log2(u, HAS_FAST_LOG))
    return -0.6931471805599453 * _log2(exponential, HAS_FAST_LOG)


@triton.jit(do_not_specialize=["num_rows"])
def _row_keys_kernel(words_ptr, positions_ptr, keys_ptr, num_rows, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_in = row < num_rows
    position = tl.load(positions_ptr + row, mask=is_in, other=0).to(tl.int32)
    low = _mixed_count(position, tl.load(words_ptr + row * 2, mask=is_in, other=0))
    high = _mixed_sum(low, tl.load(words_ptr + row * 2 + 1, mask=is_in, other=0))
    tl.store(keys_ptr + row * 2, low, mask=is_in)
    tl.store(keys_ptr + row * 2 + 1, high, mask=is_in)


@triton.jit
def _split_kernel(
    logits_ptr, temperature_ptr, keys_ptr, best_ptr, best_token_ptr,
    stride, vocab_size, split_size, HAS_FAST_LOG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    temperature = tl.load(temperature_ptr + row)
    is_drawn = temperature > 0
    scale = 1.0 / tl.where(is_drawn, temperature, 1.0)
    low = tl.load(keys_ptr + row * 2)
    high = tl.load(keys_ptr + row * 2 + 1)

    start = split * split_size
    lane = tl.arange(0, BLOCK)
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    best_token = start + lane
    stop = tl.minimum(start + split_size, vocab_size)
    for first in range(start, stop, BLOCK):
        token = first + lane
        is_in = token < vocab_size
        logit = tl.load(logits_ptr + row * stride + token, mask=is_in, other=-float("inf"))
        value = logit.to(tl.float32) * scale
        if is_drawn:
            value += _gumbel(_mixed_sum(_mixed_count(token, low), high), HAS_FAST_LOG)
        value = tl.where(value == value, value, float("inf"))
        is_better = value > best  # an earlier token of the lane stays when equal
        best = tl.where(is_better, value, best)
        best_token = tl.where(is_better, token, best_token)
    top = tl.max(best, 0)
    top_token = tl.min(tl.where(best == top, best_token, 2147483647), 0)
    place = row * tl.num_programs(1) + split
    tl.store(best_ptr + place, top)
    tl.store(best_token_ptr + place, top_token)


@triton.jit
def _reduce_kernel(best_ptr, best_token_ptr, tokens_ptr, num_splits, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    split = tl.arange(0, BLOCK)
    is_in = split < num_splits
    best = tl.load(best_ptr + row * num_splits + split, mask=is_in, other=-float("inf"))
    token = tl.load(best_token_ptr + row * num_splits + split, mask=is_in, other=2147483647)
    top = tl.max(best, 0)
    chosen = tl.min(tl.where(best == top, token, 2147483647), 0)
    is_finite = (top > -float("inf")) & (top < float("inf"))
    tl.store(tokens_ptr + row, tl.where(is_finite, chosen, -1).to(tl.int64))
