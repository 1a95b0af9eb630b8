"""Token scorers against plain references and cases checked by hand."""

import pytest
import torch

from growpage.budget.base import GroupReduce
from growpage.budget.fixed import Fixed
from growpage.budget.scorer_settings import RECIPES, ScorerSettings, resolved
from growpage.budget.scorers.base import ScoringInput
from growpage.budget.scorers.registry import SCORERS
from growpage.budget.selection import select_tokens
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
