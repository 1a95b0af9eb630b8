"""Properties: a changed digit, sign, bracket or order is wrong; nothing a model writes raises."""

import os
import tempfile
import threading
import time
from fractions import Fraction
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from growpage.bench.base import Problem
from growpage.grade.base import Answer
from growpage.grade.compare import Comparison, compare, reads_as_answer
from growpage.grade.extraction import extract
from growpage.grade.matcher import NeedsWorker
from growpage.grade.math import MathGrader
from growpage.grade.policy import MathPolicy
from growpage.grade.symbolic import SymbolicIrrational

INTEGERS = st.integers(min_value=-(10**30), max_value=10**30)
SMALL = st.integers(min_value=-99, max_value=99)
POSITIVE = st.integers(min_value=2, max_value=99)

COMMANDS = (
    "frac sqrt pi text left right cup in pm begin end over overline infty pmod binom sin log lfloor "
    "boxed \\ { } , !"
)
FRAGMENTS = st.sampled_from(
    [
        *"0123456789abcxyzABCei.,:;!?+-*/^_=<>()[]{}|&$%'\" \n",
        *"−×√π°½²∞≤₂𝟙é中",
        *(f"\\{name}" for name in COMMANDS.split(" ")),
        "\\text{ cm}",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\text{ or }",
        "<think>",
        "</think>",
        "The answer is ",
        "\\boxed{",
        "}",
        "999999999",
        "^{",
        "\ud800",
        "\u200b",
    ]
)
TEXTS = st.lists(FRAGMENTS, max_size=25).map("".join)
GOLDS = st.sampled_from(
    [
        "5", "-2", "\\frac{1}{2}", "x^2+1", "(1,2)", "1,-2", "[1,2)", "\\text{even}",
        "5 \\text{ cm}", "1 \\pm \\sqrt{2}", "x=5", "y = 2x+1", "1:2", "52_8", "\\infty",
        "90^\\circ", "$3.50", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}", "(0,1) \\cup (1,2)",
        "x \\in [1,2]", "3 - 2i",
    ]
)  # fmt: skip
FIVES = {"5", "x=5", "5 \\text{ cm}"}  # the same value: marks may be left out or added
unhurried = settings(deadline=None)  # the first comparison of some kinds imports mpmath or sympy


def compared(gold: str, answer: str) -> Comparison:
    return compare(gold, answer, MathPolicy(), SymbolicIrrational())


def is_right(gold: str, answer: str) -> bool:
    return compared(gold, answer).equal


@given(INTEGERS, INTEGERS)
@unhurried
def test_two_integers_are_equal_only_if_they_are_the_same(gold: int, answer: int) -> None:
    assert is_right(str(gold), str(answer)) == (gold == answer)


@given(INTEGERS, st.data())
@unhurried
def test_changed_digit_is_wrong(gold: int, data: st.DataObject) -> None:
    digits = str(abs(gold))
    at = data.draw(st.integers(0, len(digits) - 1))
    digit = data.draw(st.sampled_from([d for d in "0123456789" if d != digits[at]]))
    changed = digits[:at] + digit + digits[at + 1 :]
    assert not is_right(digits, changed)


@given(INTEGERS.filter(bool))
@unhurried
def test_changed_sign_is_wrong(gold: int) -> None:
    for written in (str(-gold), f"{-gold}.0", f"{-gold:,}", f"\\frac{{{-gold}}}{{1}}"):
        assert not is_right(str(gold), written)


@given(INTEGERS)
@unhurried
def test_spellings_of_an_integer_are_right(gold: int) -> None:
    grouped = f"{gold:,}"
    for written in (
        grouped,
        grouped.replace(",", "\\,"),
        grouped.replace(",", "{,}"),
        f"{gold}.0",
        f"{gold}.",
        f"${gold}$",
        f"\\left({gold}\\right)",
        f"x = {gold}",
        f"{gold} \\text{{ units}}",
        f"\\frac{{{3 * gold}}}{{3}}",
    ):
        assert is_right(str(gold), written), written


