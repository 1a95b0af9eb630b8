"""GrowPage-Fixed: grows to a budget, then compresses for ever (paper App. H.1)."""

from dataclasses import dataclass
from typing import ClassVar

from growpage.budget.base import PAPER_BUDGET_TOKENS, Action, Boundary, EvictingPolicy
from growpage.errors import require


@dataclass(slots=True, kw_only=True)
class Fixed(EvictingPolicy):
    """`budget_tokens` is the *peak*: P*b. After a compaction (P-1)*b tokens are retained."""

    NAME: ClassVar[str] = "fixed"

    budget_tokens: int | None = None

    def __post_init__(self) -> None:
        EvictingPolicy.__post_init__(self)
        require(
            self.budget_tokens is None or self.budget_tokens >= 1,
            "policy.budget_tokens",
            self.budget_tokens,
            ">= 1",
        )

    def check(self, page_size: int) -> None:
        EvictingPolicy.check(self, page_size)
        budget = self._budget()
        require(
            budget % page_size == 0,
            "policy.budget_tokens",
            budget,
            f"a multiple of the page size {page_size}",
        )
        least = page_size + self.num_kept_newest(page_size)
        require(
            budget > least,
            "policy.budget_tokens",
            budget,
            f"above {least} (one page of {page_size} and {least - page_size} protected tokens)",
        )

    def warmup_pages(self, page_size: int) -> int | None:
        return self._budget() // page_size

    def max_pages(self, page_size: int) -> int | None:
        return self._budget() // page_size

    def decide(self, boundary: Boundary) -> Action:
        return Action.COMPRESS

    def _budget(self) -> int:
        return PAPER_BUDGET_TOKENS if self.budget_tokens is None else self.budget_tokens
