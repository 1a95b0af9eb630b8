"""Where files are. The project's own: in a checkout, or in an installed package that holds copies."""

from pathlib import Path

from growpage.errors import UsageError

_PACKAGE = Path(__file__).resolve().parent
_SOURCES, _ABOVE = _PACKAGE.parent, _PACKAGE.parents[1]
_IS_CHECKOUT = _SOURCES.name == "src" and (_ABOVE / "pyproject.toml").is_file()

CHECKOUT = _ABOVE if _IS_CHECKOUT else None
_FILES = CHECKOUT or _PACKAGE  # setup.py copies these folders into a wheel
CONFIG_FOLDER = _FILES / "conf"
MODELS_FOLDER = _FILES / "models"


def default_runs_folder() -> Path:
    """results/runs in the checkout; for an installed package, below the folder of the command."""
    return (CHECKOUT or Path.cwd()) / "results" / "runs"


def expand(path: str, shown: str) -> Path:
    """`path` with ~ and ~user replaced. Raises `UsageError`, beginning with `shown`, without such a user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{shown}: the folder of that user is not known here.") from error
