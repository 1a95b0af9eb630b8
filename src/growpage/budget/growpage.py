"""GrowPage: grow when recent demand is broader than the long-term one, else Compress & Hold (paper §3.3)."""

from dataclasses import dataclass
from typing import ClassVar

from growpage.budget.base import Action, Boundary, DemandPolicy
from growpage.errors import require


@dataclass(slots=True, kw_only=True)
class GrowPage(DemandPolicy):
    NAME: ClassVar[str] = "growpage"

    tau: float = 0.0

    def __post_init__(self) -> None:
        DemandPolicy.__post_init__(self)
        require(
            -1.0 <= self.tau <= 1.0, "policy.tau", self.tau, "in -1..1 (a difference of two ratios)"
        )

    def decide(self, boundary: Boundary) -> Action:
        assert boundary.delta is not None
        return Action.GROW if boundary.delta > self.tau else Action.COMPRESS
