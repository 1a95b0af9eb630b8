# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, import-not-found"
"""The gate of SwiGLU; the twin is `silu_and_mul_reference`. Safe in a CUDA graph.

Shape legend: T rows, I intermediate size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, NUM_WARPS = 1024, 4  # 8 elements a thread: one 16-byte load of each half in bf16


def silu_and_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up in float32, rounded once: [T, 2 * I] with dense rows, gate first → [T, I]."""
    assert gate_up.shape[1] % 2 == 0, gate_up.shape
    assert gate_up.stride(-1) == 1, gate_up.stride()
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if num_rows:
        grid = (num_rows, triton.cdiv(size, BLOCK))
        _silu_and_mul_kernel[grid](
            gate_up, out, gate_up.stride(0), size, BLOCK=BLOCK, num_warps=NUM_WARPS
        )
    return out


def silu_and_mul_reference(gate_up: Tensor) -> Tensor:
    """The same in plain torch."""
    gate, up = gate_up.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


@triton.jit
def _silu_and_mul_kernel(gate_up_ptr, out_ptr, stride, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_in = column < size
    gate = tl.load(gate_up_ptr + row * stride + column, mask=is_in, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * stride + size + column, mask=is_in, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * size + column, gate / (1.0 + tl.exp(-gate)) * up, mask=is_in)
