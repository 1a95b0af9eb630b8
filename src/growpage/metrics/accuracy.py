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


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Accuracy over benchmarks with unequal n. `value` weighs requests; `benchmark_average` benchmarks.

    Intervals are normal ones, from the clustered errors of the parts, which are independent.
    """

    value: float
    standard_error: float | None
    low: float
    high: float
    benchmark_average: float
    benchmark_average_low: float
    benchmark_average_high: float
    num_questions: int
    num_samples: int  # the largest n of a part
    num_requests: int
    parts: dict[str, Accuracy]


def mixture(parts: Mapping[str, Outcomes]) -> Mixture:
    """Each part by itself and together. Raises ValueError as `pass_at_1` does."""
    rated = {name: pass_at_1(outcomes) for name, outcomes in sorted(parts.items())}
    sizes = {name: part.num_questions * part.num_samples for name, part in rated.items()}
    total = sum(sizes.values())
    by_request = {name: size / total for name, size in sizes.items()}
    by_part = dict.fromkeys(rated, 1 / len(rated))
    value, error = _weighted(rated, by_request)
    average, average_error = _weighted(rated, by_part)
    half, average_half = normal_quantile() * error, normal_quantile() * average_error
    return Mixture(
        value=value,
        standard_error=error if error > 0 else None,
        low=max(0.0, value - half),
        high=min(1.0, value + half),
        benchmark_average=average,
        benchmark_average_low=max(0.0, average - average_half),
        benchmark_average_high=min(1.0, average + average_half),
        num_questions=sum(part.num_questions for part in rated.values()),
        num_samples=max(part.num_samples for part in rated.values()),
        num_requests=total,
        parts=rated,
    )


def _weighted(parts: Mapping[str, Accuracy], weights: Mapping[str, float]) -> tuple[float, float]:
    """Mean and standard error; where all questions of a part are equal, its Wilson interval stands in."""
    value = math.fsum(weights[name] * part.value for name, part in parts.items())
    variance = math.fsum((weights[name] * _error(part)) ** 2 for name, part in parts.items())
    return value, math.sqrt(variance)


def _error(part: Accuracy) -> float:
    if part.standard_error is not None:
        return part.standard_error
    return (part.high - part.low) / (2 * normal_quantile())


def paired_mixture(a: Mapping[str, Outcomes], b: Mapping[str, Outcomes]) -> Difference:
    """b - a over requests, paired by question within each part. Raises as `paired_difference`."""
    if set(a) != set(b):
        raise ValueError(
            f"the runs share {len(set(a) & set(b))} of {len(set(a) | set(b))} benchmarks"
        )
    gaps = {name: paired_difference(a[name], b[name]) for name in sorted(a)}
    total = sum(gap.num_questions * gap.num_samples for gap in gaps.values())
    weights = {name: gap.num_questions * gap.num_samples / total for name, gap in gaps.items()}
    value = math.fsum(weights[name] * gap.value for name, gap in gaps.items())
    error = math.sqrt(
        math.fsum((weights[name] * (gap.standard_error or 0.0)) ** 2 for name, gap in gaps.items())
    )
    half = normal_quantile() * error if error > 0 else None
    return Difference(
        value=value,
        num_questions=sum(gap.num_questions for gap in gaps.values()),
        num_samples=total,
        standard_error=None if half is None else error,
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
