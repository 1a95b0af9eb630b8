"""What a problem asks: a start value and one to three phases. Text to plan and back, and the answer.

    start 15
    1. ledger (27) add 7
    2. lookup (58) from river
    table
    river >lamp 14
    ...

One value is carried from phase to phase; all sums are modulo 53. `(n)` is the number of steps.

    walk      add the same number at every step.
    ledger    items #0 (the value so far) and #1 (the number given) stand at the start. Every step adds the
              newest item to an old one and writes the sum as a new item. The old items are taken in sweeps:
              from #0 to the newest item there was when the sweep began, then again from #0.
    facts     a list a0 a1 ... is written down once as running sums #0 #1 ... (each fact plus the value before);
              then the steps add #0, #1, ... to the value, again and again in this order.
    lookup    every step finds the current row, adds its number to the value and goes where the row points.
"""

from collections.abc import Callable
from dataclasses import dataclass

from growpage.bench.sequences.vocabulary import (
    COUNTS,
    FACTS,
    MAX_FACTS,
    MAX_ITEMS,
    MAX_PHASES,
    MODULUS,
    NAMES,
    NEWLINE,
    ORDINALS,
    POINTERS,
    SWEEPS,
    VALUES,
    split_words,
)
from growpage.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """Local state only: nothing but the step before is needed."""

    num_steps: int
    addend: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """A ledger that grows by an item a step, all of which are needed again."""

    num_steps: int
    second: int  # the value of item #1


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A list that is written down first and then read in order, again and again."""

    num_steps: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A table in the prompt, read in the order of its pointers: one cycle through all rows."""

    num_steps: int
    first: int  # the name of the first row
    rows: tuple[
        tuple[int, int, int], ...
    ]  # name, name it points to, number; in the order of the prompt


Phase = Walk | Ledger | Facts | Lookup
KINDS: dict[str, type[Phase]] = {"walk": Walk, "ledger": Ledger, "facts": Facts, "lookup": Lookup}
MIXED = "phases"  # the kind of a problem with more than one phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A whole problem. At most one phase has ledger items (ledger or facts), at most one has a table."""

    start: int
    phases: tuple[Phase, ...]

    @property
    def kind(self) -> str:
        return MIXED if len(self.phases) > 1 else name_of(self.phases[0])

    @property
    def num_live_items(self) -> int:
        """Items that the most demanding phase must keep; 0 when the last step is enough."""
        return max(count_live_items(phase) for phase in self.phases)


def name_of(phase: Phase) -> str:
    return type(phase).__name__.lower()


def count_live_items(phase: Phase) -> int:
    match phase:
        case Walk():
            return 0
        case Ledger():
            return phase.num_steps + 2
        case Facts():
            return len(phase.values)
        case Lookup():
            return min(len(phase.rows), phase.num_steps)


def describe(index: int, phase: Phase) -> list[str]:
    """The words of one line of the plan, without its newline."""
    words = [ORDINALS[index], name_of(phase), COUNTS[phase.num_steps]]
    match phase:
        case Walk():
            return [*words, "add", VALUES[phase.addend]]
        case Ledger():
            return [*words, "add", VALUES[phase.second]]
        case Facts():
            return [*words, "sum", SWEEPS[len(phase.values) - 1]]
        case Lookup():
            return [*words, "from", NAMES[phase.first]]


def question_lines(plan: Plan) -> list[list[str]]:
    """The words of the problem, line by line, newlines left out."""
    lines = [["start", VALUES[plan.start]]]
    lines += [describe(index, phase) for index, phase in enumerate(plan.phases)]
    for phase in plan.phases:
        if isinstance(phase, Facts):
            pairs = zip(FACTS, (VALUES[value] for value in phase.values), strict=False)
            lines += [["list"], [word for pair in pairs for word in pair]]
        if isinstance(phase, Lookup):
            lines += [["table"]]
            lines += [[NAMES[key], POINTERS[to], VALUES[number]] for key, to, number in phase.rows]
    return lines


def question_text(plan: Plan) -> str:
    return f" {NEWLINE} ".join(" ".join(line) for line in question_lines(plan))


def solve(plan: Plan) -> int:
    """The answer, by plain arithmetic; the reference for transcripts and graders."""
    value = plan.start
    for phase in plan.phases:
        value = _SOLVERS[type(phase)](phase, value)
    return value


def _solve_walk(phase: Walk, value: int) -> int:
    return (value + phase.num_steps * phase.addend) % MODULUS


def _solve_ledger(phase: Ledger, value: int) -> int:
    items = [value, phase.second]
    sweep = list(items)
    for _ in range(phase.num_steps):
        if not sweep:
            sweep = list(items)
        items.append((sweep.pop(0) + items[-1]) % MODULUS)
    return items[-1]


