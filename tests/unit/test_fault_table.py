"""Every known fault has a test, or the table says which part of the system its test waits for."""

import ast
import csv
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
FAMILIES = {"ST": 4, "PO": 3, "SH": 7, "SC": 5, "BA": 7, "PC": 2, "PA": 5, "EV": 3, "EL": 13}


def _rows() -> list[dict[str, str]]:
    with (TESTS / "faults.csv").open(newline="") as file:
        return list(csv.DictReader(file))


@cache
def _functions(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_the_table_holds_every_fault_once() -> None:
    ids = [row["id"] for row in _rows()]
    assert len(ids) == len(set(ids))
    assert Counter(name.split("-")[0] for name in ids) == FAMILIES
    numbers = {family: range(1, count + 1) for family, count in FAMILIES.items()}
    assert set(ids) == {f"{family}-{n}" for family, count in numbers.items() for n in count}


@pytest.mark.parametrize("row", _rows(), ids=lambda row: row["id"])
def test_faults_have_a_test_that_exists_or_wait_for_a_part(row: dict[str, str]) -> None:
    tests = row["tests"].split()
    assert tests or row["waits_for"], "neither a test nor a part to wait for"
    assert row["fault"]
    for name in tests:
        assert re.fullmatch(r"\w+/test_\w+\.py::test_\w+", name), name
        file, function = name.split("::")
        assert function in _functions(file), f"{name} does not exist"
