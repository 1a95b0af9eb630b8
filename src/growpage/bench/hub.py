"""Questions from the Hugging Face hub. `datasets` is imported only when a data set is loaded."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from growpage.bench.jsonl import Row
from growpage.errors import UsageError, require


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """One split of a hub data set at a commit, and how its columns are called."""

    hub_id: str
    hub_config: str | None = None
    split: str = "test"
    revision: str | None = None
    num_problems: int | None = None
    question_columns: tuple[str, ...] = ("question", "problem")
    answer_columns: tuple[str, ...] = ("answer",)
    id_columns: tuple[str, ...] = ("id", "unique_id")

    def __str__(self) -> str:
        parts = [self.hub_id, *([self.hub_config] if self.hub_config else []), self.split]
        return f"hub:{'/'.join(parts)}"


def check_revision(revision: str | None) -> None:
    """Refuse branch names: a branch moves, and then one config hash stands for two data sets."""
    require(
        revision is None or bool(re.fullmatch(r"[0-9a-f]{40}", revision)),
        "bench.revision",
        revision,
        "a commit of 40 hex digits, or null for the newest",
        "The commit stands on the data set's page under Files, History.",
    )


def read_hub(source: HubSource) -> tuple[list[Row], str]:
    """The rows of a split, and the commit they came from ("newest" when the hub did not say)."""
    dataset = _load(source)
    question, answer, identity = (
        _column(dataset.column_names, names)
        for names in (source.question_columns, source.answer_columns, source.id_columns)
    )
    if question is None or answer is None:
        wanted = " and ".join("/".join(n) for n in (source.question_columns, source.answer_columns))
        raise UsageError(
            f"bench.hub_id={source.hub_id}: needs columns {wanted}, has "
            f"{', '.join(dataset.column_names)}. {_WAY_OUT}"
        )
    if "generation" in dataset.column_names:
        raise UsageError(
            f"bench.hub_id={source.hub_id}: has a column 'generation', so these are model outputs. "
            "Name a data set of questions."
        )
    rows = [
        Row(
            id=str(record[identity]) if identity is not None else None,
            question=str(record[question]),
            answer=str(record[answer]),
            place=f"{source}, row {number}",
        )
        for number, record in enumerate(dataset)
    ]
    return rows, source.revision or _commit(dataset)


def read_hub_records(
    source: HubSource, columns: tuple[str, ...]
) -> tuple[int, Iterator[dict[str, Any]], str]:
    """How many rows a split has, the rows as they are one by one, and their commit.

    Raises `UsageError` unless it has `columns`.
    """
    dataset = _load(source)
    if absent := [name for name in columns if name not in dataset.column_names]:
        raise UsageError(
            f"bench.hub_id={source.hub_id}: has no column {', '.join(absent)} (found: "
            f"{', '.join(dataset.column_names)}). {_WAY_OUT}"
        )
    return len(dataset), iter(dataset), source.revision or _commit(dataset)


_WAY_OUT = (
    "Without the hub: bench.path=FILE, one JSON object a line with question, answer and perhaps id."
)


def _load(source: HubSource) -> Any:
    import datasets

    try:
        return datasets.load_dataset(
            source.hub_id, source.hub_config, split=source.split, revision=source.revision
        )
    except (OSError, ValueError, RuntimeError) as error:
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(
            f"bench.hub_id={source.hub_id}: cannot be loaded from the hub ({first_line}). "
            + _WAY_OUT
        ) from error


def _column(columns: list[str], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in columns), None)


def _commit(dataset: Any) -> str:
    """The commit in the addresses that `datasets` recorded (hf://datasets/owner/name@commit/file)."""
    for address in dataset.info.download_checksums or ():
        if match := re.search(r"@([0-9a-f]{40})/", str(address)):
            return match.group(1)
    return "newest"
