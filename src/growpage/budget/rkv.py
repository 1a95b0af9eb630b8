"""R-KV: retains a budget each time its buffer is full (arXiv 2505.24133)."""

from dataclasses import dataclass
from typing import ClassVar

from growpage.budget.retaining import RetainingPolicy


@dataclass(slots=True, kw_only=True)
class RKV(RetainingPolicy):
    """The buffer of the authors is 128 tokens, and a larger one was better; ours is a page unless it is set."""

    NAME: ClassVar[str] = "rkv"

    scorer: str = "rkv"
