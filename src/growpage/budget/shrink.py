"""GrowPage-Shrink: bidirectional resizing (paper App. H.1, Eq. 13)."""

from dataclasses import dataclass
from typing import ClassVar

from growpage.budget.base import Action, Boundary, DemandPolicy
from growpage.errors import require


@dataclass(slots=True, kw_only=True)
class Shrink(DemandPolicy):
    """Below `shrink_threshold` gives a page back, down to `min_pages`; above 0 grows; between, compresses."""

    NAME: ClassVar[str] = "shrink"

    shrink_threshold: float = -0.005
    min_pages: int = 4  # the paper's 1024 tokens at pages of 256

    def __post_init__(self) -> None:
        DemandPolicy.__post_init__(self)
        require(
            -1.0 <= self.shrink_threshold <= 0.0,
            "policy.shrink_threshold",
            self.shrink_threshold,
            "in -1..0",
        )
        require(self.min_pages >= 2, "policy.min_pages", self.min_pages, ">= 2")

    def check(self, page_size: int) -> None:
        DemandPolicy.check(self, page_size)
        kept = (self.min_pages - 1) * page_size
        require(
            kept > self.num_protected,
            "policy.min_pages",
            self.min_pages,
            f"so large that {kept} retained tokens exceed {self._protected_words()}",
        )

    def _protected_words(self) -> str:
        if self.num_protected == self.num_protected_tokens:
            return f"policy.num_protected_tokens={self.num_protected_tokens}"
        return f"policy.scorer_settings.window={self.scorer_settings.window}"

    def decide(self, boundary: Boundary) -> Action:
        assert boundary.delta is not None
        if boundary.delta > 0.0:
            return Action.GROW
        if boundary.delta < self.shrink_threshold and boundary.num_pages > self.min_pages:
            return Action.SHRINK
        return Action.COMPRESS
