# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
"""RMS norm of hidden states; the twins are `rms_norm_reference` and `add_rms_norm_reference`.

Statistics and products are float32 and rounded once, at the end. Both are safe in a CUDA graph.

Shape legend: T rows, D hidden size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight: x [T, D] with dense rows, weight [D] → [T, D] in x's dtype."""
    assert x.stride(-1) == weight.stride(-1) == 1, (x.stride(), weight.stride())
    num_rows, size = x.shape
    out = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    if num_rows:
        block, num_warps = _config(size)
        _rms_norm_kernel[(num_rows,)](
            x, weight, out, x.stride(0), size, eps, BLOCK=block, num_warps=num_warps
        )
    return out


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The same in plain torch."""
    x32 = x.float()
    scale = torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)
    return (x32 * scale * weight.float()).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The new residual x + residual, rounded to its dtype, and the norm of what was rounded.

    x, residual: [T, D] with dense rows; weight: [D]. Returns (normed, new residual), both [T, D].
    """
    assert x.stride(-1) == residual.stride(-1) == weight.stride(-1) == 1
    assert x.shape == residual.shape, (x.shape, residual.shape)
    assert x.dtype == residual.dtype, (x.dtype, residual.dtype)
    num_rows, size = x.shape
    normed = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    total = torch.empty_like(normed)
    if num_rows:
        block, num_warps = _config(size)
        _add_rms_norm_kernel[(num_rows,)](
            x, residual, weight, normed, total, x.stride(0), residual.stride(0), size, eps,
            BLOCK=block, num_warps=num_warps,
        )  # fmt: skip
    return normed, total


def add_rms_norm_reference(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """The same in plain torch."""
    total = (x.float() + residual.float()).to(x.dtype)
    return rms_norm_reference(total, weight, eps), total


def _config(size: int) -> tuple[int, int]:
    """Block (a whole row) and warps: 16 elements a thread, two 16-byte loads in bf16."""
    block = max(int(triton.next_power_of_2(size)), 16)
    return block, min(max(block // 512, 1), 16)


@triton.jit
def _rms_norm_kernel(x_ptr, weight_ptr, out_ptr, x_stride, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_in = column < size
    x = tl.load(x_ptr + row * x_stride + column, mask=is_in, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + column, mask=is_in, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, 0) / size + eps)
    tl.store(out_ptr + row * size + column, x * scale * weight, mask=is_in)


@triton.jit
def _add_rms_norm_kernel(
    x_ptr, residual_ptr, weight_ptr, normed_ptr, total_ptr,
    x_stride, residual_stride, size, eps, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_in = column < size
    x = tl.load(x_ptr + row * x_stride + column, mask=is_in, other=0.0).to(tl.float32)
    residual = tl.load(residual_ptr + row * residual_stride + column, mask=is_in, other=0.0)
    weight = tl.load(weight_ptr + column, mask=is_in, other=0.0).to(tl.float32)
    total = (x + residual.to(tl.float32)).to(total_ptr.dtype.element_ty)
    tl.store(total_ptr + row * size + column, total, mask=is_in)
    total = total.to(tl.float32)
    scale = tl.rsqrt(tl.sum(total * total, 0) / size + eps)
    tl.store(normed_ptr + row * size + column, total * scale * weight, mask=is_in)
