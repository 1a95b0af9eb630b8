"""The token scorers by name. A new scorer is one file, one line here and one in `budget/scorer_settings.py`."""

from growpage.budget.scorers.base import Scorer
from growpage.budget.scorers.dual_timescale import dual_timescale
from growpage.budget.scorers.streaming_llm import streaming_llm

SCORERS: dict[str, Scorer] = {
    "dual_timescale": dual_timescale,
    "streaming_llm": streaming_llm,
}
