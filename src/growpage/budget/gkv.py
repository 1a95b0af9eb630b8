"""G-KV: retains a budget each time its buffer is full (arXiv 2512.00504)."""

from dataclasses import dataclass
from typing import ClassVar

from growpage.budget.retaining import RetainingPolicy


@dataclass(slots=True, kw_only=True)
class GKV(RetainingPolicy):
    """The buffer of the authors is 128 tokens (their divide_length); ours is a page unless it is set."""

    NAME: ClassVar[str] = "gkv"

    scorer: str = "gkv"
