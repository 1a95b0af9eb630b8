"""Coverage (ours): grow when the coming compaction would lose too much attention mass.

Theorem 3.1 read as a decision rule: the worst-case output error of a retained set is 2 V_max (1 - its mass).
"""

from dataclasses import dataclass
from typing import ClassVar

from growpage.budget.base import Action, Boundary, EvictingPolicy, Signal
from growpage.errors import require


@dataclass(slots=True, kw_only=True)
class Coverage(EvictingPolicy):
    NAME: ClassVar[str] = "coverage"
    SIGNALS: ClassVar[frozenset[Signal]] = frozenset({Signal.LOST_MASS})

    epsilon: float = 0.001

    def __post_init__(self) -> None:
        EvictingPolicy.__post_init__(self)
        require(
            0.0 <= self.epsilon <= 1.0,
            "policy.epsilon",
            self.epsilon,
            "in 0..1 (a share of attention)",
        )

    def decide(self, boundary: Boundary) -> Action:
        assert boundary.lost_mass is not None
        return Action.GROW if boundary.lost_mass > self.epsilon else Action.COMPRESS
