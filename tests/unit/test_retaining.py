"""The baselines' capacity rule: what is retained, when, and what is refused."""

import pytest

from growpage.budget.base import Action, Boundary
from growpage.budget.gkv import GKV
from growpage.budget.morphkv import MorphKV
from growpage.budget.retaining import RetainingPolicy
from growpage.budget.rkv import RKV
from growpage.budget.zipage import Zipage
from growpage.errors import UsageError

PAGE = 16


def decisions(policy: RetainingPolicy, most: int) -> list[Action]:
    """At 1..most pages."""
    return [
        policy.decide(
            Boundary(
                request_seed=0, index=0, num_pages=pages, page_size=PAGE, position=pages * PAGE
            )
        )
        for pages in range(1, most + 1)
    ]


def test_zipage_compresses_when_page_n_plus_1_is_full_and_retains_n() -> None:
    policy = Zipage(budget_tokens=3 * PAGE)
    policy.check(PAGE)
    assert decisions(policy, 5) == [Action.GROW] * 3 + [Action.COMPRESS] * 2
    assert policy.max_pages(PAGE) == 4  # the last one empty


def test_a_buffer_grows_on_top_of_the_budget_and_goes_back_at_once() -> None:
    policy = RKV(budget_tokens=8 * PAGE, buffer_tokens=8 * PAGE)
    assert decisions(policy, 17) == [Action.GROW] * 15 + [Action.COMPRESS] * 2
    assert policy.max_pages(PAGE) == policy.warmup_pages(PAGE) == 9


@pytest.mark.parametrize(("policy", "window"), [(RKV, 8), (GKV, 16), (MorphKV, 32), (Zipage, 16)])
def test_each_baseline_has_its_scorer_and_protects_its_window(
    policy: type[RetainingPolicy], window: int
) -> None:
    assert policy().scorer == policy.NAME
    assert policy().num_kept_newest(PAGE) == window


def test_the_paper_s_budget_is_the_last_owner() -> None:
    assert RKV().max_pages(256) == 4096 // 256 + 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"budget_tokens": 40}, "budget_tokens=40: must be a multiple"),
        ({"buffer_tokens": 8}, "buffer_tokens=8: must be a multiple"),
        ({"budget_tokens": 32}, "budget_tokens=32: must be above the 32 protected"),
    ],
)
def test_what_fits_no_pages_or_no_window_is_refused_by_name(
    values: dict[str, int], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        MorphKV(**values).check(PAGE)
