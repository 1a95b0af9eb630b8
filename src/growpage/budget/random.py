"""GrowPage-Random: the frequency-matched control without the demand signal (paper App. H.1)."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

from growpage.budget.base import Action, Boundary, DemandPolicy, Signal
from growpage.errors import require


@dataclass(slots=True, kw_only=True)
class Random(DemandPolicy):
    """Compresses with a fixed probability; draws are keyed by request seed and boundary.

    `evaluate_demand` also measures Δ and discards it, for timing on weights whose Δ means nothing.
    """

    NAME: ClassVar[str] = "random"
    SIGNALS: ClassVar[frozenset[Signal]] = frozenset()

    compress_probability: float = 0.7
    evaluate_demand: bool = False

    def __post_init__(self) -> None:
        DemandPolicy.__post_init__(self)
        require(
            0.0 <= self.compress_probability <= 1.0,
            "policy.compress_probability",
            self.compress_probability,
            "in 0..1",
        )

    def signals(self) -> frozenset[Signal]:
        return frozenset({Signal.DELTA}) if self.evaluate_demand else frozenset()

    def decide(self, boundary: Boundary) -> Action:
        draw = _uniform(boundary.request_seed, boundary.index)
        return Action.COMPRESS if draw < self.compress_probability else Action.GROW


def _uniform(seed: int, index: int) -> float:
    """A number in [0, 1), the same for the same arguments on every machine."""
    digest = blake2b(f"{seed}:{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64
