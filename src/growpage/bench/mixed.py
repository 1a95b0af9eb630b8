"""The paper's mixed workload (Table 6): AMC 2023, AIME 2024 and GSM8K at once, 3,559 requests.

Problems come in an order drawn from `bench.seed`, so that long and short answers are in flight together.
"""

from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import ClassVar

from growpage.bench.base import Problem, ProblemSet
from growpage.bench.math_datasets import Aime24, Amc23, Gsm8k, MathDataset
from growpage.bench.problems import problem_set
from growpage.bench.spec import BenchmarkSpec
from growpage.errors import UsageError

PARTS: dict[str, type[MathDataset]] = {"amc23": Amc23, "aime24": Aime24, "gsm8k": Gsm8k}
_OTHER_NAMES = {"gsm8k": ("gsm8k_test",)}


class Mixed:
    """`bench.path` is a folder with amc23.jsonl, aime24.jsonl and gsm8k.jsonl; without it, the hub."""

    HUB: ClassVar[None] = None  # three data sets, each with its own; not generated

    def __init__(self, spec: BenchmarkSpec) -> None:
        for key in ("hub_id", "hub_config", "split", "revision"):
            if (value := getattr(spec, key)) is not None:
                raise UsageError(
                    f"bench.{key}={value}: no effect, since bench={spec.name} takes three data sets. "
                    "Leave it out, or choose one of them, for example bench=gsm8k."
                )
        self._spec = spec

    def load(self) -> ProblemSet:
        """All problems. Raises `UsageError` for missing or malformed data, or a wrong count."""
        paths: dict[str, str | None] = dict.fromkeys(PARTS)
        if self._spec.path is not None:
            files = local_files(self._spec.path)
            paths = {name: str(file) for name, file in zip(PARTS, files, strict=True)}
        sets = {name: self._part(name, path).load() for name, path in paths.items()}
        problems = [
            self._as_part(problem, name)
            for name, found in sets.items()
            for problem in found.problems
        ]
        self._check_count(problems)
        Random(f"mixed:{self._spec.seed}").shuffle(problems)
        source = "; ".join(found.source for found in sets.values())
        return problem_set(self._spec.name, problems, source)

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        return self._part(problem.kind, None).messages(problem)

    def _part(self, name: str, path: str | None) -> MathDataset:
        spec = self._spec
        own = SimpleNamespace(
            name=name, family=name, hub_id=None, hub_config=None, split=None, revision=None, path=path,
            num_problems_expected=None, prompt_role=spec.prompt_role, instruction=spec.instruction,
            seed=spec.seed, gsm8k_thinking=spec.gsm8k_thinking, gsm8k_samples=spec.gsm8k_samples,
            kinds=None, max_items=None, max_steps=None, max_phases=None,
        )  # fmt: skip
        return PARTS[name](own)

    def _as_part(self, problem: Problem, name: str) -> Problem:
        identity = problem.id if problem.id.startswith(f"{name}/") else f"{name}/{problem.id}"
        num_samples = self._spec.gsm8k_samples if name == "gsm8k" else None
        return replace(problem, id=identity, kind=name, num_samples=num_samples)

    def _check_count(self, problems: list[Problem]) -> None:
        expected = self._spec.num_problems_expected
        if self._spec.path is None and expected is not None and len(problems) != expected:
            raise UsageError(
                f"bench.num_problems_expected={expected}: the three data sets hold {len(problems)} "
                "problems. State the number you expect."
            )


def local_files(folder: str) -> list[Path]:
    """The files of the three data sets, in the order of PARTS. Raises `UsageError` for a missing one."""
    found = []
    for name in PARTS:
        names = [f"{other}.jsonl" for other in (name, *_OTHER_NAMES.get(name, ()))]
        files = [file for other in names if (file := Path(folder) / other).is_file()]
        if not files:
            raise UsageError(
                f"bench.path={folder}: no {' or '.join(names)} in this folder. bench=mixed needs the "
                "files of amc23, aime24 and gsm8k; scripts/fetch_data.py stores them."
            )
        found.append(files[0])
    return found
