"""A Hydra sweeper for experiments that list their jobs instead of spanning a product.

Chosen by `override /hydra/sweeper: rows`; Hydra finds plugins in the namespace `hydra_plugins` only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper, BasicSweeperConf
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException


@dataclass
class RowSweeperConf(BasicSweeperConf):
    _target_: str = "hydra_plugins.growpage_rows.RowSweeper"
    rows: list[str] = field(default_factory=list)  # overrides of a job, separated by blanks


ConfigStore.instance().store(
    group="hydra/sweeper", name="rows", node=RowSweeperConf, provider="growpage"
)


class RowSweeper(BasicSweeper):
    """Every row, each with the product of the sweep overrides of the command line."""

    def __init__(
        self,
        max_batch_size: int | None,
        params: dict[str, str] | None = None,
        rows: Sequence[str] = (),
    ) -> None:
        super().__init__(max_batch_size, params)
        self._rows = list(rows)

    def split_arguments(  # type: ignore[override]  # static in Hydra, called on the instance
        self, overrides: list[Override], max_batch_size: int | None
    ) -> list[list[list[str]]]:
        jobs = with_rows(self._rows, BasicSweeper.split_arguments(overrides, None)[0])
        chunks = BasicSweeper.split_overrides_to_chunks(jobs, max_batch_size)
        return [list(chunk) for chunk in chunks]


def with_rows(rows: Sequence[str], jobs: list[list[str]]) -> list[list[str]]:
    """Each row before each job; `jobs` alone without rows.

    Raises HydraException when a job sets what a row sets, since one of the two would be lost.
    """
    if not rows:
        return jobs
    combined = []
    for row in rows:
        own = row.split()
        for job in jobs:
            for key in {_key(text) for text in own} & {_key(text) for text in job}:
                raise HydraException(
                    f"{key}: set by the rows of this experiment ({row}). Leave it out, or leave out experiment=."
                )
            combined.append([*own, *job])
    return combined


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
