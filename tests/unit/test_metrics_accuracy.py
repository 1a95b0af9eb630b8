"""Accuracy and its interval on numbers worked out by hand (docs/graders.md §6)."""

import math

import pytest

from growpage.metrics.accuracy import (
    Outcomes,
    clustered_error,
    paired_difference,
    pass_at_1,
    t_quantile,
    wilson_interval,
)

MIXED: Outcomes = {
    "a": [True, True, True, True],
    "b": [True, False, True, False],
    "c": [False, False, False, False],
}


def test_pass_at_1_is_the_mean_over_questions() -> None:
    accuracy = pass_at_1(MIXED)
    assert accuracy.value == pytest.approx(0.5)
    assert (accuracy.num_questions, accuracy.num_samples) == (3, 4)


def test_error_is_clustered_by_question_not_by_sample() -> None:
    accuracy = pass_at_1(MIXED)
    # rates 1, 1/2, 0 around 1/2: sqrt((1/4 + 0 + 1/4) / (3 * 2))
    assert accuracy.standard_error == pytest.approx(math.sqrt(0.5 / 6))
    assert clustered_error([1.0, 0.5, 0.0]) == pytest.approx(math.sqrt(0.5 / 6))


def test_interval_uses_student_t_with_one_degree_less_than_questions() -> None:
    rates: Outcomes = {f"q{i}": [i < 6] for i in range(10)}
    accuracy = pass_at_1(rates)
    half = 2.2621571628 * math.sqrt(0.24 / 9)  # t(9), 97.5 %
    assert accuracy.interval == "t"
    assert accuracy.low == pytest.approx(0.6 - half)
    assert accuracy.high == pytest.approx(0.6 + half)


def test_interval_stays_within_0_and_1() -> None:
    accuracy = pass_at_1({"a": [True], "b": [True], "c": [False]})
    assert (accuracy.low, accuracy.high) == (0.0, 1.0)


@pytest.mark.parametrize("outcome", [True, False])
def test_equal_questions_get_a_wilson_interval_that_is_not_a_point(outcome: bool) -> None:
    accuracy = pass_at_1({f"q{i}": [outcome, outcome] for i in range(30)})
    assert accuracy.interval == "wilson"
    assert accuracy.high - accuracy.low == pytest.approx(0.1135, abs=1e-4)
    assert accuracy.standard_error is None


def test_wilson_interval_agrees_with_a_published_value() -> None:
    # 10 of 10: [0.7225, 1]; Brown, Cai and DasGupta 2001
    low, high = wilson_interval(1.0, 10)
    assert (round(low, 4), high) == (0.7225, pytest.approx(1.0))


def test_one_question_has_an_interval() -> None:
    accuracy = pass_at_1({"a": [True, False]})
    assert accuracy.value == 0.5
    assert accuracy.low < 0.5 < accuracy.high


@pytest.mark.parametrize(
    ("degrees", "expected"), [(1, 12.7062), (2, 4.3027), (29, 2.0452), (1318, 1.9618)]
)
def test_t_quantile_matches_the_tables(degrees: int, expected: float) -> None:
    assert t_quantile(degrees) == pytest.approx(expected, abs=1e-4)


def test_unequal_numbers_of_samples_are_refused() -> None:
    with pytest.raises(ValueError, match="unequal numbers of samples a question: 1 to 2"):
        pass_at_1({"a": [True], "b": [True, False]})


@pytest.mark.parametrize("nothing", [{}, {"a": []}])
def test_no_samples_are_refused(nothing: Outcomes) -> None:
    with pytest.raises(ValueError, match="no samples"):
        pass_at_1(nothing)


def test_ungraded_samples_are_counted_and_in_no_average() -> None:
    accuracy = pass_at_1({"a": [True, None], "b": [False, True]})
    assert accuracy.value == pytest.approx(0.75)
    assert accuracy.num_ungraded == 1
    with pytest.raises(ValueError, match="question a has no verdict"):
        pass_at_1({"a": [None, None], "b": [False, True]})


def test_paired_difference_is_sharper_than_a_single_error() -> None:
    easy, hard = [True] * 4, [False] * 4
    a: Outcomes = {f"q{i}": easy if i % 2 else hard for i in range(20)}
    b = dict(a)
    b["q0"], b["q2"] = [True, False, False, False], [True, True, False, False]
    gap = paired_difference(a, b)
    assert gap.value == pytest.approx((0.25 + 0.5) / 20)
    # gaps 1/4, 1/2 and eighteen 0: the questions' own difficulty cancels
    spread = 0.2125**2 + 0.4625**2 + 18 * 0.0375**2
    assert gap.standard_error == pytest.approx(math.sqrt(spread / (20 * 19)))
    single = pass_at_1(a).standard_error
    assert single is not None
    assert gap.standard_error < single / 4


def test_paired_difference_has_the_sign_of_the_second_run() -> None:
    assert paired_difference({"a": [False]}, {"a": [True]}).value == 1.0


def test_equal_runs_differ_by_nothing_without_claiming_an_interval() -> None:
    gap = paired_difference(MIXED, MIXED)
    assert (gap.value, gap.low, gap.high) == (0.0, None, None)


def test_runs_over_other_questions_are_not_paired() -> None:
    with pytest.raises(ValueError, match="share 1 of 3 questions"):
        paired_difference({"a": [True], "b": [True]}, {"a": [True], "c": [True]})
    with pytest.raises(ValueError, match="different numbers of samples"):
        paired_difference({"a": [True]}, {"a": [True, True]})
