"""Random problems: the same seed and index give the same problem on every machine.

Only `Random.random` is used, whose stream Python keeps stable between versions.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

from growpage.bench.sequences.plan import (
    KINDS,
    MIXED,
    Facts,
    Ledger,
    Lookup,
    Phase,
    Plan,
    Walk,
)
from growpage.bench.sequences.vocabulary import MAX_PHASES, MAX_ROWS, MODULUS
from growpage.errors import require, unknown

VERSION = 1  # raise it when the same seed no longer gives the same problems
ALL_KINDS = (*KINDS, MIXED)

MAX_STEPS_LIMIT = 120
MAX_FACTS_LIMIT = 96
ROOM_TOKENS = 1440  # longest phases of a problem together, prompt lines included
MIN_STEPS = 8

_NOTE_SHARE = 1.04  # a note after every tenth step

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difficulty:
    """What may be asked. The defaults are what the bundled model was trained on."""

    kinds: tuple[str, ...] = ALL_KINDS
    max_items: int = MAX_ROWS  # rows of a table; facts stop at 96, a ledger at max_steps + 2 anyway
    max_steps: int = MAX_STEPS_LIMIT  # of one phase
    max_phases: int = MAX_PHASES

    def __post_init__(self) -> None:
        require(
            len(self.kinds) > 0, "bench.kinds", list(self.kinds), "a list with at least one kind"
        )
        for kind in self.kinds:
            if kind not in ALL_KINDS:
                raise unknown("bench.kinds", kind, ALL_KINDS)
        require(
            4 <= self.max_items <= MAX_ROWS, "bench.max_items", self.max_items, f"in 4..{MAX_ROWS}"
        )
        require(
            2 * MIN_STEPS <= self.max_steps <= MAX_STEPS_LIMIT,
            "bench.max_steps", self.max_steps, f"in {2 * MIN_STEPS}..{MAX_STEPS_LIMIT}",
        )  # fmt: skip
        require(
            1 <= self.max_phases <= MAX_PHASES,
            "bench.max_phases", self.max_phases, f"in 1..{MAX_PHASES}",
        )  # fmt: skip
        require(
            MIXED not in self.kinds or self.max_phases >= 2,
            "bench.max_phases", self.max_phases, f"at least 2 with {MIXED} in bench.kinds",
        )  # fmt: skip


def make_plan(name: str, index: int, difficulty: Difficulty) -> Plan:
    """Problem `index` of the stream `name`. The kinds take turns."""
    dice = _Dice(f"{name}/{index}")
    kind = difficulty.kinds[index % len(difficulty.kinds)]
    start = dice.below(MODULUS)
    if kind != MIXED:
        make = _MAKERS[kind]
        return Plan(start=start, phases=(make(dice, difficulty, ROOM_TOKENS, 2 * MIN_STEPS),))
    kinds = _mixed_kinds(dice, 2 + dice.below(difficulty.max_phases - 1))
    room = ROOM_TOKENS // len(kinds)
    phases = tuple(_MAKERS[kind](dice, difficulty, room, MIN_STEPS) for kind in kinds)
    return Plan(start=start, phases=phases)


class _Dice:
    """Draws from one seeded stream."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed).random

    def below(self, bound: int) -> int:
        return int(self._random() * bound)

    def log_uniform(self, low: int, high: int) -> int:
        """An integer in low..high; sizes of the same ratio are equally likely."""
        if high <= low:
            return high
        return int(math.exp(math.log(low) + self._random() * math.log((high + 1) / low)))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        result = list(items)
        for last in range(len(result) - 1, 0, -1):
            other = self.below(last + 1)
            result[last], result[other] = result[other], result[last]
        return result


def _mixed_kinds(dice: _Dice, num_phases: int) -> list[str]:
    """Kinds of the phases: at least one demanding one, at most one with items and one with a table."""
    kinds = [("ledger", "facts")[dice.below(2)], "lookup", "walk", "walk"]
    demanding = dice.shuffled(kinds[:2])
    rest = dice.shuffled([demanding[1], "walk", "walk"])
    return dice.shuffled([demanding[0], *rest[: num_phases - 1]])


def _steps(dice: _Dice, difficulty: Difficulty, low: int, room: int, step_tokens: int) -> int:
    fitting = int(room / (step_tokens * _NOTE_SHARE))
    high = min(difficulty.max_steps, fitting)
    return dice.log_uniform(min(low, high), high)


def _make_walk(dice: _Dice, difficulty: Difficulty, room: int, low: int) -> Phase:
    return Walk(num_steps=_steps(dice, difficulty, low, room, 7), addend=dice.below(MODULUS))


def _make_ledger(dice: _Dice, difficulty: Difficulty, room: int, low: int) -> Phase:
    high = min(room, 11 * (difficulty.max_items - 2))
    return Ledger(num_steps=_steps(dice, difficulty, low, high, 10), second=dice.below(MODULUS))


def _make_facts(dice: _Dice, difficulty: Difficulty, room: int, low: int) -> Phase:
    # 8 tokens a fact in prompt and digest, 9 a step; half of the facts at least are read again.
    largest = min(difficulty.max_items, MAX_FACTS_LIMIT, room // 14)
    num_facts = dice.log_uniform(2, largest)
    room -= int(num_facts * 8 * _NOTE_SHARE)
    num_steps = _steps(dice, difficulty, max(low, num_facts), room, 9)
    values = tuple(dice.below(MODULUS) for _ in range(num_facts))
    return Facts(num_steps=num_steps, values=values)


def _make_lookup(dice: _Dice, difficulty: Difficulty, room: int, low: int) -> Phase:
    largest = min(difficulty.max_items, room // 10)
    num_rows = dice.log_uniform(4, largest)
    num_steps = _steps(dice, difficulty, max(low, num_rows // 2), room - 4 * num_rows, 9)
    cycle = dice.shuffled(range(MAX_ROWS))[:num_rows]
    rows = [
        (name, cycle[(place + 1) % num_rows], dice.below(MODULUS))
        for place, name in enumerate(cycle)
    ]
    return Lookup(num_steps=num_steps, first=cycle[0], rows=tuple(dice.shuffled(rows)))


_MAKERS: dict[str, Callable[[_Dice, Difficulty, int, int], Phase]] = {
    "walk": _make_walk,
    "ledger": _make_ledger,
    "facts": _make_facts,
    "lookup": _make_lookup,
}
