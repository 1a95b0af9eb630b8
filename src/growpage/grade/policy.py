"""What counts as the same answer: one field a decision (docs/graders.md §3).

A lenient acceptance leaves a flag on its verdict. Fields named `accept_…` refuse what carries their flags when
they are false; the others change the comparison itself.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from growpage.errors import require, unknown

MARK_FLAGS = tuple(
    f"{mark}_{change}"
    for mark in ("unit", "variable", "base", "modulus")
    for change in ("added", "omitted")
)


@dataclass(slots=True, kw_only=True)
class MathPolicy:
    """The defaults are the project's; another choice gives another grader version."""

    accept_answer_in_reasoning: bool = False  # a box that stands only inside the think block
    accept_truncated: bool = True  # a closed box of an output that hit its token limit
    accept_number_formats: bool = True  # 073 and 73.0 and 7,300 for 73, 73 and 7300
    accept_marks: bool = True  # unit, currency, degree, percent, base, "x =" left out or added
    accept_unreduced: bool = True  # 6/4, 2^{10}, 1/\sqrt{2}
    accept_mixed_numbers: bool = True  # 3\frac12 for 7/2
    accept_bare_tuples: bool = True  # 1,2 for (1,2)
    accept_inequalities: bool = True  # x>2 for (2,\infty)
    accept_scaled_equations: bool = True  # 2x+2y=4 for x+y=2
    accept_choice_labels: bool = True  # (C) 12 for 12 or for (C)
    percent_scales: bool = False  # 28\% is 0.28
    radians_answer_degrees: bool = False  # \pi/2 for 90^\circ
    tolerance: float = 0.0  # relative, for a decimal against any number; 0: exact
    any_of_several: bool = False  # "5 or 6" answers 5
    lists_are_ordered: bool = False
    interval_ends_matter: bool = True
    matrix_brackets_matter: bool = False
    case_matters: bool = False  # in words

    def __post_init__(self) -> None:
        require(0.0 <= self.tolerance < 1.0, "grader.policy.tolerance", self.tolerance, "in [0, 1)")

    def sha8(self) -> str:
        """Eight hex digits that change with any decision."""
        return _sha8(asdict(self))

    def refused(self, flag: str) -> bool:
        """Whether an acceptance under this flag is not allowed."""
        return not getattr(self, _FIELD_OF_FLAG[flag]) if flag in _FIELD_OF_FLAG else False


@dataclass(slots=True, kw_only=True)
class CodePolicy:
    """How programs are found and compared (docs/graders.md §7)."""

    extract: str = (
        "final"  # the last complete block behind the reasoning; "lcb": between the last fences
    )
    compare: str = "strict"  # exact JSON types, verifiers; "lcb": equality only, 1 equals true

    def __post_init__(self) -> None:
        for name, known in (("extract", ("final", "lcb")), ("compare", ("strict", "lcb"))):
            if getattr(self, name) not in known:
                raise unknown(f"grader.code.{name}", getattr(self, name), known)

    def sha8(self) -> str:
        """Eight hex digits that change with any decision."""
        return _sha8(asdict(self))


def _sha8(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


_FIELD_OF_FLAG = {
    **dict.fromkeys(MARK_FLAGS, "accept_marks"),
    "answer_in_reasoning_only": "accept_answer_in_reasoning",
    "truncated": "accept_truncated",
    "number_format": "accept_number_formats",
    "unreduced": "accept_unreduced",
    "unevaluated": "accept_unreduced",
    "unrationalised": "accept_unreduced",
    "mixed_number": "accept_mixed_numbers",
    "bare_tuple": "accept_bare_tuples",
    "inequality": "accept_inequalities",
    "scaled_equation": "accept_scaled_equations",
    "choice_label_added": "accept_choice_labels",
    "choice_value_added": "accept_choice_labels",
}
