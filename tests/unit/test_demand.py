"""Working sets, selection and query summaries: hand-checked values and the paper's theorem."""

from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from growpage.budget.base import DemandMetric, GroupReduce
from growpage.budget.demand import (
    attention_logits,
    demand_ratios,
    entropy_ratio,
    group_attention,
    working_set,
)
from growpage.budget.scorers.base import ScoringInput
from growpage.budget.scorers.dual_timescale import dual_timescale
from growpage.budget.selection import select_tokens
from growpage.engine.query_state import QuerySummaries


def test_working_set_counts_the_token_that_crosses_the_mass() -> None:
    attention = torch.tensor([0.5, 0.1, 0.3, 0.1])
    assert int(working_set(attention, 0.5)) == 1
    assert int(working_set(attention, 0.51)) == 2
    assert int(working_set(attention, 0.85)) == 3
    assert int(working_set(attention, 0.99)) == 4


@pytest.mark.parametrize("mass", [0.0, 1.0, float("nan")])
def test_mass_out_of_range_is_refused(mass: float) -> None:
    with pytest.raises(ValueError, match="mass"):
        working_set(torch.ones(1), mass)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=7), st.floats(0.05, 0.95))
def test_working_set_is_the_worst_case_capacity_of_theorem_3_1(
    weights: list[float], mass: float
) -> None:
    attention = torch.tensor(weights, dtype=torch.float64)
    attention /= attention.sum()
    best = [
        max(sum(attention[list(kept)]) for kept in combinations(range(len(weights)), size))
        for size in range(1, len(weights) + 1)
    ]
    smallest = next((size for size, kept in enumerate(best, 1) if kept >= mass), len(weights))
    assert int(working_set(attention, mass)) == smallest


def test_uniform_attention_has_the_largest_demand() -> None:
    uniform = torch.full((2, 1, 1, 100), 0.01)
    assert demand_ratios(uniform, DemandMetric.topp, 0.985).tolist() == pytest.approx([0.99, 0.99])
    assert entropy_ratio(uniform).tolist() == pytest.approx([1.0, 1.0])


def test_group_mean_stays_a_distribution_and_max_is_normalised() -> None:
    logits = torch.randn(2, 3, 2, 4, 9)
    for reduce in GroupReduce:
        assert torch.allclose(group_attention(logits, reduce).sum(-1), torch.ones(2, 3, 2))


def test_query_heads_vote_for_their_own_kv_head() -> None:
    """Four query heads over two KV heads; only query head 3 looks at token 5."""
    keys = torch.zeros(1, 8, 2, 4)
    keys[0, 5, :, 0] = 1.0
    queries = torch.zeros(2, 1, 4, 4)
    queries[:, 0, 3, 0] = 20.0
    logits = attention_logits(queries, keys, 1.0)
    scores = dual_timescale(
        ScoringInput(
            keys=keys,
            values=keys,
            logits=logits,
            num_candidates=7,
            group_reduce=GroupReduce.mean,
            page_size=4,
            softmax_scale=1.0,
        )
    ).scores
    assert int(scores[0, 1].argmax()) == 5
    assert scores[0, 0].unique().numel() == 1


