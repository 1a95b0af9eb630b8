"""What a user did wrong, said in one line: key, value, what is allowed, the way out."""

from collections.abc import Iterable
from difflib import get_close_matches

EXIT_FAILED, EXIT_USAGE = 1, 2  # exit statuses of every command; 128 + N: ended by signal N


class UsageError(ValueError):
    """A mistake of the user. The command line prints it without a traceback and exits with 2."""


def require(condition: bool, key: str, value: object, allowed: str, hint: str = "") -> None:
    """Raise `UsageError` "key=value: must be allowed. hint" unless `condition` holds.

    Write conditions so that NaN fails: `lo <= x <= hi`, never `not x < lo`.
    """
    if not condition:
        raise UsageError(f"{key}={value}: must be {allowed}." + (f" {hint}" if hint else ""))


def closest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """' Did you mean X?', X with `prefix` before it, or '' when nothing is near."""
    matches = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {prefix}{matches[0]}?" if matches else ""


def unknown(key: str, value: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is in no registry: lists the known names and the closest."""
    names = sorted(known)
    return UsageError(f"{key}={value}: unknown. Known: {', '.join(names)}.{closest(value, names)}")
