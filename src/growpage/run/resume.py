"""Which samples a run consists of, which are missing, and whether those at hand still belong to it.

Nothing here depends on the order of a file or on the time: the same command finds the same keys,
also at temperature 0.6.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any

from growpage.bench.base import Problem, ProblemSet
from growpage.errors import UsageError
from growpage.store.errors import ForeignRunError
from growpage.store.schema import SampleKey, SampleRow

_START_OVER = "Start over with fresh=true, or move the directory away."


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One sample to have: its problem, its number among the answers, its own seed."""

    problem: Problem
    sample_index: int
    seed: int
    config_hash: str

    @property
    def key(self) -> SampleKey:
        return SampleKey(self.problem.id, self.sample_index, self.seed, self.config_hash)

    @property
    def request_id(self) -> str:
        return f"{self.problem.id}/{self.sample_index}"


def request_seed(base_seed: int, problem_id: str, sample_index: int) -> int:
    """63 bits from base seed, problem and sample index; the same on every machine and Python."""
    text = f"{base_seed}\0{problem_id}\0{sample_index}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def plan(
    problems: Sequence[Problem], *, num_samples: int, base_seed: int, config_hash: str
) -> list[WorkItem]:
    """All samples of a run, answers to one problem next to each other. Raises UsageError."""
    if not problems:
        raise UsageError(
            "bench: no problems to ask. Check bench.path, bench.split and bench.limit."
        )
    return [
        WorkItem(
            problem=problem,
            sample_index=index,
            seed=request_seed(base_seed, problem.id, index),
            config_hash=config_hash,
        )
        for problem in problems
        for index in range(problem.num_samples or num_samples)
    ]


def missing(items: Iterable[WorkItem], samples: Mapping[SampleKey, SampleRow]) -> list[WorkItem]:
    return [item for item in items if item.key not in samples]


def check_same_data(recorded: Mapping[str, Any] | None, problem_set: ProblemSet) -> None:
    """Raise ForeignRunError when the benchmark's data are not those the run began with."""
    if recorded is None or recorded["sha256"] == problem_set.sha256:
        return
    raise ForeignRunError(
        f"bench={problem_set.name}: the data changed since this run began "
        f"(sha256 {recorded['sha256'][:12]} from {recorded['source']}, "
        f"now {problem_set.sha256[:12]} from {problem_set.source}). {_START_OVER}"
    )


def check_same_files(recorded: Mapping[str, str] | None, files: Mapping[str, str]) -> None:
    """Raise ForeignRunError when a model file is not the one the run began with.

    Large files are known by size and time instead of a hash; a new time alone is not a change.
    """
    for name, now in files.items():
        before = (recorded or {}).get(name)
        if before is not None and _content(before) != _content(now):
            raise ForeignRunError(
                f"model: {name} changed since this run began ({before[:24]}, now {now[:24]}). "
                f"{_START_OVER}"
            )


def prompt_hash(token_ids: Sequence[int]) -> str:
    """16 hex digits over the token ids, template and tokenizer included."""
    return sha256(",".join(map(str, token_ids)).encode()).hexdigest()[:16]


def check_same_prompts(samples: Mapping[SampleKey, SampleRow], hashes: Mapping[str, str]) -> None:
    """Raise ForeignRunError when a stored sample answers another prompt.

    `hashes`: by problem id.
    """
    for sample in samples.values():
        now = hashes.get(sample.problem_id)
        if now is not None and now != sample.prompt_hash:
            raise ForeignRunError(
                f"bench: the prompt of problem {sample.problem_id} changed since this run began "
                f"(hash {sample.prompt_hash}, now {now}): another chat template or tokenizer. "
                f"{_START_OVER}"
            )


def _content(fingerprint: str) -> str:
    """The part of a fingerprint that speaks of content: "sha256:…", or "size:…" of a large file."""
    return fingerprint.split(",mtime_ns:")[0]
