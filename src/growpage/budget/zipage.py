"""Zipage: N pages are retained, and one more fills up (arXiv 2603.08743)."""

from dataclasses import dataclass
from typing import ClassVar

from growpage.budget.retaining import RetainingPolicy


@dataclass(slots=True, kw_only=True)
class Zipage(RetainingPolicy):
    """Its N pages are `budget_tokens` / b; the authors compact at each page too."""

    NAME: ClassVar[str] = "zipage"

    scorer: str = "zipage"
