"""What math-verify may see: cheap to say, so that no worker is started for what it may not."""

import re

from growpage.grade.unit_names import words

_MAX_CHARS = 400
_MAX_DEPTH = 8
_COMMANDS = words(
    """frac dfrac tfrac sqrt pi sin cos tan cot sec csc ln log exp infty cup cap setminus in
    le leq ge geq ne neq lt gt times cdot div pm left right sum prod int lim to mathbb
    alpha beta gamma delta theta lambda mu phi omega quad circ backslash emptyset"""
)
_SET_SPELLINGS = re.compile(r"\\(?:setminus|backslash|mathbb|cap|neq?)(?![A-Za-z])")
_SUBSCRIPTED = re.compile(r"\\(?:sum|prod|int|lim|log)\s*(?:\\limits\s*)?_")
_REFUSED = re.compile(r"[0-9]{13}|[0-9]\.|\.[0-9]|[-+]\s*[-+]|[!%$&~'\"@_]|\\[^A-Za-z{}]")
_LARGE_POWER = re.compile(r"\^\s*(?:[0-9]{3}|\{[^{}]*(?:[\^{]|[0-9]{3}))")


def is_guarded(text: str) -> bool:
    """Whether a text is short and shallow, with no number that it rounds and nothing that it drops.

    math-verify rounds to six places, drops units, base subscripts, dots and one of two signs, and
    computes any power.
    """
    commands = re.findall(r"\\([A-Za-z]+)", text)
    return (
        0 < len(text) <= _MAX_CHARS
        and all(command in _COMMANDS for command in commands)
        and _depth(text) <= _MAX_DEPTH
        and not _REFUSED.search(_SUBSCRIPTED.sub(" ", text))
        and not _LARGE_POWER.search(text)
    )


def spells_a_set(text: str) -> bool:
    """Whether it has a spelling of sets that our own grammar lacks."""
    return bool(_SET_SPELLINGS.search(text))


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        depth += (char in "({[") - (char in ")}]")
        deepest = max(deepest, depth)
    return deepest
