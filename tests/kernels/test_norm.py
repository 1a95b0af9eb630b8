import pytest
import torch

pytest.importorskip("triton")

from growpage.engine.kernels.norm import (
    add_rms_norm,
    add_rms_norm_reference,
    rms_norm,
    rms_norm_reference,
)

EPS = 1e-5
SIZES = [(1, 64), (3, 576), (5, 2560), (2, 4096)]


@pytest.mark.parametrize(("num_rows", "size"), SIZES)
def test_norm_equals_the_twin_and_torch(num_rows: int, size: int, device: torch.device) -> None:
    x = 3 * torch.randn(num_rows, size, device=device)
    weight = torch.rand(size, device=device)
    out = rms_norm(x, weight, EPS)
    torch.testing.assert_close(out, rms_norm_reference(x, weight, EPS))
    torch.testing.assert_close(out, torch.nn.functional.rms_norm(x, (size,), weight, EPS))


@pytest.mark.parametrize(("num_rows", "size"), SIZES)
def test_sum_and_norm_equal_the_twin(num_rows: int, size: int, device: torch.device) -> None:
    x, residual = torch.randn(2, num_rows, size, device=device)
    weight = torch.rand(size, device=device)
    normed, total = add_rms_norm(x, residual, weight, EPS)
    expected_normed, expected_total = add_rms_norm_reference(x, residual, weight, EPS)
    assert torch.equal(total, expected_total)
    torch.testing.assert_close(normed, expected_normed)


def test_rows_may_be_strided(device: torch.device) -> None:
    wide = torch.full((6, 100), torch.nan, device=device)
    wide[::2, :64] = torch.randn(3, 64, device=device)
    x, weight = wide[::2, :64], torch.ones(64, device=device)
    torch.testing.assert_close(rms_norm(x, weight, EPS), rms_norm_reference(x, weight, EPS))
    normed, total = add_rms_norm(x, x, weight, EPS)
    assert torch.equal(total, 2 * x)
    torch.testing.assert_close(normed, rms_norm_reference(2 * x, weight, EPS))


def test_a_zero_row_stays_zero(device: torch.device) -> None:
    x = torch.zeros(2, 64, device=device)
    assert torch.equal(rms_norm(x, torch.ones(64, device=device), EPS), x)


def test_the_rounded_sum_is_normed(device: torch.device) -> None:
    x, residual = torch.randn(2, 3, 256, device=device).to(torch.float16)
    weight = torch.rand(256, device=device).to(torch.float16)
    normed, total = add_rms_norm(x, residual, weight, EPS)
    assert torch.equal(total, x + residual)
    # Norms of the exact sum would round to other numbers in many places.
    assert (normed == rms_norm_reference(total, weight, EPS)).float().mean() > 0.99


def test_bfloat16_is_near_the_twin(device: torch.device) -> None:
    # The interpreter truncates to bfloat16, so one unit in the last place is allowed.
    x, residual = torch.randn(2, 3, 256, device=device).to(torch.bfloat16)
    weight = torch.rand(256, device=device).to(torch.bfloat16)
    torch.testing.assert_close(
        add_rms_norm(x, residual, weight, EPS),
        add_rms_norm_reference(x, residual, weight, EPS),
        atol=1e-2,
        rtol=1.6e-2,
    )


def test_no_rows_give_no_rows(device: torch.device) -> None:
    x, weight = torch.empty(0, 64, device=device), torch.ones(64, device=device)
    assert rms_norm(x, weight, EPS).shape == (0, 64)
    assert [t.shape for t in add_rms_norm(x, x, weight, EPS)] == [(0, 64), (0, 64)]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [3584, 4096, 5120])
def test_hidden_sizes_of_real_models(size: int, dtype: torch.dtype) -> None:
    x, residual = torch.randn(2, 385, size, device="cuda").to(dtype)
    weight = torch.rand(size, device="cuda").to(dtype)
    torch.testing.assert_close(
        add_rms_norm(x, residual, weight, EPS), add_rms_norm_reference(x, residual, weight, EPS)
    )
