"""MorphKV: retains a budget, of which the newest window votes (arXiv 2503.00979)."""

from dataclasses import dataclass
from typing import ClassVar

from growpage.budget.retaining import RetainingPolicy


@dataclass(slots=True, kw_only=True)
class MorphKV(RetainingPolicy):
    """The authors evict one token each step, ours a page at once: C is `budget_tokens`, W the window."""

    NAME: ClassVar[str] = "morphkv"

    scorer: str = "morphkv"
