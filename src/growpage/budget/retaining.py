"""The rule of the baselines: keep `budget_tokens` at a compaction, then let `buffer_tokens` more come."""

from dataclasses import dataclass

from growpage.budget.base import PAPER_BUDGET_TOKENS, Action, Boundary, EvictingPolicy
from growpage.errors import require


@dataclass(slots=True, kw_only=True)
class RetainingPolicy(EvictingPolicy):
    """`budget_tokens` is what a compaction *retains*, the protected tokens included; the peak has the buffer on top.

    The authors' code compacts every so many decode steps, ours at the boundary that ends the buffer: only whole pages
    can be given back. While the buffer fills, a request without a free page compacts early.
    """

    budget_tokens: int | None = None
    buffer_tokens: int | None = None  # whole pages; None: one page
    num_protected_tokens: int = 0  # besides the scorer's window
    preempt_compressed: bool = True  # False: as in Zipage, who was compacted is never preempted

    def __post_init__(self) -> None:
        EvictingPolicy.__post_init__(self)
        for name in ("budget_tokens", "buffer_tokens"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"policy.{name}", value, ">= 1")

    def check(self, page_size: int) -> None:
        EvictingPolicy.check(self, page_size)
        for name, value in (
            ("budget_tokens", self._budget()),
            ("buffer_tokens", self._buffer(page_size)),
        ):
            words = f"a multiple of the page size {page_size}"
            require(value % page_size == 0, f"policy.{name}", value, words)
        least = self.num_kept_newest(page_size)
        require(
            self._budget() > least,
            "policy.budget_tokens",
            self._budget(),
            f"above the {least} protected tokens",
        )

    def warmup_pages(self, page_size: int) -> int | None:
        return self.max_pages(page_size)

    def max_pages(self, page_size: int) -> int:
        """The budget and an empty page."""
        return self._budget() // page_size + 1

    def decide(self, boundary: Boundary) -> Action:
        peak = self._budget() + self._buffer(boundary.page_size)
        is_full = boundary.num_pages * boundary.page_size >= peak
        return Action.COMPRESS if is_full else Action.GROW

    def _budget(self) -> int:
        return PAPER_BUDGET_TOKENS if self.budget_tokens is None else self.budget_tokens

    def _buffer(self, page_size: int) -> int:
        return page_size if self.buffer_tokens is None else self.buffer_tokens
