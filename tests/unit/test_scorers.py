"""Token scorers against plain references and cases checked by hand."""

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from growpage.budget import observation
from growpage.budget.base import GroupReduce, SwapSummaries
from growpage.budget.fixed import Fixed
from growpage.budget.observation import page_redundancy, redundancy
from growpage.budget.scorer_settings import RECIPES, Fusion, ScorerSettings, resolved
from growpage.budget.scorers.base import ScoringInput
from growpage.budget.scorers.registry import SCORERS
from growpage.budget.selection import select_tokens
from growpage.engine.query_windows import QueryWindows
from growpage.errors import UsageError

PAGE = 4


def inputs(
    scorer: str, keys: torch.Tensor, *, num_candidates: int, **values: object
) -> ScoringInput:
    """keys: [L, n, H, d]. Settings by name, the others as the recipe says."""
    names = ScorerSettings.__dataclass_fields__
    given = {name: values.pop(name) for name in list(values) if name in names}
    defaults = {
        "keys": keys,
        "values": keys,
        "logits": torch.zeros(2, keys.shape[0], keys.shape[2], 1, keys.shape[1]),
        "num_candidates": num_candidates,
        "group_reduce": GroupReduce.mean,
        "page_size": PAGE,
        "softmax_scale": keys.shape[-1] ** -0.5,
        "settings": resolved(scorer, ScorerSettings(**given)),
    }
    return ScoringInput(**(defaults | values))


def test_every_scorer_has_a_recipe() -> None:
    assert set(RECIPES) == set(SCORERS)


def test_streaming_llm_keeps_the_sinks_and_the_newest() -> None:
    given = inputs("streaming_llm", torch.randn(2, 16, 3, 8), num_candidates=14, num_sinks=2)
    scores = SCORERS["streaming_llm"](given).scores
    kept = select_tokens(scores, num_tokens=16, num_retained=8, page_size=PAGE, k_loc=0)
    assert (kept == torch.tensor([0, 1, 10, 11, 12, 13, 14, 15])).all()


def test_a_policy_records_the_settings_of_its_scorer_and_quotas_are_of_eq_10_alone() -> None:
    policy = Fixed(scorer="streaming_llm")
    assert policy.scorer_settings.num_sinks == 4
    assert policy.local_quota(16) == 0
    assert Fixed().local_quota(16) == 4
    assert Fixed(scorer="streaming_llm", k_loc=3).local_quota(16) == 3


def test_a_setting_of_another_scorer_is_refused_by_name() -> None:
    with pytest.raises(
        UsageError, match=r"scorer_settings\.num_sinks=2: no effect.*dual_timescale"
    ):
        Fixed(scorer_settings=ScorerSettings(num_sinks=2))


@pytest.mark.parametrize(
    "values", [{"window": 0}, {"kernel_size": 4}, {"mix_lambda": float("nan")}, {"num_sinks": -1}]
)
def test_settings_out_of_range_are_refused_by_name(values: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=f"scorer_settings.{next(iter(values))}="):
        ScorerSettings(**values)  # type: ignore[arg-type]


# ---- references: one (layer, KV head), loops over tokens --------------------------------------------------------


def softmax(values: list[float]) -> list[float]:
    top = max(values)
    powers = [math.exp(value - top) for value in values]
    return [power / sum(powers) for power in powers]


def logits_of(queries: torch.Tensor, keys: torch.Tensor) -> list[list[list[float]]]:
    """queries [m, G, d], keys [n, d] → [m][G][tokens the query may see]."""
    count, num_tokens = len(queries), len(keys)
    scale = keys.shape[-1] ** -0.5
    return [
        [
            [float(q @ keys[i]) * scale for i in range(num_tokens - count + t + 1)]
            for q in queries[t]
        ]
        for t in range(count)
    ]


def attention_of(queries: torch.Tensor, keys: torch.Tensor) -> list[float]:
    """mean_t max_g softmax, as SnapKV, G-KV and Zipage have it."""
    logits, num_tokens = logits_of(queries, keys), len(keys)
    shares = [[softmax(row) + [0.0] * (num_tokens - len(row)) for row in group] for group in logits]
    return [
        sum(max(row[i] for row in group) for group in shares) / len(shares)
        for i in range(num_tokens)
    ]


