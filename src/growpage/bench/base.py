"""What a benchmark is to the rest: problems with an id, messages and a gold answer. No torch."""

from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One question. `id` is stable and unique within its benchmark; `kind` is a finer class or ''."""

    id: str
    question: str
    answer: str
    kind: str = ""
    num_samples: int | None = None  # answers to this one; None: as many as the run asks for
    is_thinking: bool | None = (
        None  # False: its prompt closes the think block; None: the model's own
    )
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSet:
    """The problems of one run with what provenance needs: where they came from and the hash of their content."""

    name: str
    problems: tuple[Problem, ...]
    source: str  # hub id and revision, file path, or generator and version
    sha256: str  # over ids, questions and answers, in order


class Benchmark(Protocol):
    """A family of problem sets."""

    def load(self) -> ProblemSet:
        """All problems, before `limit`. Raises `UsageError` for data that is missing or malformed."""

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """Chat messages, roles and contents. A model without a chat template gets the contents joined."""
