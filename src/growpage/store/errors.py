"""What can go wrong between a run and its files, said in one line."""

import errno
from pathlib import Path

from growpage.errors import UsageError

_CONTINUES = "and run the same command again, without fresh=true; it continues."
_ELSEWHERE = "Choose a writable folder with paths.runs=FOLDER."
_OCCUPIED = "A file stands where a folder is needed. Move it, or set paths.runs=FOLDER."
_WAYS_OUT = {
    errno.ENOSPC: f"Free some space {_CONTINUES}",
    errno.EDQUOT: f"Free some of the quota {_CONTINUES}",
    errno.EFBIG: f"Raise the file size limit (ulimit -f) {_CONTINUES}",
    errno.EROFS: _ELSEWHERE,
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.ENOTDIR: _OCCUPIED,
    errno.EEXIST: _OCCUPIED,
    errno.EISDIR: "A folder stands where a file is needed. Move it.",
}


class StoreError(RuntimeError):
    """The results could not be written. A run ends with 1; what was stored before stays valid."""


class ForeignRunError(UsageError):
    """The directory holds something that this run must not continue."""


class LockedRunError(UsageError):
    """Another process works in this run directory."""


def describe_os_error(path: Path, error: OSError) -> str:
    """'cannot write PATH: reason. way out' in one line."""
    reason = error.strerror or str(error)
    way_out = _WAYS_OUT.get(error.errno or 0, "")
    return f"cannot write {path}: {reason}." + (f" {way_out}" if way_out else "")
