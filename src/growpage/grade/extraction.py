"""The one answer that an output commits to, or none (docs/graders.md §2). Linear in the length of the output."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from growpage.grade.text import END_THINK, THINK, clean

_PIECES = re.compile(r"\\\\(?!boxed|fbox)|\\(?:boxed|fbox)(?![A-Za-z])|\\[{}]|[{}]")
_BARE_ARGUMENT = re.compile(r"\s*(-?[0-9]+(?:[.,][0-9]+)*)")
_NEXT_BRACE = re.compile(r"\s*\{")
_JOINT = re.compile(
    r"(?:\s|,|\$|\\[()\[\],;: ]|\\q?quad|\*\*|and|or|和|或|\\(?:text|mbox|textrm)\s*\{\s*(?:and|or)\s*\})*"
)
_CONNECTIVE = re.compile(r",|and|or|和|或")
_MAX_JOINT_CHARS = 120
_FINAL_LINE = re.compile(
    r"""(?:
        ^\s*\#{4}(?!\#)\s*(?=[-+]?[0-9.$\\(\[])(?![0-9]+[.)]\s+[A-Za-z*])  # no numbered heading
      | (?:\bfinal\ answer|\banswer)\**\s*(?:\bis\b|[:=])
      | ^[\s*\#]*final\ answer[\s*]*$
      | 最终答案\**\s*(?:是|为|:)? | 答案\**\s*(?:是|为|:)
    )""",
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """`answer` is LaTeX as written, or None; then `reason` says why. `in_reasoning`: only there is one."""

    answer: str | None
    rule: str
    reason: str = ""
    in_reasoning: bool = False


def extract(
    text: str,
    *,
    reasoning_open: bool = False,
    is_cut: bool = False,
    reads: Callable[[str], bool] = bool,
) -> Extraction:
    """The last box of the final part, else its last explicit final-answer line.

    reasoning_open: the prompt ended inside a think block. is_cut: the output hit its token limit.
    reads: whether a line reads as an answer as a whole; asked for answers without a box only.
    """
    text = clean(text)
    reasoning, final, is_open = split_reasoning(text, reasoning_open)
    if is_open:
        return _none("the think block was never closed", _has_box(reasoning))
    boxes, box_is_open = find_boxes(final, is_cut)
    if box_is_open:
        return _none("the last box was never closed", False)
    if boxes:
        return Extraction(answer=_last_answer(final, boxes), rule="box")
    line = _final_line(final)
    if line is not None and reads(line):
        return Extraction(answer=line, rule="final_line")
    why = (
        "no box and no final-answer line" if line is None else "the final-answer line is no answer"
    )
    return _none(why, _has_box(reasoning))


def extract_anywhere(text: str) -> Extraction:
    """The last box wherever it stands, also inside the reasoning; open boxes are passed over."""
    text = clean(text)
    boxes, _ = find_boxes(text)
    if not boxes:
        return _none("no box", False)
    return Extraction(answer=_last_answer(text, boxes), rule="box", in_reasoning=True)


def split_reasoning(text: str, reasoning_open: bool) -> tuple[str, str, bool]:
    """(reasoning, final part, whether a think block is open at the end)."""
    close = text.rfind(END_THINK)
    final = text[close + len(END_THINK) :] if close >= 0 else text
    if THINK in final or (close < 0 and reasoning_open):
        return text, "", True
    return (text[:close] if close >= 0 else ""), final, False


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    start: int
    end: int
    content: str


def find_boxes(text: str, is_cut: bool = False) -> tuple[list[Box], bool]:
    """Outermost boxes that are not empty, in order, and whether one is open at the end of the text."""
    boxes: list[Box] = []
    stack: list[tuple[int, int] | None] = []  # a box's (start, content start), or None for a brace
    depth = 0  # boxes on the stack
    skip_until = 0
    last = len(text.rstrip())
    for match in _PIECES.finditer(text):
        start, end, piece = match.start(), match.end(), match.group()
        if start < skip_until:
            continue
        if piece.endswith(("box", "boxed")):
            if brace := _NEXT_BRACE.match(text, end):
                stack.append((start, brace.end()))
                depth += 1
                skip_until = brace.end()
            elif depth == 0:
                bare = _BARE_ARGUMENT.match(text, end)
                if is_cut and (bare.end() if bare else end) >= last:
                    return boxes, True
                if bare:
                    boxes.append(Box(start=start, end=bare.end(), content=bare.group(1)))
        elif piece == "{":
            stack.append(None)
        elif piece == "}" and stack:
            top = stack.pop()
            if top is None:
                continue
            depth -= 1
            if depth == 0:
                content = _unwrap(text[top[1] : start])
                if content.strip(" \n\t$~{}"):
                    boxes.append(Box(start=top[0], end=end, content=content))
    return boxes, depth > 0


def _unwrap(content: str) -> str:
    """The content without the boxes in it: what stands in an inner box stays."""
    if "box" not in content:
        return content.strip()
    parts: list[str] = []
    stack: list[bool] = []
    position = 0
    for match in _PIECES.finditer(content):
        if match.start() < position:
            continue
        piece = match.group()
        if piece.endswith(("box", "boxed")):
            brace = _NEXT_BRACE.match(content, match.end())
            parts.append(content[position : match.start()])
            position = brace.end() if brace else match.end()
            if brace:
                stack.append(True)
        elif piece == "{":
            stack.append(False)
        elif piece == "}" and stack and stack.pop():
            parts.append(content[position : match.start()])
            position = match.end()
    return "".join([*parts, content[position:]]).strip()


def _last_answer(text: str, boxes: list[Box]) -> str:
    """The last box, with the ones before it that only commas, "and" or "or" separate from it."""
    joined = [boxes[-1]]  # backwards
    for box in reversed(boxes[:-1]):
        gap = text[box.end : joined[-1].start]
        if len(gap) > _MAX_JOINT_CHARS or not _JOINT.fullmatch(gap) or not _CONNECTIVE.search(gap):
            break
        joined.append(box)
    return ", ".join(box.content for box in reversed(joined))


def _has_box(reasoning: str) -> bool:
    return bool(find_boxes(reasoning)[0])


def _final_line(text: str) -> str | None:
    """What the last final-answer line says, whole; a heading speaks for the line below it."""
    lines = text.split("\n")
    for index in range(len(lines) - 1, -1, -1):
        marks = list(_FINAL_LINE.finditer(lines[index][:2000]))
        if not marks:
            continue
        rest = _bare(lines[index][marks[-1].end() :])
        if not rest:
            below = (line for line in lines[index + 1 :] if line.strip())
            rest = _bare(next(below, ""))
        return rest or None
    return None


def _bare(line: str) -> str:
    return line.strip().strip("*_:").strip().removesuffix(".").strip()


def _none(reason: str, in_reasoning: bool) -> Extraction:
    return Extraction(answer=None, rule="none", reason=reason, in_reasoning=in_reasoning)
