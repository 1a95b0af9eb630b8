"""Working sets without a sort: the kernel beside its torch twin and the definition in float64."""

import pytest
import torch

pytest.importorskip("triton")

from growpage.budget import demand
from growpage.budget.base import DemandMetric
from growpage.engine.kernels import working_set as kernels


@pytest.mark.parametrize("num_tokens", [1, 2, 100, 1024, 1025])
@pytest.mark.parametrize("mass", [0.1, 0.9, 0.99])
@pytest.mark.parametrize("temperature", [0.1, 6.0])
def test_count_is_that_of_the_sorted_definition(
    device: torch.device, num_tokens: int, mass: float, temperature: float
) -> None:
    """In float64, with room for the rounding of a float32 sum at the boundary."""
    attention = (temperature * torch.randn(3, num_tokens, device=device)).softmax(-1)
    size = kernels.working_set(attention, mass)
    assert size.dtype == torch.int64
    exact = attention.double()
    assert (size >= demand.working_set(exact, mass - 5e-7)).all()
    assert (size <= demand.working_set(exact, mass + 5e-7)).all()


def test_exact_sums_give_the_twins_count(device: torch.device) -> None:
    """Multiples of 2^-12: no order of summation rounds."""
    counts = torch.randint(0, 9, (4, 400), device=device)
    counts[:, 0] += 4096 - counts.sum(-1)
    attention = counts / 4096
    for mass in (0.25, 0.5, 0.75, 0.9, 0.99):
        assert torch.equal(
            kernels.working_set(attention, mass), demand.working_set(attention, mass)
        )


def test_ties_at_the_boundary_are_counted_one_by_one(device: torch.device) -> None:
    attention = torch.full((1, 64), 1 / 64, device=device)
    assert int(kernels.working_set(attention, 0.5)) == 32
    assert int(kernels.working_set(attention, 0.51)) == 33
    attention = torch.tensor([[0.5, 0.125, 0.125, 0.125, 0.125]], device=device)
    assert int(kernels.working_set(attention, 0.75)) == 3


@pytest.mark.parametrize("unit", [3, 5, 7, 11, 13])
def test_a_mass_that_whole_keys_hold_exactly_takes_no_key_more(
    device: torch.device, unit: int
) -> None:
    """Sums and masses are multiples of 2^-14: neither they nor the quotient of them rounds."""
    attention = torch.full((1, 1000), unit / 16384, device=device)
    for num_keys in (1, 2, 3, 7, 10, 49, 100, 641):
        assert int(kernels.working_set(attention, num_keys * unit / 16384)) == num_keys


def test_one_key_with_everything_and_a_row_that_misses_the_mass(device: torch.device) -> None:
    attention = torch.zeros(2, 40, device=device)
    attention[0, 17] = 1.0
    attention[1] = 0.02
    assert kernels.working_set(attention, 0.99).tolist() == [1, 40]


def test_leading_dimensions_stay(device: torch.device) -> None:
    attention = torch.randn(2, 3, 2, 30, device=device).softmax(-1)
    assert torch.equal(
        kernels.working_set(attention, 0.9).cpu(), demand.working_set(attention, 0.9).cpu()
    )


@pytest.mark.parametrize("mass", [0.0, 1.0, float("nan")])
def test_mass_out_of_range_is_refused(device: torch.device, mass: float) -> None:
    with pytest.raises(ValueError, match="mass"):
        kernels.working_set(torch.ones(1, device=device), mass)


def test_rows_beyond_the_registers_go_to_the_twin(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MAX_TOKENS", 16)
    attention = torch.randn(2, 17, device=device).softmax(-1)
    assert torch.equal(kernels.working_set(attention, 0.9), demand.working_set(attention, 0.9))


@pytest.mark.parametrize("num_tokens", [1, 2, 77])
def test_entropy_ratio(
    device: torch.device, num_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(kernels.ENTROPY, "BLOCK", 32)
    attention = (4 * torch.randn(2, 3, 2, num_tokens, device=device)).softmax(-1)
    attention[0, 0, 0] = 0.0
    attention[0, 0, 0, 0] = 1.0
    torch.testing.assert_close(
        kernels.entropy_ratio(attention), demand.entropy_ratio(attention), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("metric", list(DemandMetric))
def test_demand_of_equal_summaries_is_equal(device: torch.device, metric: DemandMetric) -> None:
    attention = torch.randn(1, 2, 2, 90, device=device).softmax(-1).expand(2, -1, -1, -1)
    ratios = kernels.demand_ratios(attention, metric, 0.99)
    assert ratios[0] == ratios[1]
    expected = demand.demand_ratios(attention, metric, 0.99)
    assert ratios.tolist() == pytest.approx(expected.tolist())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("num_tokens", [3840, 4096, 8000, 32768])
def test_long_rows(device: torch.device, num_tokens: int) -> None:
    attention = (3 * torch.randn(2, 36, 8, num_tokens, device=device)).softmax(-1)
    size = kernels.working_set(attention, 0.99)
    exact = attention.double()
    assert (size >= demand.working_set(exact, 0.99 - 1e-6)).all()
    assert (size <= demand.working_set(exact, 0.99 + 1e-6)).all()
