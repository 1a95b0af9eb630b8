"""The token scorers by name. A new scorer is one file, one line here and one in `budget/scorer_settings.py`."""

from growpage.budget.scorers.base import Scorer
from growpage.budget.scorers.dual_timescale import dual_timescale
from growpage.budget.scorers.gkv import gkv
from growpage.budget.scorers.h2o import h2o
from growpage.budget.scorers.morphkv import morphkv
from growpage.budget.scorers.rkv import rkv
from growpage.budget.scorers.snapkv import snapkv
from growpage.budget.scorers.streaming_llm import streaming_llm
from growpage.budget.scorers.zipage import zipage

SCORERS: dict[str, Scorer] = {
    "dual_timescale": dual_timescale,
    "streaming_llm": streaming_llm,
    "snapkv": snapkv,
    "h2o": h2o,
    "rkv": rkv,
    "gkv": gkv,
    "morphkv": morphkv,
    "zipage": zipage,
}
