"""The grader of bench=sequences takes the stated answer and nothing else."""

import pytest

from growpage.bench.base import Problem
from growpage.grade.base import Answer
from growpage.grade.sequences import SequencesGrader

PROBLEM = Problem(id="p", question="start 7", answer="7")
SOLVED = "phase 1. walk (1) add 0 \n end 7 \n </think> \n answer 7"


def grade(text, finish_reason="stop", reasoning_open=True):
    answer = Answer(
        problem=PROBLEM, text=text, finish_reason=finish_reason, reasoning_open=reasoning_open
    )
    return SequencesGrader().grade([answer])[0]


def test_right_answer_behind_the_reasoning():
    verdict = grade(SOLVED)
    assert verdict.correct
    assert verdict.extracted == "7"
    assert verdict.flags == ()


@pytest.mark.parametrize("number", ["8", "17", "70", "7000000000000000000000000"])
def test_another_number_is_wrong(number):
    verdict = grade(f"</think> \n answer {number}")
    assert not verdict.correct
    assert verdict.extracted == number


def test_leading_zeros_do_not_count():
    assert grade("</think> answer 007").correct


def test_answer_in_the_reasoning_alone_is_no_answer():
    verdict = grade("end 7 \n answer 7")
    assert not verdict.correct
    assert verdict.flags == ("no_answer", "answer_in_reasoning_only")


def test_open_reasoning_without_answer():
    verdict = grade("(3) 4 + 3 = 7", finish_reason="length")
    assert verdict.flags == ("truncated", "no_answer")
    assert verdict.reason == "the reasoning is not closed"


def test_last_number_is_never_guessed():
    assert "no_answer" in grade("</think> end 7").flags


def test_number_at_the_end_of_a_cut_text_may_be_unfinished():
    assert not grade("</think> answer 7", finish_reason="length").correct


def test_cut_after_the_answer_still_counts():
    verdict = grade("</think> answer 7 \n and", finish_reason="length")
    assert verdict.correct
    assert verdict.flags == ("truncated",)


def test_text_without_any_think_block_counts_as_a_whole():
    assert grade("the answer 7", reasoning_open=False).correct


def test_think_block_opened_by_the_model_must_be_closed():
    assert not grade("<think> answer 7", reasoning_open=False).correct


def test_last_of_several_answers_wins():
    assert grade("</think> answer 3 \n answer 7").correct


@pytest.mark.parametrize("text", ["", "\x00", "</think>" * 1000, "answer " * 1000, "answer -7"])
def test_nothing_a_model_writes_raises(text):
    assert not grade(text).correct
