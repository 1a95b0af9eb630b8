"""compare, ls and show over stored runs."""

import re
from pathlib import Path
from typing import Any

import pytest

from growpage.errors import UsageError
from growpage.run.verbs import main
from growpage.store.atomic import write_json
from growpage.store.run_dir import RunDir, list_runs
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
        ("compare", [], "name at least one run"),
        ("compare", ["--wide"], "unknown argument --wide"),
        ("show", [], "name one run"),
        ("ls", ["fullkv"], "Did you mean show fullkv"),
        ("cmpare", [], "Did you mean compare"),
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
    assert "python run.py compare RUN RUN" in capsys.readouterr().out


def test_damaged_metrics_are_named(runs: Path) -> None:
    run = RunDir(runs / names(runs, "fullkv")[0])
    content = run.metrics.read_bytes()
    run.metrics.write_bytes(content[:50])
    try:
        with pytest.raises(UsageError, match=r"cannot read .*metrics\.json"):
            main("ls", [folder(runs)])
    finally:
        run.metrics.write_bytes(content)
