"""The program that an output commits to, or none (docs/graders.md §7). Linear in the length of the output."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from growpage.grade.extraction import split_reasoning

_FENCE = re.compile(r"^([ \t]*)(`{3,}|~{3,})[ \t]*([^\n`]*)$")
_PYTHON = frozenset({"", "python", "py", "python3"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """`program`, or None; then `reason` says why. `in_reasoning`: the only block stands in the reasoning."""

    program: str | None
    reason: str = ""
    in_reasoning: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    language: str
    lines: list[str]
    is_closed: bool


def find_program(text: str, *, reasoning_open: bool = False) -> Found:
    """The last complete block of the final part that is marked python, py or not at all."""
    text = text.encode("utf-8", "replace").decode("utf-8").replace("\r\n", "\n")
    reasoning, final, is_open = split_reasoning(text, reasoning_open)
    if is_open:
        return Found(
            program=None,
            reason="the think block was never closed",
            in_reasoning=_last_python(reasoning) is not None,
        )
    blocks = list(_blocks(final))
    if blocks and not blocks[-1].is_closed:
        return Found(program=None, reason="the last block of code was never closed")
    program = _last_python(final)
    if program is None:
        is_hidden = _last_python(reasoning) is not None
        return Found(program=None, reason="no block of Python", in_reasoning=is_hidden)
    return Found(program=program)


def find_program_as_lcb(text: str) -> Found:
    """What LiveCodeBench takes: the lines between the last two with a fence, wherever they stand."""
    lines = text.encode("utf-8", "replace").decode("utf-8").split("\n")
    fences = [index for index, line in enumerate(lines) if "```" in line]
    if len(fences) < 2:
        return Found(program=None, reason="no two fences")
    return Found(program="\n".join(lines[fences[-2] + 1 : fences[-1]]))


def _last_python(text: str) -> str | None:
    program = None
    for block in _blocks(text):
        if block.is_closed and block.language in _PYTHON and any(map(str.strip, block.lines)):
            program = "\n".join(block.lines) + "\n"
    return program


def _blocks(text: str) -> Iterator[_Block]:
    """Fenced blocks in order; the indentation of a fence is taken off its lines."""
    fence, language, indent = "", "", 0
    lines: list[str] = []
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if not fence:
            if match:
                indent, fence = len(match.group(1)), match.group(2)
                language = (match.group(3).split() or [""])[0].lower()
                lines = []
        elif match and _closes(match, fence):
            yield _Block(language=language, lines=lines, is_closed=True)
            fence = ""
        else:
            own = len(line) - len(line.lstrip(" \t"))
            lines.append(line[min(indent, own) :])
    if fence:
        yield _Block(language=language, lines=lines, is_closed=False)


def _closes(match: "re.Match[str]", fence: str) -> bool:
    mark = match.group(2)
    return mark[0] == fence[0] and len(mark) >= len(fence) and not match.group(3).strip()
