"""Stores a checked local copy of each benchmark: `python scripts/fetch_data.py FOLDER [NAME…] [--from FOLDER]`.

From the hub at the pinned commit, or with `--from` from files that are there already. Each copy is read back, its
number of problems and the hash of its content are compared with those below, and `SHA256SUMS` lists the files. Run a
benchmark from it with bench.path=FOLDER/NAME.jsonl, bench=mixed with bench.path=FOLDER.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from growpage.bench.base import Problem, ProblemSet
from growpage.bench.registry import make_benchmark
from growpage.config import BenchConfig
from growpage.errors import UsageError, unknown
from growpage.store.atomic import write_bytes

# problems, and the first 16 hex digits of the SHA-256 over questions and golds (ids are each source's own)
KNOWN: dict[str, tuple[int, str | None]] = {
    "gsm8k": (1319, "127acd14551bfca9"),
    "math500": (500, "8a5df26f1ccd58c9"),
    "amc23": (40, "d97e6d9c2e949b9f"),
    "aime24": (30, "8b762994cac5e6de"),
    "livecodebench": (400, None),  # its content is not known here
}
_OTHER_NAMES = {"gsm8k": "gsm8k_test"}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(KNOWN))
    parser.add_argument("--from", dest="source", type=Path, help="a folder of NAME.jsonl files")
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="HASH",
        help="content that is known by another source",
    )
    options = parser.parse_args(arguments)
    try:
        for name in options.names or KNOWN:
            print(fetch(name, options.folder, options.source, accepted=options.accept))
        _write_sums(options.folder)
    except (UsageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def fetch(
    name: str, folder: Path, source: Path | None = None, *, accepted: Sequence[str] = ()
) -> str:
    """Store one benchmark and say what was stored. Raises `UsageError` for other content than is known."""
    if name not in KNOWN:
        raise unknown("NAME", name, KNOWN)
    path = None if source is None else str(_file_of(name, source))
    found = _load(name, path)
    num_problems, known = KNOWN[name]
    content = content_hash(found.problems)
    if len(found.problems) != num_problems:
        raise UsageError(f"{found.source}: {len(found.problems)} problems, not {num_problems}.")
    if known is not None and content not in (known, *accepted):
        raise UsageError(
            f"{found.source}: questions or golds differ from those known here (content {content}, known "
            f"{known}). Where the difference is one of spelling: --accept {content}"
        )
    target = folder / f"{name}.jsonl"
    lines = [json.dumps(record_of(problem), ensure_ascii=False) for problem in found.problems]
    folder.mkdir(parents=True, exist_ok=True)
    write_bytes(target, ("\n".join(lines) + "\n").encode())
    again = _load(name, str(target))
    if again.sha256 != found.sha256:
        raise UsageError(f"{target}: reads back as {again.sha256[:12]}, not {found.sha256[:12]}.")
    return f"{target}: {num_problems} problems, content {content}, from {found.source}"


def record_of(problem: Problem) -> dict[str, Any]:
    """One line of a local file."""
    if "tests" not in problem.metadata:
        return {"id": problem.id, "question": problem.question, "answer": problem.answer}
    facts = problem.metadata
    record = {
        "id": problem.id,
        "kind": facts["kind"],
        "difficulty": problem.kind,
        "question": problem.question,
        "starter_code": facts["starter_code"],
    }
    if facts["public_tests_only"]:
        record["tests_scope"] = "public only; hidden tests NOT available"
    if facts["kind"] == "stdin":
        return record | {"tests": facts["tests"]}
    inputs, outputs = ([test[key] for test in facts["tests"]] for key in ("input", "output"))
    return record | {"fn_name": facts["fn_name"], "inputs": inputs, "outputs": outputs}


def content_hash(problems: Sequence[Problem]) -> str:
    """16 hex digits over questions and golds in order, whatever the ids."""
    lines = [json.dumps([problem.question, problem.answer]) for problem in problems]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


def _load(name: str, path: str | None) -> ProblemSet:
    config = BenchConfig(name=name, family=name, num_samples=1, max_tokens=1)
    return make_benchmark(replace(config, path=path)).load()


def _file_of(name: str, folder: Path) -> Path:
    other = folder / f"{_OTHER_NAMES.get(name, name)}.jsonl"
    return other if other.is_file() else folder / f"{name}.jsonl"


def _write_sums(folder: Path) -> None:
    """In the form that `sha256sum --check` reads."""
    files = sorted(folder.glob("*.jsonl"))
    sums = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    write_bytes(folder / "SHA256SUMS", "".join(sums).encode())


if __name__ == "__main__":
    sys.exit(main())
