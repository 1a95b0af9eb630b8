"""Full KV: always grows, never evicts. `elastic-reserve` is the same capacity on the elastic page pool."""

from dataclasses import dataclass
from typing import ClassVar

from growpage.budget.base import Action, Boundary, CapacityPolicy


@dataclass(slots=True, kw_only=True)
class FullKV(CapacityPolicy):
    """Every token stays; under memory pressure requests are preempted."""

    NAME: ClassVar[str] = "fullkv"

    def decide(self, boundary: Boundary) -> Action:
        return Action.GROW


@dataclass(slots=True, kw_only=True)
class ElasticReserve(FullKV):
    """Full KV whose pool borrows the idle prefill-activation reserve while decoding."""

    NAME: ClassVar[str] = "elastic-reserve"
