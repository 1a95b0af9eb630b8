"""From problems to a problem set: unique ids, and the hash that provenance stores."""

import hashlib
import json
from collections.abc import Sequence

from growpage.bench.base import Problem, ProblemSet


def problem_set(name: str, problems: Sequence[Problem], source: str) -> ProblemSet:
    return ProblemSet(
        name=name, problems=tuple(problems), source=source, sha256=content_sha256(problems)
    )


def content_sha256(problems: Sequence[Problem]) -> str:
    """SHA-256 over id, question and answer of each problem, in order, as JSON lines."""
    digest = hashlib.sha256()
    for problem in problems:
        line = json.dumps([problem.id, problem.question, problem.answer], ensure_ascii=False)
        digest.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
