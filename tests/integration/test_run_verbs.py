"""compare, ls and show over stored runs."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from growpage.errors import UsageError
from growpage.run.verbs import main
from growpage.store.atomic import write_json
from growpage.store.run_dir import RunDir, list_runs
from growpage.store.status import RunState, Status, write_status
from growpage.store.sweeps import new_record_folder, write_names
from tests.integration.test_run_session import prepare, stop_after, work

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    settings: list[dict[str, Any]] = [
        {"policy": "fullkv"},
        {"policy": "growpage"},
        {"policy": "growpage", "policy.tau": 0.25},
    ]
    for changes in settings:
        run = prepare(root, **changes)
        record = {
            "started": "2026-01-01T00:00:00+00:00", "host": "here", "overrides": ["policy=x"],
            "git": {"commit": "c" * 40, "is_dirty": True},
            "hardware": {"cpu": "a cpu", "gpus": []},
        }  # fmt: skip
        write_json(run.provenance, {"sessions": [record]})
        work(run)
    return root


def names(runs: Path, prefix: str) -> list[str]:
    return sorted(run.name for run in list_runs(runs) if run.name.startswith(prefix))


def folder(runs: Path) -> str:
    return f"paths.runs={runs}"


def test_compare_prints_runs_side_by_side_with_intervals(runs: Path, capsys: Capture) -> None:
    assert main("compare", [folder(runs), "fullkv", *names(runs, "growpage")]) == 0
    out = capsys.readouterr().out
    (accuracy,) = [line for line in out.splitlines() if "pass@1 %" in line]
    assert len(re.findall(r"\d+\.\d \[\d+\.\d, \d+\.\d\]", accuracy)) == 3
    assert "first run, paired" in out
    assert "grow / compress / shrink" in out


def test_compare_names_the_setting_in_which_like_runs_differ(runs: Path, capsys: Capture) -> None:
    main("compare", [folder(runs), *names(runs, "growpage")])
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "policy.tau" in line]
    assert sorted(line.split()[1:]) == ["0.0", "0.25"]
    main("compare", [folder(runs), "fullkv", names(runs, "growpage")[0]])
    assert "policy.tau" not in capsys.readouterr().out


def test_compare_takes_paths_and_shows_runs_that_are_not_complete(
    runs: Path, tmp_path: Path, capsys: Capture
) -> None:
    started = prepare(tmp_path)
    with pytest.raises(Exception):  # noqa: B017, PT011
        work(started, should_stop=stop_after(4))
    main("compare", [str(started.path), str(runs / names(runs, "fullkv")[0])])
    out = capsys.readouterr().out
    assert "complete" in out
    assert "state" in out


def test_many_runs_are_split_over_several_tables_and_none_is_lost(
    runs: Path, capsys: Capture
) -> None:
    all_names = [run.name for run in list_runs(runs)]
    main("compare", [folder(runs), *all_names, *all_names, *all_names])
    assert capsys.readouterr().out.count("pass@1 %") == 2


def test_ls_lists_runs_with_state_and_score(runs: Path, capsys: Capture) -> None:
    assert main("ls", [folder(runs)]) == 0
    out = capsys.readouterr().out
    for run in list_runs(runs):
        assert run.name in out
    assert out.count("complete") == 3


def test_ls_of_an_empty_folder_says_so(tmp_path: Path, capsys: Capture) -> None:
    assert main("ls", [folder(tmp_path)]) == 0
    assert "no runs in" in capsys.readouterr().out


def test_show_names_origin_configuration_and_numbers(runs: Path, capsys: Capture) -> None:
    assert main("show", [folder(runs), "fullkv"]) == 0
    out = capsys.readouterr().out
    for text in ("cccccccccccc+changes", "a cpu", "data: made up", "num_samples: 3", "pass@1"):
        assert text in out


@pytest.mark.parametrize(
    ("verb", "arguments", "words"),
    [
        ("compare", ["fulkv"], "no such run"),
        ("compare", ["growpage"], "fits several runs"),
        ("compare", [], "no sweep in .* yet: name runs"),
        ("show", ["a=" + "b" * 300], "unknown argument"),
        ("compare", ["--wide"], "unknown argument --wide"),
        ("show", [], "name one run"),
        ("ls", ["fullkv"], "Did you mean show fullkv"),
        ("cmpare", [], "Did you mean compare"),
        ("show", [""], "is empty"),
        ("show", ["a" * 300], "no such run"),
        ("show", ["~nouser/run"], "~nouser/run: the folder of that user"),
        ("ls", ["paths.runs=~nouser"], "paths.runs=~nouser: the folder of that user"),
        ("ls", ["paths.runs=/dev/null"], "paths.runs=/dev/null: must be a folder"),
    ],
)
def test_mistakes_are_one_line_with_the_way_out(
    runs: Path, verb: str, arguments: list[str], words: str
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        main(verb, [folder(runs), *arguments])
    assert "\n" not in str(caught.value)


def test_help_of_a_verb_says_how(capsys: Capture) -> None:
    assert main("compare", ["--help"]) == 0
    assert "python run.py compare [RUN RUN" in capsys.readouterr().out


@contextmanager
def damaged(path: Path, content: bytes) -> Iterator[None]:
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


@pytest.mark.parametrize("name", ["metrics.json", "status.json", "provenance.json", "config.yaml"])
@pytest.mark.parametrize("content", [b"{", b"[]", b'{"schema_version": 1}', b"\xff\xfe"])
def test_damaged_file_is_named_in_one_line(runs: Path, name: str, content: bytes) -> None:
    run = RunDir(runs / names(runs, "fullkv")[0])
    if name == "config.yaml" and content == b'{"schema_version": 1}':
        return  # a mapping, as a configuration is
    if name == "status.json":
        write_status(run.status, Status(state=RunState.ok))
    with damaged(run.path / name, content):
        with pytest.raises(UsageError, match=name.replace(".", r"\.")) as caught:
            main("show", [folder(runs), run.name])
        assert "\n" not in str(caught.value)


def test_damaged_run_is_a_row_of_ls_and_hides_no_other(runs: Path, capsys: Capture) -> None:
    run = RunDir(runs / names(runs, "fullkv")[0])
    content = run.metrics.read_bytes()
    with damaged(run.metrics, b"[" + b" " * (len(content) - 2) + b"]"):
        assert main("ls", [folder(runs)]) == 0
    out = capsys.readouterr().out
    for item in list_runs(runs):
        assert item.name in out
    assert "unreadable: cannot read" in out
    assert "metrics.json: the content is not an object" in out
    assert out.count("complete") == 2


def test_run_with_a_cut_result_is_called_damaged(runs: Path, capsys: Capture) -> None:
    run = RunDir(runs / names(runs, "fullkv")[0])
    with damaged(run.parquet, run.parquet.read_bytes()[:300]):
        main("ls", [folder(runs)])
        assert "damaged" in capsys.readouterr().out


def test_comparison_with_an_unreadable_table_is_never_called_other_questions(
    runs: Path, capsys: Capture
) -> None:
    first, other = names(runs, "growpage")
    parquet = RunDir(runs / other).parquet
    content = parquet.read_bytes()
    with damaged(parquet, content[:300]):  # the samples themselves are still there
        main("compare", [folder(runs), first, other])
        assert "other questions" not in capsys.readouterr().out
    with (
        damaged(parquet, bytes(len(content))),
        pytest.raises(UsageError, match=r"samples\.parquet.*Remove it"),
    ):
        main("compare", [folder(runs), first, other])


def test_session_without_notes_is_shown_without_them(tmp_path: Path, capsys: Capture) -> None:
    run = prepare(tmp_path)
    work(run)
    assert main("show", [str(run.path)]) == 0
    assert "session 0: – on –, no commit, –; overrides: none" in capsys.readouterr().out


def test_path_with_an_equals_sign_is_a_run(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    copy = tmp_path / "tau=0" / "run"
    shutil.copytree(runs / names(runs, "fullkv")[0], copy)
    assert main("show", [str(copy)]) == 0
    assert "pass@1" in capsys.readouterr().out


@pytest.mark.parametrize("content", ["{", "{}", "[1]"])
def test_damaged_record_of_a_sweep_is_named(tmp_path: Path, content: str) -> None:
    record = tmp_path / ".sweeps" / "2026" / "runs.json"
    record.parent.mkdir(parents=True)
    record.write_text(content)
    with pytest.raises(UsageError, match=r"cannot read .*runs\.json.*Remove it, or name runs\."):
        main("compare", [folder(tmp_path)])


def test_plot_writes_table_and_figure(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    assert main("plot", [folder(runs), "fullkv", f"out={tmp_path / 'deep' / 'figure'}"]) == 0
    out = capsys.readouterr().out
    assert "KV capacity, tokens" in out
    written = sorted(path.name for path in (tmp_path / "deep").iterdir())
    assert written == ["figure.csv", "figure.md", "figure.pdf", "figure.png"]
    assert (tmp_path / "deep" / "figure.md").read_text().startswith("| policy | pass@1 %")


def test_exported_runs_can_be_drawn_elsewhere(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "runs.parquet"
    assert main("export", [folder(runs), *names(runs, ""), f"out={file}"]) == 0
    capsys.readouterr()
    assert main("plot", [str(file), f"out={tmp_path / 'figure'}"]) == 0
    out = capsys.readouterr().out
    assert "growpage tau 0.25" in out or "growpage tau 0.0" in out
    assert str(runs) not in file.read_bytes().decode("latin-1"), "places of this machine"


def test_without_names_the_last_sweep_is_meant(runs: Path, tmp_path: Path, capsys: Capture) -> None:
    with pytest.raises(UsageError, match="no sweep in"):
        main("compare", [f"paths.runs={tmp_path}"])
    for number in range(2):
        record = new_record_folder(runs)
        record.mkdir(parents=True)
        write_names(record, names(runs, "growpage")[number:])
    assert main("compare", [folder(runs)]) == 0
    out = capsys.readouterr().out
    assert names(runs, "growpage")[1].rpartition("-")[2] in out
    assert names(runs, "growpage")[0].rpartition("-")[2] not in out


def test_export_asks_where_to(runs: Path) -> None:
    with pytest.raises(UsageError, match="out="):
        main("export", [folder(runs), "fullkv"])
    with pytest.raises(UsageError, match="unknown argument"):
        main("ls", [folder(runs), "out=x"])
