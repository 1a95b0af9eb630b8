"""A data frame as a Markdown table with its source below, and as CSV beside it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from growpage.store.atomic import make_folder, write_bytes

if TYPE_CHECKING:
    import pandas as pd


def write_table(table: "pd.DataFrame", stem: Path, footer: str) -> list[Path]:
    """Write stem.md and stem.csv; return them. Raises StoreError."""
    rows = [[str(value) for value in row] for row in table.itertuples(index=False)]
    markdown = markdown_table([str(name) for name in table.columns], rows, footer)
    make_folder(stem.parent)
    paths = [stem.with_name(stem.name + suffix) for suffix in (".md", ".csv")]
    write_bytes(paths[0], markdown.encode())
    write_bytes(paths[1], table.to_csv(index=False, lineterminator="\n").encode())
    return paths


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], footer: str) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in lines) + f"\n\n{footer}\n"
