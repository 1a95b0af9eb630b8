"""GSM8K, MATH-500, AMC 2023 and AIME 2024, from the hub or from a local file of JSON lines.

The pinned commits were read in public repositories that use these data sets, not on the hub
itself. `bench.path` needs no hub at all.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from growpage.bench import golds
from growpage.bench.base import Problem, ProblemSet
from growpage.bench.hub import HubSource, check_revision, read_hub
from growpage.bench.jsonl import Row, read_rows
from growpage.bench.problems import problem_set
from growpage.bench.prompts import MATH_INSTRUCTION, chat_messages
from growpage.bench.spec import BenchmarkSpec
from growpage.errors import UsageError


class MathDataset:
    """Questions with one final answer. A family states where it lives and how it writes golds."""

    HUB: ClassVar[HubSource]

    @staticmethod
    def gold(answer: str) -> str:
        """The gold answer as it is compared, from the answer as the file has it."""
        raise NotImplementedError

    def __init__(self, spec: BenchmarkSpec) -> None:
        check_revision(spec.revision)
        self._spec = spec

    def load(self) -> ProblemSet:
        """All problems. Raises `UsageError` for missing or malformed data, or a wrong count."""
        if self._spec.path is not None:
            rows, source = read_rows(self._spec.path), f"file:{self._spec.path}"
        else:
            hub = self.hub_source()
            rows, commit = read_hub(hub)
            source = f"{hub}@{commit}"
            _check_count(rows, hub)
        return problem_set(self._spec.name, self._problems(rows), source)

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        instruction = self._spec.instruction or MATH_INSTRUCTION
        return chat_messages(problem.question, instruction, self._spec.prompt_role)

    def hub_source(self) -> HubSource:
        """Where the hub copy is: the family's own, unless a setting names another."""
        spec, own = self._spec, self.HUB
        if spec.hub_id is not None and spec.hub_id != own.hub_id:
            return HubSource(
                hub_id=spec.hub_id,
                hub_config=spec.hub_config,
                split=spec.split or "test",
                revision=spec.revision,
                num_problems=spec.num_problems_expected,
            )
        return HubSource(
            hub_id=own.hub_id,
            hub_config=spec.hub_config or own.hub_config,
            split=spec.split or own.split,
            revision=spec.revision or own.revision,
            num_problems=spec.num_problems_expected or own.num_problems,
        )

    def _problems(self, rows: Sequence[Row]) -> list[Problem]:
        problems: list[Problem] = []
        places: dict[str, str] = {}
        for index, row in enumerate(rows):
            identity = row.id if row.id is not None else f"{self._spec.name}/{index:04d}"
            if identity in places:
                raise UsageError(
                    f"{row.place}: id '{identity}' was used before ({places[identity]}). "
                    "Give each question its own id, or remove the repeated line."
                )
            places[identity] = row.place
            problems.append(self._problem(identity, row))
        return problems

    def _problem(self, identity: str, row: Row) -> Problem:
        return Problem(id=identity, question=row.question, answer=self._gold_of(row))

    def _gold_of(self, row: Row) -> str:
        try:
            return type(self).gold(row.answer.strip())
        except ValueError as error:
            shown = row.answer if len(row.answer) <= 60 else f"…{row.answer[-60:]}"
            raise UsageError(
                f"{row.place}: answer={shown!r}: {error} (bench.family={self._spec.family}). "
                "Mend the answer, or choose the family that fits the file."
            ) from None


def _check_count(rows: Sequence[Row], hub: HubSource) -> None:
    if hub.num_problems is not None and len(rows) != hub.num_problems:
        raise UsageError(
            f"bench.num_problems_expected={hub.num_problems}: {hub} holds {len(rows)} problems. "
            "Pin another bench.revision or bench.split, or state the number you expect."
        )


class Gsm8k(MathDataset):
    """`bench.gsm8k_thinking=false` asks it with a closed think block (docs/graders.md §6)."""

    HUB = HubSource(
        hub_id="openai/gsm8k",
        hub_config="main",
        revision="740312add88f781978c0658806c59bc2815b9866",
        num_problems=1319,
    )
    gold = staticmethod(golds.gsm8k_gold)

    def _problem(self, identity: str, row: Row) -> Problem:
        plain = super()._problem(identity, row)
        return replace(plain, is_thinking=self._spec.gsm8k_thinking)


class Math500(MathDataset):
    HUB = HubSource(
        hub_id="HuggingFaceH4/MATH-500",
        revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
        num_problems=500,
    )
    gold = staticmethod(golds.verbatim_gold)


class Amc23(MathDataset):
    HUB = HubSource(
        hub_id="math-ai/amc23",
        revision="80815d37005feb82cd7f8fbc6901d5d3eff43057",
        num_problems=40,
    )
    gold = staticmethod(golds.amc_gold)


class Aime24(MathDataset):
    HUB = HubSource(
        hub_id="HuggingFaceH4/aime_2024",
        split="train",
        revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
        num_problems=30,
    )
    gold = staticmethod(golds.aime_gold)
