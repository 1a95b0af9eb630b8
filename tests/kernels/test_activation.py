import pytest
import torch

pytest.importorskip("triton")

from growpage.engine.kernels.activation import silu_and_mul, silu_and_mul_reference


@pytest.mark.parametrize(("num_rows", "size"), [(1, 64), (3, 1024), (2, 1025), (5, 1536)])
def test_gate_equals_the_twin(num_rows: int, size: int, device: torch.device) -> None:
    gate_up = 3 * torch.randn(num_rows, 2 * size, device=device)
    out = silu_and_mul(gate_up)
    torch.testing.assert_close(out, silu_and_mul_reference(gate_up))
    gate, up = gate_up.chunk(2, -1)
    torch.testing.assert_close(out, torch.nn.functional.silu(gate) * up)


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_extreme_gates_stay_finite(device: torch.device) -> None:
    gate_up = torch.tensor([[-200.0, -90.0, 0.0, 200.0, 1.0, 1.0, 1.0, 1.0]], device=device)
    torch.testing.assert_close(
        silu_and_mul(gate_up), torch.tensor([[0.0, 0.0, 0.0, 200.0]], device=device)
    )


def test_rows_may_be_strided(device: torch.device) -> None:
    gate_up = torch.randn(6, 50, device=device)[::2, :40]
    torch.testing.assert_close(silu_and_mul(gate_up), silu_and_mul_reference(gate_up))


def test_bfloat16_is_rounded_once(device: torch.device) -> None:
    gate_up = torch.randn(3, 200, device=device).to(torch.bfloat16)
    torch.testing.assert_close(silu_and_mul(gate_up), silu_and_mul_reference(gate_up))


def test_no_rows_give_no_rows(device: torch.device) -> None:
    assert silu_and_mul(torch.empty(0, 8, device=device)).shape == (0, 4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_intermediate_size_of_qwen3_8b(dtype: torch.dtype) -> None:
    gate_up = torch.randn(385, 2 * 12288, device="cuda").to(dtype)
    torch.testing.assert_close(silu_and_mul(gate_up), silu_and_mul_reference(gate_up))
