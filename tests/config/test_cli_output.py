"""Output that cannot be written: no traceback, a status that says so, results that are safe all the same."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from growpage.store.run_dir import list_runs
from tests.config.test_cli_errors import ROOT, run_py
from tests.fake_run import job_command

CLOSED = 128 + signal.SIGPIPE
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@contextmanager
def closed_pipe() -> Iterator[int]:
    """The writing end of a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def start(command: list[str], **streams: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, text=True, timeout=60, check=False, **streams)


def through_main(code: str) -> list[str]:
    """`code` in place of what a command does, within the streams of the command line."""
    program = f"import sys\nfrom growpage import cli\ndef run(_):\n {code}\ncli._run = run\n"
    return [sys.executable, "-c", program + "sys.exit(cli.main([]))"]


@pytest.mark.parametrize("arguments", [["--help"], ["ls"], ["compare", "--help"]])
def test_reader_that_is_gone_ends_a_command_quietly(arguments: list[str], tmp_path: Path) -> None:
    with closed_pipe() as pipe:
        command = [sys.executable, str(ROOT / "run.py"), *arguments]
        done = start(command, cwd=tmp_path, stdout=pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (CLOSED, "")


def test_full_device_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, str(ROOT / "run.py"), "compare", "--help"]
        done = start(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr == "error: cannot write the output: No space left on device.\n"


def test_failure_of_the_command_outranks_that_of_its_output() -> None:
    with closed_pipe() as pipe:
        done = start(through_main("print(1); return 2"), stdout=pipe, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.parametrize("is_error_lost", [False, True])
def test_run_whose_display_is_lost_is_complete(tmp_path: Path, is_error_lost: bool) -> None:
    with closed_pipe() as pipe:
        streams = {"stdout": subprocess.PIPE, "stderr": pipe} if is_error_lost else {
            "stdout": pipe, "stderr": subprocess.PIPE,
        }  # fmt: skip
        start(job_command(tmp_path), **streams)
    (run,) = list_runs(tmp_path)
    assert run.is_complete


def test_text_outside_the_encoding_is_replaced(tmp_path: Path) -> None:
    for settings in ({"PYTHONIOENCODING": "latin-1"}, C_LOCALE):
        done = run_py("compare", "--help", cwd=tmp_path, **settings)
        assert done.returncode == 0, done.stderr
        assert "RUN" in done.stdout


@pytest.mark.parametrize("argument", [b"bench.instruction=\xe6\x97\xa5", b"paths.runs=/tmp/\xff"])
def test_argument_that_is_no_text_here_is_one_line(argument: bytes, tmp_path: Path) -> None:
    environment = {**os.environ, **C_LOCALE}
    command = [sys.executable.encode(), os.fsencode(ROOT / "run.py"), argument]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=60)
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert "Set PYTHONUTF8=1 or a UTF-8 locale." in line


def test_folder_that_was_removed_is_one_line(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = "import os, sys; os.rmdir(os.getcwd()); os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-c", code, sys.executable, str(ROOT / "run.py"), "ls"]
    done = start(command, cwd=gone, capture_output=True)
    assert done.returncode == 2
    assert done.stderr == "error: the current folder no longer exists. Change to another one.\n"


def test_interrupt_during_the_imports_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "hydra.py").write_text("raise KeyboardInterrupt\n")  # in the middle of an import
    done = run_py("--help", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, "")
