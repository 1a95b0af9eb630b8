"""The worked solution of a problem, token by token, and how long each token may still be needed.

Every step restates what the next one needs: the steps left, the value, the place in the sweep. The plan of the
phases to come is restated in notes, at the start of a phase and after every tenth step.
"""

from collections.abc import Iterable

from growpage.bench.sequences.plan import (
    Facts,
    Ledger,
    Lookup,
    Plan,
    Walk,
    describe,
    question_lines,
)
from growpage.bench.sequences.vocabulary import (
    BOS,
    COUNTS,
    END_THINK,
    EOS,
    FACTS,
    ITEMS,
    MODULUS,
    NAMES,
    NEWLINE,
    POINTERS,
    SWEEPS,
    THINK,
    TOKEN_ID,
    VALUES,
)

NOTE_EVERY = 10  # steps


class Transcript:
    """Prompt and solution of one plan.

    ids: all tokens, from <bos> to <eos>; num_prompt_tokens: how many of them are the prompt.
    last_read: for each token the position of the last token that may still need it; the position of a token
    whose content a later line has restated ends there. <bos> is needed for ever.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.ids: list[int] = []
        self.last_read: list[int] = []
        self._value = plan.start
        self._state: range  # where the value, and what else the next step needs, was written last
        self._outlook: list[range]  # where the phases to come were written last
        self._rows: dict[int, range] = {}  # where each row of the table stands
        self._facts = range(0)  # where the list stands
        self._write_prompt()
        self.num_prompt_tokens = len(self.ids)
        self._write_solution()

    @property
    def answer(self) -> int:
        return self._value

    def _line(self, words: Iterable[str], reads: Iterable[range] = ()) -> range:
        """Write one line; it reads the positions in `reads` and itself. Returns its positions."""
        begin = len(self.ids)
        self.ids += [TOKEN_ID[word] for word in words]
        self.ids.append(TOKEN_ID[NEWLINE])
        end = len(self.ids)
        self.last_read += [end - 1] * (end - begin)
        for positions in reads:
            self._keep(positions)
        return range(begin, end)

    def _keep(self, positions: range) -> None:
        """These positions may be read up to the newest token."""
        for position in positions:
            self.last_read[position] = len(self.ids) - 1

    def _write_prompt(self) -> None:
        self.ids.append(TOKEN_ID[BOS])
        self.last_read.append(0)
        lines = [self._line(words) for words in question_lines(self.plan)]
        num_phases = len(self.plan.phases)
        self._state, self._outlook = lines[0], lines[1 : 1 + num_phases]
        rest = iter(lines[1 + num_phases :])
        for phase in self.plan.phases:
            if isinstance(phase, Facts):
                next(rest)  # the word "list"
                self._facts = next(rest)
            if isinstance(phase, Lookup):
                next(rest)  # the word "table"
                self._rows = {key: next(rest) for key, _, _ in phase.rows}
        self._line([THINK])

    def _write_solution(self) -> None:
        for index, phase in enumerate(self.plan.phases):
            # The prompt must survive until its phase; what is read in it is extended there.
            head = self._line(["phase", *describe(index, phase)], [*self._outlook, self._state])
            self._note(index, head)
            match phase:
                case Walk():
                    self._write_walk(phase, index, head)
                case Ledger():
                    self._write_ledger(phase, index, head)
                case Facts():
                    self._write_facts(phase, index, head)
                case Lookup():
                    self._write_lookup(phase, index, head)
            self._state = self._line(["end", VALUES[self._value]], [self._state, *self._outlook])
        self._line([END_THINK], [self._state, *self._outlook])
        begin = len(self.ids)
        self.ids += [TOKEN_ID[word] for word in ("answer", VALUES[self._value], EOS)]
        self.last_read += [len(self.ids) - 1] * (len(self.ids) - begin)
        self._keep(self._state)
        self.last_read[0] = len(self.ids)

    def _note(self, index: int, *reads: range) -> None:
        words = ["note"]
        for later in range(index + 1, len(self.plan.phases)):
            words += describe(later, self.plan.phases[later])
        self._outlook = [self._line([*words, "answer"], [*self._outlook, *reads])]

    def _step(self, index: int, count: int, words: Iterable[str], reads: Iterable[range]) -> range:
        """One numbered step; it reads the step before, and a note follows every tenth."""
        line = self._line([COUNTS[count], *words], [self._state, *reads])
        self._state = line
        if count % NOTE_EVERY == 0:
            self._note(index, line)
        return line

    def _write_walk(self, phase: Walk, index: int, head: range) -> None:
        for count in range(phase.num_steps, 0, -1):
            total = (self._value + phase.addend) % MODULUS
            words = [VALUES[self._value], "+", VALUES[phase.addend], "=", VALUES[total]]
            self._step(index, count, words, [head] if count == phase.num_steps else [])
            self._value = total

    def _write_ledger(self, phase: Ledger, index: int, head: range) -> None:
        first = self._line([ITEMS[0], VALUES[self._value]], [self._state, head])
        second = self._line([ITEMS[1], VALUES[phase.second]], [first, head])
        self._state = second
        values, places = [self._value, phase.second], [first, second]
        last, cursor = 1, 0
        for count in range(phase.num_steps, 0, -1):
            total = (values[cursor] + values[-1]) % MODULUS
            new = len(values)
            words = [
                SWEEPS[last], ITEMS[cursor], VALUES[values[cursor]], "+", VALUES[values[-1]],
                "=", ITEMS[new], VALUES[total],
            ]  # fmt: skip
            line = self._step(
                index, count, words, [places[cursor], *([head] if count == phase.num_steps else [])]
            )
            places[cursor] = range(line[2], line[4])  # restated here, so the older copy is done
            values.append(total)
            places.append(range(line[7], line[9]))
            cursor, last = (cursor + 1, last) if cursor < last else (0, new)
        self._value = values[-1]
        for place in places:
            self._keep(place)

    def _write_facts(self, phase: Facts, index: int, head: range) -> None:
        last = SWEEPS[len(phase.values) - 1]
        sums, places = [], []
        for fact, raw in enumerate(phase.values):
            self._value = (self._value + raw) % MODULUS
            words = [last, FACTS[fact], VALUES[raw], ITEMS[fact], VALUES[self._value]]
            source = self._facts[2 * fact : 2 * fact + 2]
            self._state = self._line(words, [self._state, source, *([] if fact else [head])])
            sums.append(self._value)
            places.append(range(self._state[3], self._state[5]))
            if fact % NOTE_EVERY == NOTE_EVERY - 1:
                self._note(index, self._state)
        for step in range(phase.num_steps):
            item = step % len(sums)
            total = (self._value + sums[item]) % MODULUS
            words = [
                last,
                ITEMS[item],
                VALUES[sums[item]],
                "+",
                VALUES[self._value],
                "=",
                VALUES[total],
            ]
            reads = [places[item], *([] if step else [head])]
            line = self._step(index, phase.num_steps - step, words, reads)
            places[item] = range(line[2], line[4])
            self._value = total
        for place in places:
            self._keep(place)

    def _write_lookup(self, phase: Lookup, index: int, head: range) -> None:
        table = {key: (to, number) for key, to, number in phase.rows}
        key = phase.first
        for count in range(phase.num_steps, 0, -1):
            to, number = table[key]
            total = (self._value + number) % MODULUS
            words = [
                NAMES[key], POINTERS[to], VALUES[number], "+", VALUES[self._value], "=", VALUES[total]
            ]  # fmt: skip
            reads = [self._rows[key], *([head] if count == phase.num_steps else [])]
            self._step(index, count, words, reads)
            self._value, key = total, to
        for row, _, _ in phase.rows:
            if row not in _visited(phase):
                self._keep(self._rows[row])


def _visited(phase: Lookup) -> set[int]:
    """Names of the rows that the phase reads."""
    table = {key: to for key, to, _ in phase.rows}
    seen: set[int] = set()
    key = phase.first
    while key not in seen and len(seen) < phase.num_steps:
        seen.add(key)
        key = table[key]
    return seen