@given(SMALL, POSITIVE, SMALL, POSITIVE)
@unhurried
def test_fractions_are_equal_only_by_value(a: int, b: int, c: int, d: int) -> None:
    same = Fraction(a, b) == Fraction(c, d)
    assert is_right(f"\\frac{{{a}}}{{{b}}}", f"\\dfrac{{{c}}}{{{d}}}") == same
    assert is_right(f"{a}/{b}", f"\\frac{{{c}}}{{{d}}}") == same


@given(SMALL, st.integers(1, 6))
@unhurried
def test_decimal_is_its_exact_value(numerator: int, places: int) -> None:
    gold = f"\\frac{{{numerator}}}{{{10**places}}}"
    sign = "-" if numerator < 0 else ""
    digits = str(abs(numerator)).rjust(places + 1, "0")
    decimal = f"{sign}{digits[:-places]}.{digits[-places:]}"
    assert is_right(gold, decimal)
    assert not is_right(gold, decimal + "1")


@given(st.lists(SMALL, min_size=2, max_size=5, unique=True), st.randoms())
@unhurried
def test_list_is_free_of_order_and_tuple_is_not(items: list[int], rng: object) -> None:
    other = items[1:] + items[:1]
    written, shuffled = (", ".join(map(str, part)) for part in (items, other))
    assert is_right(written, shuffled)
    assert is_right(f"\\{{{written}\\}}", f"\\{{{shuffled}\\}}")
    assert not is_right(f"({written})", f"({shuffled})")
    assert not is_right(written, ", ".join(map(str, items[1:])))
    assert not is_right(written, f"{written}, {items[0]}")


@given(
    SMALL,
    SMALL,
    st.sampled_from(["()", "[]", "(]", "[)"]),
    st.sampled_from(["()", "[]", "(]", "[)"]),
)
@unhurried
def test_changed_bracket_is_wrong(a: int, b: int, gold: str, answer: str) -> None:
    one, other = (f"{pair[0]}{a}, {b}{pair[1]}" for pair in (gold, answer))
    assert is_right(one, other) == (gold == answer)


@given(st.lists(SMALL, min_size=2, max_size=6), st.integers(0, 5), st.integers(1, 5))
@unhurried
def test_polynomial_with_a_changed_coefficient_is_wrong(
    coefficients: list[int], at: int, change: int
) -> None:
    def written(values: list[int], order: int) -> str:
        terms = [f"{'+' if v >= 0 else '-'}{abs(v)}x^{{{n}}}" for n, v in enumerate(values)]
        return "".join(terms[::order]).lstrip("+")

    assert is_right(written(coefficients, 1), written(coefficients, -1))
    changed = list(coefficients)
    changed[at % len(changed)] += change
    assert not is_right(written(coefficients, 1), written(changed, -1))


@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE)
@unhurried
def test_roots_are_equal_only_by_value(a: int, b: int, c: int, d: int) -> None:
    gold, answer = f"{a}\\sqrt{{{b}}}", f"{c}\\sqrt{{{d}}}"
    assert is_right(gold, answer) == (a * a * b == c * c * d)


@given(GOLDS, TEXTS)
@settings(unhurried, max_examples=300)
def test_nothing_a_model_writes_raises(gold: str, text: str) -> None:
    found = extract(text, reads=reads_as_answer)
    for answer in (text, found.answer or ""):
        try:
            result = compare(gold, answer, MathPolicy())
        except NeedsWorker:
            continue
        assert result.reason


@given(TEXTS)
@settings(unhurried, max_examples=200)
def test_an_answer_always_answers_itself(text: str) -> None:
    assert compare(text, text, MathPolicy()).equal


@given(GOLDS, GOLDS)
@unhurried
def test_different_golds_do_not_answer_each_other(gold: str, answer: str) -> None:
    if gold != answer and not {gold, answer} <= FIVES:
        assert not is_right(gold, answer)


