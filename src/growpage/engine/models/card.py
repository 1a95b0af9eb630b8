"""The hash that a model card names for its weights. No torch."""

import hashlib
import re
from pathlib import Path

from growpage.errors import UsageError

CARD = "README.md"
WEIGHTS = "model.safetensors"
_HASH = re.compile(rf"`{re.escape(WEIGHTS)}` sha256: `([0-9a-f]{{64}})`")


def hash_line(folder: Path) -> str:
    """The line of a card that `named_sha256` finds again."""
    return f"`{WEIGHTS}` sha256: `{file_sha256(folder / WEIGHTS)}`"


def named_sha256(folder: Path) -> str | None:
    """The hash that the card names; None without a card or a hash in it."""
    card = folder / CARD
    match = _HASH.search(card.read_text(encoding="utf-8")) if card.is_file() else None
    return match.group(1) if match else None


def check_weights(folder: Path) -> None:
    """Raise `UsageError` when the card names another hash than the weights have."""
    named, weights = named_sha256(folder), folder / WEIGHTS
    if named is None or not weights.is_file():
        return
    found = file_sha256(weights)
    if found != named:
        raise UsageError(
            f"{weights}: sha256 {found[:12]}... is not the {named[:12]}... of its card ({CARD})."
            " The file is corrupt or from another run; restore it."
        )


def file_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(2**20):
            digest.update(chunk)
    return digest.hexdigest()