def _solve_facts(phase: Facts, value: int) -> int:
    sums = []
    for fact in phase.values:
        value = (value + fact) % MODULUS
        sums.append(value)
    for step in range(phase.num_steps):
        value += sums[step % len(sums)]
    return value % MODULUS


def _solve_lookup(phase: Lookup, value: int) -> int:
    table = {key: (to, number) for key, to, number in phase.rows}
    key = phase.first
    for _ in range(phase.num_steps):
        key, number = table[key]
        value += number
    return value % MODULUS


_SOLVERS: dict[type[Phase], Callable[..., int]] = {
    Walk: _solve_walk,
    Ledger: _solve_ledger,
    Facts: _solve_facts,
    Lookup: _solve_lookup,
}


def parse(question: str) -> Plan:
    """The plan behind a question. Raises `UsageError` naming the line that is not understood."""
    lines = [line.split() for line in " ".join(split_words(question)).split(NEWLINE)]
    reader = _Lines([line for line in lines if line])
    start = reader.take("start")
    heads = reader.take_while(ORDINALS[:MAX_PHASES])
    if not heads:
        raise UsageError(
            "question: has no phase. A line such as '1. walk (20) add 7' must follow 'start'."
        )
    phases = tuple(_parse_phase(head, reader) for head in heads)
    reader.expect_end()
    return Plan(start=reader.number(start, 1, VALUES), phases=phases)


class _Lines:
    """The lines of a question, taken one by one; every error names the line."""

    def __init__(self, lines: list[list[str]]) -> None:
        self._lines = lines
        self._next = 0

    def take(self, first: str | None = None) -> list[str]:
        if self._next == len(self._lines):
            raise UsageError(f"question: ends where {first or 'a line'!r} is expected.")
        line = self._lines[self._next]
        if first is not None and line[0] != first:
            raise self.error(line, f"expected a line that begins with {first!r}")
        self._next += 1
        return line

    def take_while(self, firsts: tuple[str, ...]) -> list[list[str]]:
        found = []
        while self._next < len(self._lines) and self._lines[self._next][0] in firsts:
            found.append(self.take())
        return found

    def expect_end(self) -> None:
        if self._next < len(self._lines):
            raise self.error(self._lines[self._next], "the problem is complete before this line")

    def number(self, line: list[str], position: int, words: tuple[str, ...]) -> int:
        if position >= len(line) or line[position] not in words:
            raise self.error(line, f"word {position + 1} must be one of {words[0]}..{words[-1]}")
        return words.index(line[position])

    @staticmethod
    def error(line: list[str], why: str) -> UsageError:
        return UsageError(f"question line {' '.join(line)!r}: {why}.")


def _parse_phase(head: list[str], reader: _Lines) -> Phase:
    kind = head[1] if len(head) == 5 else ""
    num_steps = reader.number(head, 2, COUNTS)
    if num_steps == 0:
        raise reader.error(head, "a phase has at least one step")
    if kind == "walk":
        return Walk(num_steps=num_steps, addend=reader.number(head, 4, VALUES))
    if kind == "ledger":
        if num_steps + 2 > MAX_ITEMS:
            raise reader.error(head, f"a ledger has at most {MAX_ITEMS - 2} steps")
        return Ledger(num_steps=num_steps, second=reader.number(head, 4, VALUES))
    if kind == "facts":
        return _parse_facts(num_steps, reader.number(head, 4, SWEEPS) + 1, reader)
    if kind == "lookup":
        return _parse_lookup(num_steps, reader.number(head, 4, NAMES), reader)
    raise reader.error(head, f"expected one of {', '.join(KINDS)} with its number of steps")


def _parse_facts(num_steps: int, num_facts: int, reader: _Lines) -> Facts:
    reader.take("list")
    line = reader.take(FACTS[0])
    if num_facts > MAX_FACTS or line[::2] != list(FACTS[:num_facts]):
        raise reader.error(line, f"the list must name a0 to a{num_facts - 1}")
    values = tuple(reader.number(line, 2 * index + 1, VALUES) for index in range(num_facts))
    return Facts(num_steps=num_steps, values=values)


def _parse_lookup(num_steps: int, first: int, reader: _Lines) -> Lookup:
    reader.take("table")
    rows = tuple(
        (NAMES.index(line[0]), reader.number(line, 1, POINTERS), reader.number(line, 2, VALUES))
        for line in reader.take_while(NAMES)
    )
    keys = {key for key, _, _ in rows}
    if first not in keys or any(to not in keys for _, to, _ in rows) or len(keys) != len(rows):
        raise UsageError("question table: every row that is pointed to must stand there once.")
    return Lookup(num_steps=num_steps, first=first, rows=rows)