@given(GOLDS)
@unhurried
def test_text_around_the_answer_is_not_searched(gold: str) -> None:
    for written in (f"{gold} \\text{{ or not}}", f"\\text{{not }} {gold}", f"{gold}{gold}7"):
        assert not is_right(gold, written)


# ---- ten thousand at once ----------------------------------------------------------------------------

HOSTILE = (
    "9^{9^{9^{9}}}", "(10^6)!", "\\frac{1}{0}", "\\sqrt{-1}^{\\sqrt{-1}}", "10^{10^{6}}-1", "{" * 50, "\\frac" * 200,
    "__import__('os').system('true')", "\\binom{10^9}{5}", "1" * 5000, "\\sqrt{2}" * 40, "x" * 3000, "\\sin(10^{400})",
    "2^{-1000}", "0." + "3" * 2000, "\\begin{pmatrix}" + "1 & " * 200 + "\\end{pmatrix}", "[" * 100 + "]" * 100,
    "\\pm" * 30, "\\{" + ",".join(map(str, range(300))) + "\\}", "\\text{" * 60, "e^{i\\pi}",
    "((((((1))))))", "\\infty-\\infty",
)  # fmt: skip
ORDINARY = (
    "5",
    "-2",
    "\\frac{1}{2}",
    "(1,2)",
    "0.25",
    "x=5",
    "3\\sqrt{2}",
    "1,200",
    "50\\%",
    "\\frac{3}{4}\\pi",
)
FRAMES = (
    "\\boxed{%s}",
    "<think>a</think>\\boxed{%s}",
    "The answer is $%s$.",
    "#### %s",
    "\\boxed{%s} and \\boxed{1}",
)


def test_ten_thousand_adversarial_gradings_leave_nothing_and_none_is_wrongly_right() -> None:
    """Answers drawn from a seed; those with the gold in them are told by their place, not by the grader."""
    answers, is_same = drawn_answers(10_000)
    open_files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    folder = set(os.listdir(tempfile.gettempdir()))
    grader = MathGrader(timeout_s=2.0, num_workers=2, memory_gib=1.0)
    grader.grade(answers[:100])  # imports stay
    before = resident_bytes()
    started = time.monotonic()
    verdicts = grader.grade(answers)
    seconds = time.monotonic() - started
    pids = grader._pool.pids()
    grader.close()
    assert not any("grader_error" in verdict.flags for verdict in verdicts)
    assert [v for v, same in zip(verdicts, is_same, strict=True) if v.correct and not same] == []
    assert [v for v, same in zip(verdicts, is_same, strict=True) if same and not v.correct] == []
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
    assert len(os.listdir("/proc/self/fd")) == open_files
    assert threading.active_count() == threads
    assert resident_bytes() - before < 100 << 20
    new = set(os.listdir(tempfile.gettempdir())) - folder
    assert not any("growpage" in name for name in new)
    assert seconds < 120.0, "a minute on two cores of its own; tests run beside others"


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def drawn_answers(count: int) -> tuple[list[Answer], list[bool]]:
    dice = Random(20240)
    answers, is_same = [], []
    for index in range(count):
        gold = dice.choice(ORDINARY)
        kind = dice.randrange(4)
        if kind == 0:
            text, same = dice.choice(FRAMES[:3]) % gold, True
        elif kind == 1:
            text, same = dice.choice(FRAMES[:4]) % (dice.choice(HOSTILE) + str(index)), False
        elif kind == 2:
            text, same = dice.choice(FRAMES[:3]) % f"{gold}7", False  # a digit more
        else:
            text, same = f"<think>\\boxed{{{gold}}}" + "x" * dice.randrange(2000), False  # cut off
        problem = Problem(id=str(index), question="", answer=gold)
        answers.append(Answer(problem=problem, text=text, finish_reason="stop"))
        is_same.append(same)
    return answers, is_same
