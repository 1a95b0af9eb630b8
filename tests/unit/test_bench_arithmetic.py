"""Generated word problems: the same for a seed, different between seeds, with true answers."""

import re
from types import SimpleNamespace

import pytest

from growpage.bench.arithmetic import TEMPLATES, Arithmetic, arithmetic_problem
from growpage.bench.base import ProblemSet
from growpage.errors import UsageError


def arithmetic(seed: int = 0, count: int | None = None) -> ProblemSet:
    spec = SimpleNamespace(
        name="arithmetic",
        seed=seed,
        num_problems_expected=count,
        prompt_role="user",
        instruction="",
    )
    return Arithmetic(spec).load()  # type: ignore[arg-type]


def test_seed_zero_is_the_set_it_always_was() -> None:
    first = arithmetic().problems[0]
    assert first.question == (
        "Liam has 32 stamps and gives 17 of them to Elif. How many stamps does Liam have left?"
    )
    assert first.answer == "15"
    assert first.id == "arithmetic/0/0000"


def test_set_has_48_different_questions_of_mixed_difficulty() -> None:
    problems = arithmetic().problems
    assert len({problem.question for problem in problems}) == 48
    assert {problem.kind for problem in problems[:3]} == {"easy", "medium", "hard"}


def test_seeds_ask_different_questions() -> None:
    assert arithmetic(0).sha256 == arithmetic(0).sha256
    questions = [{problem.question for problem in arithmetic(seed).problems} for seed in (0, 1)]
    assert len(questions[0] & questions[1]) <= 2


def test_longer_set_begins_with_the_shorter_one() -> None:
    assert arithmetic(count=60).problems[:10] == arithmetic(count=10).problems


def test_count_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="num_problems_expected=0"):
        arithmetic(count=0)


@pytest.mark.parametrize("index", range(len(TEMPLATES)))
def test_answers_are_positive_integers(index: int) -> None:
    for seed in range(50):
        problem = arithmetic_problem(seed, index)
        assert re.fullmatch(r"[1-9][0-9]*", problem.answer)
        assert problem.question.endswith("?")
        assert "  " not in problem.question


# A person's arithmetic from the numbers in the question, in the order in which they stand.
BY_HAND = {
    0: lambda a, b: a - b,
    1: lambda book, pen, books, pens: book * books + pen * pens,
    2: lambda trays, rolls, burnt, bag: (trays * rolls - burnt) // bag,
    3: lambda boxes, each: boxes * each,
    4: lambda weekly, weeks, spent: weekly * weeks - spent,
    5: lambda rows, seats, empty, price: (rows * seats - empty) * price,
    6: lambda things, friends: things // friends,
    7: lambda start, off, on: start - off + on,
    8: lambda fast, first, slow, second: fast * first + slow * second,
    9: lambda things, more: things - things // 2 - things // 3 + more,
    10: lambda first, second: first - second,
    11: lambda width, length: 2 * (width + length),
    12: lambda age, factor, years: age * factor + years,
    13: lambda days, start, more: sum(start + more * day for day in range(days)),
}


@pytest.mark.parametrize("index", range(len(TEMPLATES)))
def test_answer_follows_from_the_numbers_in_the_question(index: int) -> None:
    for seed in range(20):
        problem = arithmetic_problem(seed, index)
        numbers = [int(number) for number in re.findall(r"[0-9]+", problem.question)]
        assert BY_HAND[index](*numbers) == int(problem.answer), problem.question
