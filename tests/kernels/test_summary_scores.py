"""What the summaries see of a request's pages: the kernels beside their torch twins."""

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from growpage.budget import demand
from growpage.budget.base import GroupReduce
from growpage.engine.kernels import summary_scores
from growpage.engine.kernels.page_list import page_list

PAGE = 16


def _case(
    device: torch.device,
    *,
    num_tokens: int,
    group: int = 2,
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    layers: int = 2,
    heads: int = 2,
    page: int = PAGE,
) -> tuple[Tensor, Tensor, list[int], Tensor]:
    """Queries, a cache, a page list out of order, and the tokens themselves [L, n, H, d]."""
    num_pages = -(-num_tokens // page)
    data = torch.randn(layers, 2, num_pages + 3, page, heads, head_dim, device=device).to(dtype)
    pages = torch.randperm(num_pages + 3)[:num_pages].tolist()
    queries = 3 * torch.randn(2, layers, heads * group, head_dim, device=device)
    index = torch.tensor(pages, device=device)
    tokens = data[:, 0].index_select(1, index).flatten(1, 2)[:, :num_tokens]
    return queries, data, pages, tokens


@pytest.mark.parametrize("num_tokens", [1, 15, 16, 17, 80])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_equal_those_of_the_gathered_keys(
    device: torch.device, num_tokens: int, dtype: torch.dtype
) -> None:
    queries, data, pages, keys = _case(device, num_tokens=num_tokens, dtype=dtype)
    logits = summary_scores.attention_logits(
        queries, data, page_list(pages, device), num_tokens, 0.2
    )
    expected = demand.attention_logits(queries.double(), keys.double(), 0.2)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("group", [1, 3, 5, 7, 8, 9])
def test_every_group_size_reads_its_own_kv_head(device: torch.device, group: int) -> None:
    queries, data, pages, keys = _case(device, num_tokens=40, group=group)
    logits = summary_scores.attention_logits(
        queries, data, torch.tensor(pages, device=device), 40, 0.2
    )
    torch.testing.assert_close(
        logits, demand.attention_logits(queries, keys, 0.2), rtol=1e-5, atol=1e-5
    )


def test_other_pages_and_the_values_are_not_read(device: torch.device) -> None:
    queries, data, pages, keys = _case(device, num_tokens=40)
    expected = demand.attention_logits(queries, keys, 0.2)
    data[:, 1] = torch.nan
    data[:, 0, [page for page in range(data.shape[2]) if page not in pages]] = torch.nan
    data[:, 0, pages[-1], 40 % PAGE :] = torch.nan
    logits = summary_scores.attention_logits(queries, data, page_list(pages, device), 40, 0.2)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduce", list(GroupReduce))
@pytest.mark.parametrize("num_candidates", [1, 16, 45, 50])
@pytest.mark.parametrize("group", [1, 3, 4])
def test_group_attention_over_a_candidate_range(
    device: torch.device, reduce: GroupReduce, num_candidates: int, group: int
) -> None:
    logits = 5 * torch.randn(2, 2, 2, group, 50, device=device) - 200
    candidates = logits[..., :num_candidates]
    expected = demand.group_attention(candidates, reduce)
    attention = summary_scores.group_attention(candidates, reduce)
    torch.testing.assert_close(attention, expected, rtol=1e-5, atol=1e-7)
    larger = summary_scores.dual_timescale(candidates, reduce)
    torch.testing.assert_close(larger, expected.amax(0), rtol=1e-5, atol=1e-7)


def test_rows_longer_than_a_tile(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(summary_scores.SOFTMAX, "BLOCK", 16)
    logits = torch.arange(0.0, 70.0, device=device) * torch.randn(2, 1, 2, 3, 1, device=device)
    for reduce in GroupReduce:
        torch.testing.assert_close(
            summary_scores.group_attention(logits, reduce),
            demand.group_attention(logits, reduce),
            rtol=1e-5,
            atol=1e-7,
        )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("group", "head_dim"), [(4, 128), (7, 128), (5, 128), (8, 64)])
def test_long_requests_of_real_shapes(
    device: torch.device, dtype: torch.dtype, group: int, head_dim: int
) -> None:
    queries, data, pages, keys = _case(
        device, num_tokens=4096, group=group, head_dim=head_dim, dtype=dtype, heads=8, page=256
    )
    scale = head_dim**-0.5
    logits = summary_scores.attention_logits(queries, data, page_list(pages, device), 4096, scale)
    expected = demand.attention_logits(queries.double(), keys.double(), scale).float()
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=2e-5)
    candidates = logits[..., : 4096 - 16]
    for reduce in GroupReduce:
        expected = demand.group_attention(candidates, reduce)
        attention = summary_scores.group_attention(candidates, reduce)
        torch.testing.assert_close(attention, expected, rtol=1e-4, atol=1e-7)
        larger = summary_scores.dual_timescale(candidates, reduce)
        torch.testing.assert_close(larger, expected.amax(0), rtol=1e-4, atol=1e-7)
