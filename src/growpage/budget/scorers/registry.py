"""The token scorers by name. A new scorer is one file and one line here."""

from growpage.budget.scorers.base import Scorer
from growpage.budget.scorers.dual_timescale import dual_timescale

SCORERS: dict[str, Scorer] = {"dual_timescale": dual_timescale}
