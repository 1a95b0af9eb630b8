"""Questions from a file of JSON lines, with errors that name the line."""

import json
from dataclasses import dataclass
from pathlib import Path

from growpage.errors import UsageError, closest


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One question before its gold answer is normalised. `place` is for errors."""

    id: str | None
    question: str
    answer: str
    place: str


def read_rows(path: str) -> list[Row]:
    """All rows of a UTF-8 file with one JSON object a line; blank lines are skipped.

    Numbers are taken as they are written (27.0 becomes "27.0"). Raises `UsageError` that names
    file, line and what to change.
    """
    rows = [
        _row(line, f"{path}, line {number}")
        for number, line in enumerate(_read_text(path).split("\n"), start=1)
        if line.strip()
    ]
    if not rows:
        raise UsageError(
            f"bench.path={path}: no questions in this file. "
            "It needs one JSON object a line, with question and answer."
        )
    return rows


def read_objects(path: str) -> list[tuple[str, dict[str, object]]]:
    """(place, JSON object) of every line that is not blank; numbers are numbers. Raises `UsageError`."""
    objects = []
    for number, line in enumerate(_read_text(path).split("\n"), start=1):
        if line.strip():
            place = f"{path}, line {number}"
            objects.append((place, _parse(line, place, are_numbers_text=False)))
    if not objects:
        raise UsageError(f"bench.path={path}: no problems in this file. It needs one a line.")
    return objects


def _read_text(path: str) -> str:
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise UsageError(
            f"bench.path={path}: no such file. Relative paths count from {Path.cwd()}."
        ) from None
    except OSError as error:
        raise UsageError(f"bench.path={path}: cannot be read ({error.strerror}).") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}, line {line}: not UTF-8 (byte {content[error.start]:#04x}). "
            "Save the file as UTF-8, for example with iconv -t utf-8."
        ) from None


def _row(line: str, place: str) -> Row:
    record = _parse(line, place)
    if "generation" in record:
        raise UsageError(
            f"{place}: has a column 'generation', so this is a file of model outputs. "
            "Give bench.path the questions, or remove the column."
        )
    return Row(
        id=_text(record, "id", place) if record.get("id") is not None else None,
        question=_text(record, "question", place),
        answer=_text(record, "answer", place),
        place=place,
    )


def _parse(line: str, place: str, *, are_numbers_text: bool = True) -> dict[str, object]:
    number = str if are_numbers_text else None
    try:
        record = json.loads(line, parse_int=number, parse_float=number)
    except (ValueError, RecursionError) as error:  # ValueError: also of a number without end
        what = "nested too deeply" if isinstance(error, RecursionError) else _what(error)
        raise UsageError(
            f"{place}: not valid JSON ({what}). Each line must be one JSON object."
        ) from None
    if not isinstance(record, dict):
        kind = "text or number" if isinstance(record, str) else type(record).__name__
        raise UsageError(
            f'{place}: a JSON {kind}, not an object. Write {{"question": ..., "answer": ...}}.'
        )
    return record


def _what(error: ValueError) -> str:
    return error.msg if isinstance(error, json.JSONDecodeError) else str(error)


def _text(record: dict[str, object], column: str, place: str) -> str:
    if column not in record:
        found = ", ".join(record) or "none"
        raise UsageError(
            f"{place}: no column '{column}' (found: {found}). Rename the column that holds the "
            f"{column} to '{column}'.{closest(column, record)}"
        )
    value = record[column]
    if not isinstance(value, str):
        raise UsageError(
            f"{place}: '{column}' is {json.dumps(value)}, but must be a text or a number."
        )
    if not value.isascii() and value != value.encode(errors="replace").decode():
        raise UsageError(
            f"{place}: '{column}' has half of a UTF-16 pair (\\ud800 to \\udfff), which is no text. "
            "Write the whole character."
        )
    if not value.strip():
        raise UsageError(f"{place}: '{column}' is empty. Fill it in or remove the line.")
    return value
