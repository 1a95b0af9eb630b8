"""GrowPage-Inverse: the demand signal read the wrong way round, a control (paper App. H.1)."""

from dataclasses import dataclass
from typing import ClassVar

from growpage.budget.base import Action, Boundary, DemandPolicy


@dataclass(slots=True, kw_only=True)
class Inverse(DemandPolicy):
    NAME: ClassVar[str] = "inverse"

    def decide(self, boundary: Boundary) -> Action:
        assert boundary.delta is not None
        return Action.GROW if boundary.delta <= 0.0 else Action.COMPRESS