def pooled(values: list[float], size: int) -> list[float]:
    half = size // 2
    return [max(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(a @ b) / ((float(a.norm()) + 1e-8) * (float(b.norm()) + 1e-8))


def alike_all(keys: torch.Tensor) -> list[float]:
    """R of R-KV and G-KV."""
    n = len(keys)
    table = [[0.0 if i == j else cosine(keys[i], keys[j]) for j in range(n)] for i in range(n)]
    for row in table:
        row[max((j for j in range(n) if row[j] > 0.5), default=0)] = 0.0
    return softmax([sum(row[j] for row in table) / n for j in range(n)])


def alike_in_page(keys: torch.Tensor) -> list[float]:
    """R of Zipage."""
    sums = []
    for start in range(0, len(keys), PAGE):
        page = keys[start : start + PAGE]
        n = len(page)
        table = [[0.0 if i == j else cosine(page[i], page[j]) for j in range(n)] for i in range(n)]
        for j in range(n):
            newest = max((i for i in range(n) if table[i][j] > 0.5), default=None)
            if newest is not None:
                table[newest][j] = 0.0
        sums += [sum(row) / (0.4 * PAGE) for row in table]
    return softmax(sums)


def snapkv_reference(q: torch.Tensor, k: torch.Tensor, old: list[float] | None) -> list[float]:
    return pooled(attention_of(q, k)[:-WINDOW], 5)


def h2o_reference(q: torch.Tensor, k: torch.Tensor, old: list[float] | None) -> list[float]:
    return [a + o for a, o in zip(attention_of(q, k), old or [0.0] * len(k), strict=True)]


def rkv_reference(q: torch.Tensor, k: torch.Tensor, old: list[float] | None) -> list[float]:
    older = len(k) - WINDOW
    rows = [
        softmax([max(row[i] for row in group) for i in range(older)]) for group in logits_of(q, k)
    ]
    importance = pooled([sum(row[i] for row in rows) / len(rows) for i in range(older)], 7)
    return [0.1 * i - 0.9 * r for i, r in zip(importance, alike_all(k), strict=False)]


def morphkv_reference(q: torch.Tensor, k: torch.Tensor, old: list[float] | None) -> list[float]:
    older = len(k) - WINDOW
    rows = [
        softmax([sum(row[i] for row in group) for i in range(older)]) for group in logits_of(q, k)
    ]
    return [sum(row[i] for row in rows) for i in range(older)]


def gkv_reference(q: torch.Tensor, k: torch.Tensor, old: list[float] | None) -> list[float]:
    attention = attention_of(q, k)[:-WINDOW]
    old = old or [0.0] * len(k)
    total = [max(0.8 * o, a / max(attention)) for a, o in zip(attention, old, strict=False)]
    alike = alike_all(k)[:-WINDOW]
    return [0.5 * f - 0.5 * r / max(alike) for f, r in zip(total, alike, strict=True)]


def zipage_reference(q: torch.Tensor, k: torch.Tensor, old: list[float] | None) -> list[float]:
    total = attention_of(q, k)
    total = (
        pooled(total, 5)
        if old is None
        else [max(a, 0.8 * o) for a, o in zip(total, old, strict=True)]
    )
    return [0.2 * f - 0.8 * r for f, r in zip(total, alike_in_page(k), strict=True)]


WINDOW = 3
REFERENCES: dict[str, Callable[..., list[float]]] = {  # one row a scorer with a window
    "snapkv": snapkv_reference,
    "h2o": h2o_reference,
    "rkv": rkv_reference,
    "morphkv": morphkv_reference,
    "gkv": gkv_reference,
    "zipage": zipage_reference,
}


def test_every_scorer_with_a_window_has_a_reference() -> None:
    assert set(REFERENCES) == {name for name, recipe in RECIPES.items() if recipe.window}


@pytest.mark.parametrize("has_memory", [False, True])
@pytest.mark.parametrize("num_queries", [1, WINDOW])
@pytest.mark.parametrize("name", REFERENCES)
def test_scores_equal_their_reference(name: str, num_queries: int, has_memory: bool) -> None:
    """Two layers, two KV heads of three query heads each; three tokens of the last page have come since."""
    generator = torch.Generator().manual_seed(3)
    num_tokens, num_candidates = 4 * PAGE, 4 * PAGE - WINDOW - 1
    keys = torch.randn(2, num_tokens, 2, 6, generator=generator)
    keys[:, 5] = keys[:, 4] * 2.0  # alike, in one page
    keys[:, 9] = keys[:, 2]  # alike, in two
    queries = torch.randn(2, num_queries, 6, 6, generator=generator) * 2
    memory = torch.rand(2, 2, num_tokens, generator=generator) if has_memory else None
    if memory is not None:
        memory[..., -PAGE:] = 0.0
    given = inputs(
        name,
        keys,
        num_candidates=num_candidates,
        window_queries=queries,
        memory=memory,
        window=WINDOW,
    )
    scores = SCORERS[name](given).scores
    assert scores.shape == (2, 2, num_candidates)
    for layer in range(2):
        for head in range(2):
            old = None if memory is None else memory[layer, head].tolist()
            expected = REFERENCES[name](
                queries[layer, :, 3 * head : 3 * head + 3], keys[layer, :, head], old
            )
            assert scores[layer, head].tolist() == pytest.approx(
                expected[:num_candidates], abs=1e-5
            )


# ---- by hand ----------------------------------------------------------------------------------------------------


def one_head(*rows: list[float]) -> torch.Tensor:
    """Keys or queries of one layer and head: [1, n, 1, d]."""
    return torch.tensor(rows).view(1, len(rows), 1, -1)


def test_the_group_is_joined_before_the_softmax_in_rkv_and_after_it_in_snapkv() -> None:
    """Query head 0 sees logits (ln 4, 0), head 1 (0, ln 2): by hand 2/3 against max(4/5, 1/3)."""
    keys = one_head([1.0, 0.0], [0.0, 1.0], [-99.0, -99.0])
    queries = torch.tensor([[math.log(4), 0.0], [0.0, math.log(2)]]).view(1, 1, 2, 2)
    common = {"window_queries": queries, "window": 1, "kernel_size": 1, "softmax_scale": 1.0}
    late = inputs("snapkv", keys, num_candidates=2, **common)
    assert SCORERS["snapkv"](late).scores.flatten().tolist() == pytest.approx([4 / 5, 2 / 3])
    early = inputs("rkv", keys, num_candidates=2, mix_lambda=1.0, **common)
    assert SCORERS["rkv"](early).scores.flatten().tolist() == pytest.approx([2 / 3, 1 / 3])


@pytest.mark.parametrize(("fusion", "expected"), [("sum", [1.0, 1.0]), ("max", [0.75, 0.75])])
def test_morphkv_sums_logits_of_the_group_and_joins_queries(
    fusion: str, expected: list[float]
) -> None:
    """Two queries that like opposite tokens three to one; each logit comes half from each query head."""
    keys = one_head([1.0, 0.0], [0.0, 1.0], [9.0, 9.0], [9.0, 9.0])
    half = math.log(3) / 2
    queries = torch.tensor([[half, 0.0], [half, 0.0], [0.0, half], [0.0, half]]).view(1, 2, 2, 2)
    given = inputs(
        "morphkv", keys, num_candidates=2, window_queries=queries, window=2,
        fusion=Fusion(fusion), softmax_scale=1.0,
    )  # fmt: skip
    assert SCORERS["morphkv"](given).scores.flatten().tolist() == pytest.approx(expected)


def test_where_no_keys_are_alike_rkv_forgives_token_0_as_its_authors_code_does() -> None:
    """Cosines of all pairs are 0.4; every row forgives column 0: means 0 against (n - 2) 0.4 / n."""
    cosines = torch.full((5, 5), 0.4).fill_diagonal_(1.0)
    keys = torch.linalg.cholesky(cosines).view(1, 5, 1, 5)
    alike = redundancy(keys, 0.5).flatten()
    # Row 0 forgives its own diagonal, which is 0 already.
    expected = softmax([0.0, *[4 * 0.4 / 5 - 0.0] * 4])
    assert alike.tolist() == pytest.approx(expected, abs=1e-6)


def test_of_equal_keys_rkv_forgives_the_last() -> None:
    """Three equal keys and one at right angles: columns 0, 1 keep two of them, column 2 none; by hand."""
    keys = one_head([1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0])
    # Row 0 and 1 forgive column 2, row 2 column 1, row 3 column 0 (0 already).
    expected = softmax([2 / 4, 1 / 4, 0.0, 0.0])
    assert redundancy(keys, 0.5).flatten().tolist() == pytest.approx(expected, abs=1e-6)


def test_the_table_of_cosines_may_be_made_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = torch.randn(2, 19, 2, 3, generator=torch.Generator().manual_seed(0))
    whole = redundancy(keys, 0.5)
    monkeypatch.setattr(observation, "_ROWS_AT_A_TIME", 5)
    torch.testing.assert_close(redundancy(keys, 0.5), whole)


def test_zipage_compares_keys_of_one_page_only() -> None:
    """Equal keys in two pages are not alike; of three in one page each column forgives the newest."""
    apart = one_head([1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0])
    assert page_redundancy(apart, 2, 0.5, 0.4).flatten().tolist() == pytest.approx([0.25] * 4)
    keys = one_head([1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0])
    # Columns 0 and 1 forgive row 2, column 2 row 1: rows keep 2, 1, 0.
    expected = softmax([2 / (0.4 * 4), 1 / (0.4 * 4), 0.0, 0.0])
    assert page_redundancy(keys, 4, 0.5, 0.4).flatten().tolist() == pytest.approx(
        expected, abs=1e-6
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", REFERENCES)
def test_zero_keys_and_queries_give_finite_scores(name: str, dtype: torch.dtype) -> None:
    """A zero key in half precision is NaN in R-KV's own code."""
    keys = torch.zeros(1, 8, 1, 4, dtype=dtype)
    keys[0, 3, 0, 0] = 1.0
    queries = torch.zeros(1, 2, 2, 4, dtype=dtype)
    given = inputs(name, keys, num_candidates=6, window_queries=queries, window=2)
    scores = SCORERS[name](given).scores
    assert scores.dtype == torch.float32
    assert scores.isfinite().all()


def test_memory_fades_and_new_tokens_have_none() -> None:
    """G-KV: an old token at 1 fades to 0.8; among equal attentions the maximum is 1."""
    keys = torch.ones(1, 4, 1, 2)
    given = inputs(
        "gkv", keys, num_candidates=3, window_queries=torch.zeros(1, 1, 1, 2), window=1,
        mix_lambda=1.0, memory=torch.tensor([[[2.0, 1.0, 0.0, 0.0]]]),
    )  # fmt: skip
    scored = SCORERS["gkv"](given)
    assert scored.scores.flatten().tolist() == pytest.approx([1.6, 1.0, 1.0])
    assert scored.memory is not None
    assert scored.memory.flatten().tolist() == pytest.approx([1.6, 1.0, 1.0, 0.0])


def test_zipage_pools_before_the_first_compaction_only() -> None:
    keys = one_head([0.0], [5.0], [0.0], [0.0], [0.0], [0.0], [0.0], [0.0])
    common = {"window_queries": torch.ones(1, 1, 1, 1), "window": 1, "mix_lambda": 1.0}
    first = SCORERS["zipage"](inputs("zipage", keys, num_candidates=7, **common))
    assert (first.scores[0, 0, :4] == first.scores[0, 0, 1]).all()
    assert first.memory is not None
    assert first.memory[0, 0, 0] < first.memory[0, 0, 1]
    later = inputs("zipage", keys, num_candidates=7, memory=torch.zeros(1, 1, 8), **common)
    assert int(SCORERS["zipage"](later).scores.argmax()) == 1


def test_the_tokens_of_the_window_are_protected() -> None:
    assert Fixed(scorer="rkv", num_protected_tokens=2).num_kept_newest(16) == 8
    assert Fixed(scorer="rkv", num_protected_tokens=9).num_kept_newest(16) == 9
    with pytest.raises(UsageError, match=r"above 48 .one page of 16 and 32 protected"):
        Fixed(scorer="morphkv", budget_tokens=48).check(16)


def test_windows_and_summaries_begun_anew_are_refused_together() -> None:
    with pytest.raises(UsageError, match=r"swap_summaries=reinit: policy\.scorer=rkv"):
        Fixed(scorer="rkv", swap_summaries=SwapSummaries.reinit)


# ---- the ring ---------------------------------------------------------------------------------------------------


def windows(window: int = 3) -> QueryWindows:
    return QueryWindows(
        num_layers=1, num_slots=2, window=window, num_heads=1, head_dim=1,
        dtype=torch.float32, device=torch.device("cpu"),
    )  # fmt: skip


def store(ring: QueryWindows, slot: int, position: int, value: float) -> None:
    rows = ring.rows(torch.tensor([slot, -1]), torch.tensor([position, 0]))
    ring.store(0, rows, torch.tensor([value, -1.0]).view(2, 1, 1))


def test_the_ring_gives_the_newest_queries_in_order_and_no_other_owners() -> None:
    ring = windows()
    for position in range(10, 15):
        store(ring, 1, position, float(position))
    assert ring.newest(1, 15, 5).flatten().tolist() == [12.0, 13.0, 14.0]
    store(ring, 1, 40, 40.0)  # a new owner after a prompt of 40 tokens
    assert ring.newest(1, 41, 1).flatten().tolist() == [40.0]
    assert (ring.data[:, 0] == 0).all(), "padding wrote into a slot"


def test_a_window_comes_back_from_the_host_bit_for_bit() -> None:
    ring = windows()
    for position in range(4):
        store(ring, 0, position, float(position))
    ring.restore(1, ring.export(0))
    assert torch.equal(ring.newest(0, 4, 3), ring.newest(1, 4, 3))


def test_the_page_of_the_algorithm_has_every_recipe() -> None:
    page = (Path(__file__).parents[2] / "docs" / "algorithm.md").read_text()
    for name, recipe in RECIPES.items():
        values = {key: getattr(value, "value", value) for key, value in asdict(recipe).items()}
        words = ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)
        assert f"| `{name}` | {words or 'none'} |" in page
