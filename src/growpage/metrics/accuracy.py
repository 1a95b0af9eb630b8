"""Accuracy over questions and its uncertainty (docs/graders.md §6). No torch, no pandas."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Outcomes = Mapping[str, Sequence["bool | None"]]
"""Right or wrong of every sample, by question. None: the grader itself failed."""

_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """pass@1[avg-of-n] over Q questions with its 95 % interval.

    `interval` says how low and high were found: "t" (clustered by question, Q-1 degrees of
    freedom) or "wilson" (all questions equal).
    """

    value: float
    num_questions: int
    num_samples: int
    standard_error: float | None
    low: float
    high: float
    interval: str
    num_ungraded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Mean of p_b - p_a over common questions.

    No interval when all differences are equal: no spread was seen.
    """

    value: float
    num_questions: int
    num_samples: int
    standard_error: float | None
    low: float | None
    high: float | None


def pass_at_1(outcomes: Outcomes) -> Accuracy:
    """Mean over questions of right/n, with an interval.

    Samples that could not be graded leave their question's n and are counted in `num_ungraded`.
    Raises ValueError without questions, for unequal n, and for a question without a single
    verdict.
    """
    num_samples = _samples_per_question(outcomes)
    rates = [rate for _, rate in sorted(question_rates(outcomes).items())]
    value = math.fsum(rates) / len(rates)
    ungraded = sum(outcome is None for row in outcomes.values() for outcome in row)
    if all(rate == rates[0] for rate in rates):
        low, high = wilson_interval(rates[0], len(rates))
        standard_error, kind = None, "wilson"
    else:
        standard_error = clustered_error(rates)
        half = t_quantile(len(rates) - 1) * standard_error
        low, high, kind = max(0.0, value - half), min(1.0, value + half), "t"
    return Accuracy(
        value=value,
        num_questions=len(rates),
        num_samples=num_samples,
        standard_error=standard_error,
        low=low,
        high=high,
        interval=kind,
        num_ungraded=ungraded,
    )


def paired_difference(a: Outcomes, b: Outcomes) -> Difference:
    """b - a, paired by question. Raises ValueError unless both hold the same questions and n."""
    if set(a) != set(b):
        raise ValueError(
            f"the runs share {len(set(a) & set(b))} of {len(set(a) | set(b))} questions"
        )
    num_samples = _samples_per_question(a)
    if _samples_per_question(b) != num_samples:
        raise ValueError("the runs have different numbers of samples a question")
    rates_a, rates_b = question_rates(a), question_rates(b)
    gaps = [rates_b[name] - rates_a[name] for name in sorted(a)]
    value = math.fsum(gaps) / len(gaps)
    error = half = None
    if any(gap != gaps[0] for gap in gaps):
        error = clustered_error(gaps)
        half = t_quantile(len(gaps) - 1) * error
    return Difference(
        value=value,
        num_questions=len(gaps),
        num_samples=num_samples,
        standard_error=error,
        low=None if half is None else value - half,
        high=None if half is None else value + half,
    )


def question_rates(outcomes: Outcomes) -> dict[str, float]:
    """right/n of every question over its graded samples."""
    rates = {}
    for name, row in outcomes.items():
        graded = [outcome for outcome in row if outcome is not None]
        if not graded:
            raise ValueError(f"question {name} has no verdict")
        rates[name] = sum(graded) / len(graded)
    return rates


def clustered_error(rates: Sequence[float]) -> float:
    """Standard error of the mean, clustered by question. Needs Q >= 2.

    sqrt(sum (p_i - p)^2 / (Q (Q-1)))
    """
    count = len(rates)
    mean = math.fsum(rates) / count
    return math.sqrt(math.fsum((rate - mean) ** 2 for rate in rates) / (count * (count - 1)))


def wilson_interval(rate: float, count: int) -> tuple[float, float]:
    """95 % score interval of a proportion `rate` seen in `count` questions."""
    z = normal_quantile()
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    spread = math.sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    half = z * spread / (1 + z * z / count)
    # The interval holds the rate itself, which rounding at 0 and 1 would deny.
    return max(0.0, min(rate, centre - half)), min(1.0, max(rate, centre + half))


def t_quantile(degrees: int) -> float:
    """Two-sided 95 % point of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, (1 + _CONFIDENCE) / 2))


def normal_quantile() -> float:
    from statistics import NormalDist

    return NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)


def _samples_per_question(outcomes: Outcomes) -> int:
    sizes = {len(row) for row in outcomes.values()}
    if not outcomes or 0 in sizes:
        raise ValueError("no samples")
    if len(sizes) > 1:
        raise ValueError(f"unequal numbers of samples a question: {min(sizes)} to {max(sizes)}")
    return sizes.pop()
