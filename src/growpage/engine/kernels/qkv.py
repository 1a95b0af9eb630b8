# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
"""One launch between the qkv projection and attention: q/k norm, RoPE, store to the cache, query summaries.

The twins are `rotate_and_store_reference`, `rotary_table_reference` and `count_queries_reference`. All are safe in a
CUDA graph. A forward pass calls `rotary_table` once, `rotate_and_store` once a layer and, last, `count_queries` once.

Between reading the projection and writing the rotation everything is float32, so the summaries see the normed query
before it is rounded to the dtype of the model.

Shape legend: T rows (decodes first), B decode rows, M summary slots, Hq query heads, H KV heads, d head dim, P pages
of b tokens.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

HEADS, NUM_WARPS = 8, 4  # heads a program; all its loads are in flight at once


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSummaries:
    """The query summaries of one layer (engine/query_state.py), and whose rows enter them."""

    state: Tensor  # [M, 2, Hq, d] fp32, short before long
    rms: Tensor  # [M, Hq] fp32
    num_updates: Tensor  # [M]; read here, counted by `count_queries` after the last layer
    slot_ids: Tensor  # [B], of the first B rows; -1: the row enters no summary
    beta_short: float
    beta_long: float
    bias_correction: bool


def rotate_and_store(
    qkv: Tensor,
    rotary: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    norm_weights: Tensor | None = None,
    eps: float = 1e-6,
    summaries: LayerSummaries | None = None,
) -> Tensor:
    """Rotated queries [T, Hq, d]; rotated keys and the values go to the cache, in place.

    qkv: [T, (Hq + 2H) * d] with dense rows, heads in the order q, k, v; rotary: [T, 2, d / 2] fp32 of
    `rotary_table`; slots: [T], physical, -1: a row of padding, which stores nothing; keys, values: [P, b, H, d];
    norm_weights: [2, d], of the norm of each head of q and of k. The first B rows also enter `summaries`, as they
    are before RoPE; no slot may occur twice.
    """
    num_rows, num_kv_heads, d = qkv.shape[0], keys.shape[2], keys.shape[3]
    num_heads = qkv.shape[1] // d - 2 * num_kv_heads
    _check(qkv, rotary, slots, keys, values, norm_weights, num_heads, summaries)
    q = torch.empty((num_rows, num_heads, d), dtype=qkv.dtype, device=qkv.device)
    if not num_rows:
        return q
    heads, num_warps = _config(num_heads, d)
    grid = (num_rows, triton.cdiv(num_heads, heads) + 2 * triton.cdiv(num_kv_heads, heads))
    s = summaries
    _rotate_and_store_kernel[grid](
        qkv, rotary, slots, norm_weights, q, keys, values,
        s.state if s else None, s.rms if s else None, s.num_updates if s else None,
        s.slot_ids if s else None, len(s.slot_ids) if s else 0,
        s.beta_short if s else 0.0, s.beta_long if s else 0.0,
        qkv.stride(0), eps,
        Hq=num_heads, H=num_kv_heads, HALF=d // 2, HEADS=heads,
        HAS_NORM=norm_weights is not None, HAS_SUMMARIES=s is not None,
        BIAS_CORRECTION=s is not None and s.bias_correction,
        num_warps=num_warps,
    )  # fmt: skip
    return q


def rotate_and_store_reference(
    qkv: Tensor,
    rotary: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    norm_weights: Tensor | None = None,
    eps: float = 1e-6,
    summaries: LayerSummaries | None = None,
) -> Tensor:
    """The same in plain torch."""
    num_kv_heads, d = keys.shape[2:]
    num_heads = qkv.shape[1] // d - 2 * num_kv_heads
    heads = qkv.float().unflatten(1, (-1, d))
    q, k, v = heads.split((num_heads, num_kv_heads, num_kv_heads), 1)
    if norm_weights is not None:
        q, k = (_normed(x, w.float(), eps) for x, w in zip((q, k), norm_weights, strict=True))
    if summaries is not None:
        _fold(summaries, q[: len(summaries.slot_ids)])
    is_real = slots >= 0
    real = slots[is_real].long()
    keys.flatten(0, 1)[real] = _rotated(k, rotary)[is_real].to(keys.dtype)
    values.flatten(0, 1)[real] = v[is_real].to(values.dtype)
    return _rotated(q, rotary).to(qkv.dtype)


def rotary_table(positions: Tensor, inv_freq: Tensor, factor: float = 1.0) -> Tensor:
    """Cosines and sines of the rows, times `factor`: positions [T], inv_freq [d / 2] fp32 → [T, 2, d / 2] fp32.

    One table a step and not one of all positions: 0.5 KB a row stays in the L2 cache over the layers.
    """
    num_rows, half = len(positions), len(inv_freq)
    table = torch.empty((num_rows, 2, half), dtype=torch.float32, device=positions.device)
    if num_rows:
        _rotary_table_kernel[(num_rows,)](
            positions, inv_freq, table, factor, half,
            BLOCK=max(triton.next_power_of_2(half), 16), num_warps=1,
        )  # fmt: skip
    return table


def rotary_table_reference(positions: Tensor, inv_freq: Tensor, factor: float = 1.0) -> Tensor:
    """The same in plain torch, with the float32 operations of engine/models/rope.py."""
    angles = positions[:, None].float() * inv_freq
    return torch.stack((angles.cos(), angles.sin()), 1) * factor


def count_queries(slot_ids: Tensor, num_updates: Tensor) -> None:
    """num_updates [M] += 1 at slot_ids [B], where -1 is nobody: after the last layer of a forward pass."""
    if len(slot_ids):
        block = 128
        _count_queries_kernel[(triton.cdiv(len(slot_ids), block),)](
            slot_ids, num_updates, len(slot_ids), BLOCK=block, num_warps=4
        )


def count_queries_reference(slot_ids: Tensor, num_updates: Tensor) -> None:
    """The same in plain torch."""
    num_updates[slot_ids[slot_ids >= 0].long()] += 1


def _config(num_heads: int, head_dim: int) -> tuple[int, int]:
    """Heads a program and its warps."""
    heads = min(HEADS, int(triton.next_power_of_2(num_heads)))
    return heads, max(NUM_WARPS * heads * head_dim // (HEADS * 128), 1)


def _check(
    qkv: Tensor,
    rotary: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    norm_weights: Tensor | None,
    num_heads: int,
    summaries: LayerSummaries | None,
) -> None:
    num_rows, d = qkv.shape[0], keys.shape[3]
    assert d in (32, 64, 128, 256), d
    assert qkv.shape[1] % d == 0, (qkv.shape, d)
    assert num_heads > 0, (qkv.shape, keys.shape)
    assert qkv.stride(1) == 1, qkv.stride()
    assert slots.shape == (num_rows,), (slots.shape, num_rows)
    assert rotary.shape == (num_rows, 2, d // 2), (rotary.shape, d)
    assert keys.shape == values.shape, (keys.shape, values.shape)
    assert norm_weights is None or norm_weights.shape == (2, d), d
    dense = [rotary, slots, keys, values] + ([] if norm_weights is None else [norm_weights])
    floats = [rotary]
    if summaries is not None:
        s = summaries
        assert s.state.shape[1:] == (2, num_heads, d), (s.state.shape, num_heads, d)
        assert s.rms.shape == (len(s.state), num_heads), s.rms.shape
        assert len(s.slot_ids) <= num_rows, (len(s.slot_ids), num_rows)
        dense += [s.state, s.rms, s.num_updates, s.slot_ids]
        floats += [s.state, s.rms]
    assert all(tensor.is_contiguous() for tensor in dense)
    assert all(tensor.dtype == torch.float32 for tensor in floats)


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _rotated(x: Tensor, rotary: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = rotary[:, None, 0], rotary[:, None, 1]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _fold(s: LayerSummaries, q: Tensor) -> None:
    """`QuerySummaries.update` for one layer: q [B, Hq, d] fp32."""
    is_real = s.slot_ids >= 0
    slots, q = s.slot_ids[is_real].long(), q[is_real]
    betas = torch.tensor([s.beta_short, s.beta_long], device=q.device).view(2, 1, 1)
    weighted = q.unsqueeze(1) * (1 - betas)
    first = weighted if s.bias_correction else q.unsqueeze(1).expand_as(weighted)
    is_first = (s.num_updates[slots] == 0).view(-1, 1, 1, 1)
    s.state[slots] = torch.where(is_first, first, s.state[slots] * betas + weighted)
    s.rms[slots] = q.square().mean(-1).sqrt()


@triton.jit
def _load_halves(ptr, head, num_heads, HALF: tl.constexpr):
    """Both halves, each [HEADS, HALF] in fp32, of heads that start at ptr."""
    offset = head[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
    is_in = (head < num_heads)[:, None]
    first = tl.load(ptr + offset, mask=is_in, other=0.0)
    second = tl.load(ptr + offset + HALF, mask=is_in, other=0.0)
    return first.to(tl.float32), second.to(tl.float32)


@triton.jit
def _store_halves(ptr, first, second, head, num_heads, HALF: tl.constexpr):
    offset = head[:, None] * (2 * HALF) + tl.arange(0, HALF)[None, :]
    is_in = (head < num_heads)[:, None]
    tl.store(ptr + offset, first.to(ptr.dtype.element_ty), mask=is_in)
    tl.store(ptr + offset + HALF, second.to(ptr.dtype.element_ty), mask=is_in)


@triton.jit
def _norm_halves(first, second, weight_ptr, eps, HALF: tl.constexpr):
    column = tl.arange(0, HALF)
    weight_1 = tl.load(weight_ptr + column).to(tl.float32)
    weight_2 = tl.load(weight_ptr + HALF + column).to(tl.float32)
    mean = tl.sum(first * first + second * second, 1) / (2 * HALF)
    scale = tl.rsqrt(mean + eps)[:, None]
    return first * scale * weight_1[None, :], second * scale * weight_2[None, :]


@triton.jit
def _rotate_halves(first, second, rotary_ptr, HALF: tl.constexpr):
    column = tl.arange(0, HALF)
    cos = tl.load(rotary_ptr + column)[None, :]
    sin = tl.load(rotary_ptr + HALF + column)[None, :]
    return first * cos - second * sin, second * cos + first * sin


@triton.jit
def _folded(old, q, beta, is_first, BIAS_CORRECTION: tl.constexpr):
    """`is_first` chooses and never multiplies: what a previous owner left may be anything."""
    weighted = q * (1.0 - beta)
    first = weighted if BIAS_CORRECTION else q
    return tl.where(is_first, first, old * beta + weighted)


@triton.jit(do_not_specialize=["num_decodes"])
def _rotate_and_store_kernel(
    qkv_ptr, rotary_ptr, slots_ptr, norm_ptr, q_ptr, keys_ptr, values_ptr,
    state_ptr, rms_ptr, num_updates_ptr, slot_ids_ptr, num_decodes,
    beta_short, beta_long, qkv_stride, eps,
    Hq: tl.constexpr, H: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr,
    HAS_NORM: tl.constexpr, HAS_SUMMARIES: tl.constexpr, BIAS_CORRECTION: tl.constexpr,
):  # fmt: skip
    d: tl.constexpr = 2 * HALF
    Q_BLOCKS: tl.constexpr = (Hq + HEADS - 1) // HEADS
    KV_BLOCKS: tl.constexpr = (H + HEADS - 1) // HEADS
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    row_ptr = qkv_ptr + row * qkv_stride
    row_rotary_ptr = rotary_ptr + row * d
    if block < Q_BLOCKS:
        head = block * HEADS + tl.arange(0, HEADS)
        if HAS_SUMMARIES:
            # Loads first, behind masks and not behind a branch, so that they overlap.
            slot_id = tl.load(slot_ids_ptr + row, mask=row < num_decodes, other=-1).to(tl.int64)
            is_summed = slot_id >= 0
            slot_id = tl.maximum(slot_id, 0)
            num_summed = tl.where(is_summed, Hq, 0)
            short_ptr = state_ptr + slot_id * (2 * Hq * d)
            long_ptr = short_ptr + Hq * d
            short_1, short_2 = _load_halves(short_ptr, head, num_summed, HALF)
            long_1, long_2 = _load_halves(long_ptr, head, num_summed, HALF)
            is_first = tl.load(num_updates_ptr + slot_id) == 0
        first, second = _load_halves(row_ptr, head, Hq, HALF)
        if HAS_NORM:
            first, second = _norm_halves(first, second, norm_ptr, eps, HALF)
        if HAS_SUMMARIES:
            short_1 = _folded(short_1, first, beta_short, is_first, BIAS_CORRECTION)
            short_2 = _folded(short_2, second, beta_short, is_first, BIAS_CORRECTION)
            long_1 = _folded(long_1, first, beta_long, is_first, BIAS_CORRECTION)
            long_2 = _folded(long_2, second, beta_long, is_first, BIAS_CORRECTION)
            _store_halves(short_ptr, short_1, short_2, head, num_summed, HALF)
            _store_halves(long_ptr, long_1, long_2, head, num_summed, HALF)
            rms = tl.sqrt(tl.sum(first * first + second * second, 1) / d)
            tl.store(rms_ptr + slot_id * Hq + head, rms, mask=head < num_summed)
        first, second = _rotate_halves(first, second, row_rotary_ptr, HALF)
        _store_halves(q_ptr + row * (Hq * d), first, second, head, Hq, HALF)
    else:
        slot = tl.load(slots_ptr + row).to(tl.int64)
        num_stored = tl.where(slot >= 0, H, 0)
        offset = tl.maximum(slot, 0) * (H * d)
        if block < Q_BLOCKS + KV_BLOCKS:
            head = (block - Q_BLOCKS) * HEADS + tl.arange(0, HEADS)
            first, second = _load_halves(row_ptr + Hq * d, head, H, HALF)
            if HAS_NORM:
                first, second = _norm_halves(first, second, norm_ptr + d, eps, HALF)
            first, second = _rotate_halves(first, second, row_rotary_ptr, HALF)
            _store_halves(keys_ptr + offset, first, second, head, num_stored, HALF)
        else:
            head = (block - Q_BLOCKS - KV_BLOCKS) * HEADS + tl.arange(0, HEADS)
            first, second = _load_halves(row_ptr + (Hq + H) * d, head, H, HALF)
            _store_halves(values_ptr + offset, first, second, head, num_stored, HALF)


@triton.jit
def _rotary_table_kernel(positions_ptr, inv_freq_ptr, table_ptr, factor, half, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_in = column < half
    position = tl.load(positions_ptr + row).to(tl.float32)
    angle = position * tl.load(inv_freq_ptr + column, mask=is_in, other=0.0)
    tl.store(table_ptr + row * 2 * half + column, tl.cos(angle) * factor, mask=is_in)
    tl.store(table_ptr + row * 2 * half + half + column, tl.sin(angle) * factor, mask=is_in)


@triton.jit(do_not_specialize=["num_rows"])
def _count_queries_kernel(slot_ids_ptr, num_updates_ptr, num_rows, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    slot_id = tl.load(slot_ids_ptr + row, mask=row < num_rows, other=-1).to(tl.int64)
    is_real = slot_id >= 0
    count = tl.load(num_updates_ptr + slot_id, mask=is_real, other=0)
    tl.store(num_updates_ptr + slot_id, count + 1, mask=is_real)
