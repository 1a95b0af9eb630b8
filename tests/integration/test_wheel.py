"""A wheel brings its configuration along, and works outside a checkout."""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
FOLDERS = ("src", "conf", "models")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that holds what a wheel installs. Built by way of the source archive, as for an index."""
    pytest.importorskip("setuptools", minversion="77")
    tree = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        shutil.copy(ROOT / name, tree)
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        shutil.copytree(ROOT / name, tree / name, ignore=ignored)
    build("sdist", tree)
    shutil.unpack_archive(next(tree.glob("dist/*.tar.gz")), tree / "unpacked")
    source = next((tree / "unpacked").iterdir())
    build("wheel", source)
    folder = tree / "installed"
    with zipfile.ZipFile(next(source.glob("dist/*.whl"))) as wheel:
        wheel.extractall(folder)
    yield folder
    shutil.rmtree(tree)


def build(kind: str, source: Path) -> None:
    code = f"from setuptools import build_meta; build_meta.build_{kind}('dist')"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)


def growpage(installed: Path, cwd: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    code = "import sys; from growpage.cli import main; sys.exit(main())"
    env = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


def test_an_installed_package_composes_and_keeps_its_results_below_the_current_folder(
    installed: Path, tmp_path: Path
) -> None:
    result = growpage(installed, tmp_path, "dry_run=true", "policy=fixed")
    assert result.returncode == 0, result.stderr
    assert f"run directory: {tmp_path}/results/runs/fixed-" in result.stdout
    listing = growpage(installed, tmp_path, "ls")
    assert f"no runs in {tmp_path}/results/runs" in listing.stdout


def test_an_installed_package_finds_its_bundled_model(installed: Path, tmp_path: Path) -> None:
    result = growpage(installed, tmp_path, "dry_run=true", "bench=sequences")
    assert result.returncode == 0, result.stderr
    assert "path: bundled:sequences_reasoner" in result.stdout


def test_an_installed_package_holds_every_file_of_the_configuration(installed: Path) -> None:
    held = {path.relative_to(installed / "growpage") for path in installed.rglob("*.yaml")}
    assert held == {path.relative_to(ROOT) for path in (ROOT / "conf").rglob("*.yaml")}


def test_the_commit_of_a_folder_around_an_installed_package_is_not_its_own(
    installed: Path, tmp_path: Path
) -> None:
    code = "from growpage.run.provenance import session_record; print(session_record([])['git'])"
    env = {**os.environ, "PYTHONPATH": str(installed)}
    subprocess.run(["git", "init", "-q", str(installed)], check=True)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.stdout.strip() == "None", done.stderr