@settings(max_examples=60, deadline=None)
@given(
    num_pages=st.integers(2, 6),
    page_size=st.sampled_from([4, 8]),
    num_protected=st.integers(0, 3),
    k_loc=st.integers(0, 8),
    seed=st.integers(0, 1000),
)
def test_selection_keeps_exactly_the_budget_in_order_with_the_protected(
    num_pages: int, page_size: int, num_protected: int, k_loc: int, seed: int
) -> None:
    num_tokens = num_pages * page_size
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 5, (2, 3, num_tokens - num_protected), generator=generator).float()
    num_retained = num_tokens - page_size
    quota = min(k_loc, page_size)
    kept = select_tokens(
        scores,
        num_tokens=num_tokens,
        num_retained=num_retained,
        page_size=page_size,
        k_loc=quota,
    )
    assert kept.shape == (2, 3, num_retained)
    assert (kept.diff(dim=-1) > 0).all()
    if num_protected:
        newest = torch.arange(num_tokens - num_protected, num_tokens)
        assert (kept[..., -num_protected:] == newest).all()
    num_candidates = num_tokens - num_protected
    fits = quota * num_pages <= num_retained - num_protected
    per_page = torch.stack([(kept // page_size == page).sum(-1) for page in range(num_pages)], -1)
    if fits:
        candidates = torch.tensor(
            [min(page_size, num_candidates - page * page_size) for page in range(num_pages)]
        )
        assert (per_page >= candidates.clamp(0, quota)).all()


def test_ties_keep_the_newer_token() -> None:
    kept = select_tokens(torch.zeros(1, 1, 8), num_tokens=8, num_retained=4, page_size=4, k_loc=0)
    assert kept.flatten().tolist() == [4, 5, 6, 7]


def _summaries(**overrides: object) -> QuerySummaries:
    values = {
        "num_layers": 1,
        "num_slots": 2,
        "num_heads": 1,
        "head_dim": 4,
        "beta_short": 0.9,
        "beta_long": 0.999,
        "bias_correction": False,
        "device": torch.device("cpu"),
    }
    return QuerySummaries(**(values | overrides))  # type: ignore[arg-type]


def _update(summaries: QuerySummaries, query: torch.Tensor, slot: int = 0) -> None:
    summaries.update(torch.tensor([slot]), query.view(1, 1, 1, 4))


def test_first_query_becomes_both_summaries_whatever_the_slot_held() -> None:
    summaries = _summaries()
    for _ in range(50):
        _update(summaries, torch.tensor([1.0, 0, 0, 0]))
    summaries.reset(torch.tensor([0]))
    _update(summaries, torch.tensor([0.0, 1, 0, 0]))
    assert torch.equal(summaries.summaries(0), torch.tensor([0.0, 1, 0, 0]).expand(2, 1, 1, 4))


def test_long_summary_moves_in_float32() -> None:
    summaries = _summaries()
    target = torch.tensor([0.0, 1.0, 0.0, 0.0])
    _update(summaries, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    for _ in range(8000):
        _update(summaries, target)
    long = summaries.summaries(0)[1].flatten()
    assert float(torch.cosine_similarity(long, target, dim=0)) >= 0.999


def test_summaries_follow_equation_6() -> None:
    summaries = _summaries(beta_short=0.5, beta_long=0.75)
    queries = torch.randn(5, 4)
    short, long = queries[0], queries[0]
    _update(summaries, queries[0])
    for query in queries[1:]:
        short, long = 0.5 * short + 0.5 * query, 0.75 * long + 0.25 * query
        _update(summaries, query)
    assert torch.allclose(summaries.summaries(0).view(2, 4), torch.stack([short, long]))


def test_bias_correction_weighs_all_queries_of_a_constant_stream_alike() -> None:
    summaries = _summaries(bias_correction=True)
    for _ in range(3):
        _update(summaries, torch.tensor([1.0, 2.0, 3.0, 4.0]))
    expected = torch.tensor([1.0, 2.0, 3.0, 4.0]).expand(2, 1, 1, 4)
    assert torch.allclose(summaries.summaries(0), expected, rtol=1e-4)


def test_calibration_gives_the_rms_of_the_last_query_and_zero_stays_zero() -> None:
    summaries = _summaries()
    _update(summaries, torch.zeros(4))
    assert torch.equal(summaries.calibrated(0), torch.zeros(2, 1, 1, 4))
    _update(summaries, torch.tensor([2.0, 0.0, 0.0, 0.0]))
    rms = summaries.calibrated(0).square().mean(-1).sqrt()
    assert torch.allclose(rms, torch.ones(2, 1, 1))


def test_exported_slot_comes_back_bit_for_bit() -> None:
    summaries = _summaries()
    for _ in range(3):
        _update(summaries, torch.randn(4))
    saved = summaries.export(0)
    summaries.restore(1, saved)
    assert torch.equal(summaries.state[:, 0], summaries.state[:, 1])
    assert torch.equal(summaries.calibrated(0), summaries.calibrated(1))
