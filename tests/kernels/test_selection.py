"""Selection in one launch: bit for bit what its torch twin selects."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from growpage.budget import selection as twin
from growpage.engine.kernels import selection as kernels


def _assert_same(scores: Tensor, *, page_size: int, k_loc: int, num_tokens: int, free: int) -> None:
    arguments = {
        "num_tokens": num_tokens,
        "num_retained": num_tokens - free,
        "page_size": page_size,
        "k_loc": k_loc,
    }
    kept = kernels.select_tokens(scores, **arguments)
    assert kept.dtype == torch.int64
    assert torch.equal(kept, twin.select_tokens(scores, **arguments))


@pytest.mark.parametrize("page_size", [4, 16, 64])
@pytest.mark.parametrize("num_protected", [0, 3, 16])
def test_quotas_of_every_kind(device: torch.device, page_size: int, num_protected: int) -> None:
    """No quota, some, one that fills the page, one that exceeds what may stay."""
    num_tokens = 6 * page_size
    if num_protected >= num_tokens - page_size:
        pytest.skip("more protected than retained")
    scores = torch.randn(1, 2, num_tokens - num_protected, device=device)
    for k_loc in {0, 1, page_size // 4, page_size}:
        _assert_same(
            scores, page_size=page_size, k_loc=k_loc, num_tokens=num_tokens, free=page_size
        )


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_ties_keep_the_newer_token(device: torch.device, levels: int) -> None:
    scores = torch.randint(-levels, levels, (2, 2, 61), device=device).float()
    for k_loc in (0, 3):
        _assert_same(scores, page_size=16, k_loc=k_loc, num_tokens=64, free=16)


def test_negative_zero_and_tiny_scores_are_ordered_as_floats(device: torch.device) -> None:
    values = [0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38, 3.4e38, -3.4e38]
    choice = torch.randint(0, len(values), (2, 2, 60), device=device)
    scores = torch.tensor(values, device=device)[choice]
    for k_loc in (0, 4):
        _assert_same(scores, page_size=16, k_loc=k_loc, num_tokens=64, free=16)


def test_partial_last_page_holds_fewer_candidates_than_its_quota(device: torch.device) -> None:
    scores = torch.randn(2, 1, 34, device=device)
    _assert_same(scores, page_size=16, k_loc=8, num_tokens=48, free=16)


def test_pages_that_are_no_power_of_two_and_a_request_within_its_page(
    device: torch.device,
) -> None:
    _assert_same(
        torch.randn(1, 2, 70, device=device), page_size=16, k_loc=4, num_tokens=75, free=27
    )
    _assert_same(torch.randn(1, 2, 9, device=device), page_size=16, k_loc=2, num_tokens=10, free=5)


def test_rows_beyond_the_registers_go_to_the_twin(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MAX_TOKENS", 64)
    scores = torch.randn(1, 2, 68, device=device)
    _assert_same(scores, page_size=16, k_loc=4, num_tokens=70, free=16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("num_pages", "page_size"), [(16, 256), (9, 256), (128, 256), (40, 128), (256, 16), (2048, 16)]
)
@pytest.mark.parametrize("is_tied", [False, True])
def test_long_rows(device: torch.device, num_pages: int, page_size: int, is_tied: bool) -> None:
    num_tokens = num_pages * page_size
    scores = torch.rand(36, 8, num_tokens - 16, device=device)
    if is_tied:
        scores = (scores * 20).floor()
    _assert_same(
        scores, page_size=page_size, k_loc=page_size // 4, num_tokens=num_tokens, free=page_size
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("page_size", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("num_pages", [1, 3, 8, 30])
@pytest.mark.parametrize("num_protected", [0, 1, 3])
def test_lengths_that_are_no_multiples(
    device: torch.device, page_size: int, num_pages: int, num_protected: int
) -> None:
    """Threads then hold single tokens of several pages, in other places than those of aligned rows."""
    num_tokens = num_pages * page_size + 5
    scores = torch.randn(3, 5, num_tokens - num_protected, device=device)
    for k_loc in (1, page_size // 2 + 1, page_size - 2, page_size):
        _assert_same(
            scores, page_size=page_size, k_loc=k_loc, num_tokens=num_tokens, free=page_size // 2
        )
