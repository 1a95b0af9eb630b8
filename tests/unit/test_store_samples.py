"""Append files: what is written stays, what is half written goes, nothing is counted twice."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from growpage.store.errors import StoreError
from growpage.store.samples import (
    AppendFile,
    cut_half_line,
    first_by_key,
    last_by_key,
    read_records,
    read_rows,
)
from growpage.store.schema import SampleRow, SampleTimes, VerdictRow, row_from_dict, row_to_dict
from growpage.store.shapes import EVENT_SHAPE


def sample(problem_id: str = "q1", index: int = 0, text: str = "four") -> SampleRow:
    return SampleRow(
        problem_id=problem_id,
        sample_index=index,
        seed=2**62 + index,
        config_hash="0badcafe",
        kind="",
        prompt_hash="beef",
        num_prompt_tokens=7,
        token_ids=(4, 2),
        text=text,
        finish_reason="stop",
        times=SampleTimes(arrival_s=0.0, first_token_s=0.5, finished_s=1.25),
        counters={"grow": 2},
    )


def verdict(correct: bool, version: str = "1") -> VerdictRow:
    return VerdictRow(
        problem_id="q1",
        sample_index=0,
        seed=2**62,
        config_hash="0badcafe",
        grader="math",
        grader_version=version,
        grader_hash="12345678",
        correct=correct,
        reason="compared",
        flags=("unreduced",),
    )


@contextmanager
def small_files() -> Iterator[None]:
    """No file of this process may exceed 600 bytes; holds for root too.

    Only around the writes: pytest's own output may be a file as well.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def write_rows(path: Path, *rows: SampleRow) -> None:
    with AppendFile(path) as file:
        file.append_rows(*rows)


@pytest.mark.parametrize("text", ["plain", "line\nbreak\u2028and\x0bmore", "½ 😀", ""])
def test_row_survives_the_disk_unchanged(tmp_path: Path, text: str) -> None:
    row = sample(text=text)
    write_rows(tmp_path / "samples.jsonl", row, sample("q2"))
    assert read_rows(tmp_path / "samples.jsonl", SampleRow) == [row, sample("q2")]


def test_every_record_is_one_line(tmp_path: Path) -> None:
    write_rows(tmp_path / "samples.jsonl", sample(text="a\nb"), sample("q2"))
    lines = (tmp_path / "samples.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["problem_id"] for line in lines] == ["q1", "q2"]


def test_appended_line_is_visible_before_the_file_is_closed(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "samples.jsonl")
    file.append_rows(sample())
    assert len(read_rows(tmp_path / "samples.jsonl", SampleRow)) == 1
    file.close()


def test_verdict_keeps_its_flags(tmp_path: Path) -> None:
    with AppendFile(tmp_path / "verdicts.jsonl") as file:
        file.append_rows(verdict(True))
    assert read_rows(tmp_path / "verdicts.jsonl", VerdictRow) == [verdict(True)]


@pytest.mark.parametrize("num_bytes", [1, 20, 200])
def test_half_last_line_is_cut_off_and_reported(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "samples.jsonl"
    write_rows(path, sample())
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:num_bytes])
    assert cut_half_line(path) == num_bytes
    assert path.read_bytes() == whole


def test_last_line_without_newline_is_cut_off_even_if_it_reads_well(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    write_rows(path, sample(), sample("q2"))
    path.write_bytes(path.read_bytes()[:-1])
    assert cut_half_line(path) > 0
    assert [row.problem_id for row in read_rows(path, SampleRow)] == ["q1"]


def test_zeros_left_by_a_power_cut_are_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    write_rows(path, sample())
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0" * 64 + b"\n")
    assert cut_half_line(path) == 65
    assert path.read_bytes() == whole


def test_whole_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    assert cut_half_line(path) == 0
    write_rows(path, sample())
    assert cut_half_line(path) == 0


def test_half_last_line_is_not_read_by_onlookers(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    write_rows(path, sample())
    path.write_bytes(path.read_bytes() + b'{"schema')
    assert len(read_records(path)) == 1


def test_damaged_line_in_the_middle_is_named_not_skipped(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    write_rows(path, sample(), sample("q2"))
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first[:-9] + b"\n" + second + b"\n")
    with pytest.raises(StoreError, match=r"samples\.jsonl:1 is damaged"):
        read_rows(path, SampleRow)


def test_row_of_a_newer_schema_is_refused() -> None:
    record = row_to_dict(sample()) | {"schema_version": 99}
    with pytest.raises(ValueError, match="schema_version 99"):
        row_from_dict(SampleRow, record)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("text", None), ("token_ids", ["1"]), ("token_ids", "12"), ("sample_index", "0"),
        ("problem_id", ["q1"]), ("times", {"arrival_s": "x"}), ("times", 3), ("counters", [1]),
        ("finish_reason", 7), ("capacity", {"peak_capacity_tokens": "x"}),
    ],
)  # fmt: skip
def test_value_of_a_wrong_kind_is_named_by_line(tmp_path: Path, name: str, value: object) -> None:
    path = tmp_path / "samples.jsonl"
    with AppendFile(path) as file:
        file.append(row_to_dict(sample()), row_to_dict(sample("q2")) | {name: value})
    with pytest.raises(StoreError, match=r"samples\.jsonl:2 is damaged"):
        read_rows(path, SampleRow)


@pytest.mark.parametrize(
    "line", ["[]", '{"session": "a"}', '{"totals": {"wall_s": 1}}', "7", "[" * 100_000]
)
def test_event_of_a_wrong_kind_is_named_by_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text(f'{line}\n{{"session": 0}}\n')
    with pytest.raises(StoreError, match=r"events\.jsonl:1 is damaged"):
        read_records(path, EVENT_SHAPE)


def test_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").mkdir()
    for read in (read_records, cut_half_line):
        with pytest.raises(StoreError, match=r"samples\.jsonl: Is a directory\. Move it away\."):
            read(tmp_path / "samples.jsonl")


def test_first_sample_of_a_key_wins_and_last_verdict_does() -> None:
    first, second = sample(text="first"), sample(text="second")
    assert list(first_by_key([first, second]).values()) == [first]
    assert list(last_by_key([verdict(False), verdict(True)]).values()) == [verdict(True)]


def test_write_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    file = AppendFile(path)
    file.append({"text": "x" * 300})
    before = path.read_bytes()
    too_large = pytest.raises(StoreError, match=r"samples\.jsonl: File too large.*ulimit")
    with too_large, small_files():
        file.append({"text": "y" * 500})
    assert path.read_bytes() == before
    file.append({"text": "short"})  # and it goes on when there is room
    file.close()
    assert len(read_records(path)) == 2


def test_rows_of_one_call_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "events.jsonl")
    with pytest.raises(StoreError), small_files():
        file.append({"text": "x" * 400}, {"text": "y" * 400})
    file.close()
    assert (tmp_path / "events.jsonl").read_bytes() == b""


def test_nan_is_refused_rather_than_written(tmp_path: Path) -> None:
    file = AppendFile(tmp_path / "events.jsonl")
    with pytest.raises(ValueError, match="not JSON compliant"):
        file.append({"delta": float("nan")})
    file.close()
