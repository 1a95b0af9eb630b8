"""The child of `growpage.run.regrade`: grades the stored samples of a run and writes its results anew."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from growpage.config import Config, PathsConfig, Stage
from growpage.errors import EXIT_FAILED, EXIT_USAGE, UsageError
from growpage.run.build import REAL_PARTS
from growpage.run.frozen import thaw
from growpage.run.report import make_console
from growpage.run.session import Session
from growpage.store.errors import StoreError
from growpage.store.run_dir import RunDir


class _Regrading(Session):
    """A session that looks for the samples of a run under the hash with which they were stored."""

    def __init__(self, run: RunDir, config: Config, stored_hash: str) -> None:
        super().__init__(run, config, REAL_PARTS)
        self._hash = stored_hash


def main(argv: Sequence[str]) -> int:
    """Work on the run directory `argv[0]`. Returns 0, 1 (failed) or 2 (the user can mend it)."""
    run = RunDir(Path(argv[0]))
    try:
        with run.lock_for_worker():
            config = replace(
                thaw(run.config), stage=Stage.grade, paths=PathsConfig(runs=str(run.path.parent))
            )
            _Regrading(run, config, _stored_hash(run)).run()
    except (UsageError, StoreError) as error:
        make_console(is_error=True).print(f"error: {error}", markup=False, soft_wrap=True)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILED
    return 0


def _stored_hash(run: RunDir) -> str:
    stored = (run.read_provenance() or {}).get("config_hash")
    return stored if isinstance(stored, str) else run.name.rpartition("-")[2]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
