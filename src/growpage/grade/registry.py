"""Graders by name. A new one is a function here, a class in a file of its own and a line in the table."""

from collections.abc import Callable
from typing import Protocol

from growpage.errors import require, unknown
from growpage.grade.base import Grader
from growpage.grade.code import CodeGrader
from growpage.grade.math import MathGrader
from growpage.grade.policy import CodePolicy, MathPolicy
from growpage.grade.sequences import SequencesGrader


class GraderSpec(Protocol):
    """Attributes a grader reads; `growpage.config.GraderConfig` has them all."""

    @property
    def timeout_s(self) -> float:
        """Wall clock for one comparison, then its worker is killed."""

    @property
    def memory_gib(self) -> float:
        """Address space of a worker beyond its own start."""

    @property
    def num_workers(self) -> int: ...

    @property
    def whole_output(self) -> bool:
        """Also run math-verify on the full text; adds a flag `whole_output_…` and changes no verdict."""

    @property
    def policy(self) -> MathPolicy:
        """What counts as the same answer."""

    @property
    def code(self) -> CodePolicy:
        """How programs are found and compared."""


def make_grader(name: str, config: GraderSpec) -> Grader:
    """The grader called `name`. Raises `UsageError` for an unknown name or a value out of range."""
    if name not in GRADERS:
        raise unknown("grader.name", name, GRADERS)
    require(0.0 < config.timeout_s <= 3600.0, "grader.timeout_s", config.timeout_s, "in (0, 3600]")
    require(config.memory_gib > 0.0, "grader.memory_gib", config.memory_gib, "> 0")
    require(config.num_workers >= 1, "grader.num_workers", config.num_workers, ">= 1")
    return GRADERS[name](config)


def _math(config: GraderSpec) -> MathGrader:
    return MathGrader(
        policy=config.policy,
        timeout_s=config.timeout_s,
        memory_gib=config.memory_gib,
        num_workers=config.num_workers,
        whole_output=config.whole_output,
    )


def _code(config: GraderSpec) -> CodeGrader:
    return CodeGrader(
        policy=config.code,
        timeout_s=config.timeout_s,
        memory_gib=config.memory_gib,
        num_workers=config.num_workers,
    )


def _sequences(_config: GraderSpec) -> SequencesGrader:
    """Exact text: it needs no worker and has no settings."""
    return SequencesGrader()


GRADERS: dict[str, Callable[[GraderSpec], Grader]] = {
    "math": _math,
    "code": _code,
    "sequences": _sequences,
}
