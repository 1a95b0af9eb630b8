"""The verdict and the protocol of a grader. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from growpage.bench.base import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Whether one output answers its problem.

    `extracted` is the answer that was compared, or None; `rule` names the comparison that decided.
    docs/graders.md §1 lists rules and flags. A failure of the grader itself carries the flag
    `grader_error`; it is never counted as wrong.
    """

    correct: bool
    reason: str
    extracted: str | None = None
    rule: str = ""
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One output to grade. `finish_reason` is the engine's ("stop", "length", ...)."""

    problem: Problem
    text: str
    finish_reason: str
    reasoning_open: bool = False  # the prompt ended inside an opened think block


class Grader(Protocol):
    """Never raises for anything a model wrote."""

    version: str

    def grade(self, answers: Sequence[Answer]) -> list[Verdict]: ...

    def close(self) -> None: ...
