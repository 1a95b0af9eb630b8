"""Which answer an output commits to, and that megabytes of anything are read in linear time."""

import time

import pytest

from growpage.grade.compare import reads_as_answer
from growpage.grade.extraction import Extraction, extract


def extracted(text: str, reasoning_open: bool = False, is_cut: bool = False) -> Extraction:
    return extract(text, reasoning_open=reasoning_open, is_cut=is_cut, reads=reads_as_answer)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("\\boxed{1} no, \\boxed{2}", "2"),
        ("\\boxed{5}, since \\boxed{} is empty", "5"),
        ("\\boxed{5}. I put it in a \\boxed as asked.", "5"),
        ("\\boxed{5} \\boxed{ $ $ }", "5"),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"),
        ("\\boxed{\\left\\{ 1 \\right.}", "\\left\\{ 1 \\right."),
        ("\\boxed{x = \\boxed{5}}", "x = 5"),
        ("\\boxed{\\fbox{\\frac{1}{2}}}", "\\frac{1}{2}"),
        ("\\boxed -7", "-7"),
        ("\\boxed\n{7}", "7"),
        ("\\\\boxed{7}", "7"),
        ("x &= 5 \\\\ \\boxed{7}", "7"),
        ("}}} \\boxed{7}", "7"),
        ("the set {1, 2 is \\boxed{7}", "7"),
        ("\\boxed{\u200b7\u0000}", "7"),
        ("\\boxed{１２}", "12"),
        ("\\boxed{1}, \\boxed{2}, and $\\boxed{3}$", "1, 2, 3"),
        ("$\\boxed{1}$ \\text{ or } $\\boxed{2}$", "1, 2"),
        ("\\boxed{1}\n\n\\boxed{2}", "2"),
        ("\\boxed{1} and then \\boxed{2}", "2"),
    ],
)
def test_last_box_is_the_answer(text: str, answer: str) -> None:
    found = extracted(text)
    assert (found.answer, found.rule) == (answer, "box")


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 5.", "5"),
        ("The final answer is: $\\frac{1}{2}$.", "$\\frac{1}{2}$"),
        ("**Final Answer:** 73", "73"),
        ("**Final Answer**: 73", "73"),
        ("## Final Answer\n\n73\n", "73"),
        ("Answer: (1, 2)", "(1, 2)"),
        ("Thus 4 + 4 = 8.\n#### 8", "8"),
        ("答案是 5。", "5"),
        ("答案：5", "5"),
        ("The answer is 4. No, the answer is 5", "5"),
        ("The answer is 4.\nThe answer is 5.", "5"),
        ("The answer is Evelyn.", "Evelyn"),
        ("The answer is 5.\n#### 1. What we did", "5"),
        ("The answer is 2 2/3.", "2 2/3"),
    ],
)
def test_without_a_box_the_final_line_is_read_whole(text: str, answer: str) -> None:
    found = extracted(text)
    assert (found.answer, found.rule) == (answer, "final_line")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "So we get 73.",
        "70 + 3 = 73",
        "The answer is 5. Let me check that again.",
        "The answer is not clear to me at all",
        "The answer is",
        "I conclude that the answer is probably around 5 or so",
        "Final answer\n",
    ],
)
def test_no_number_is_guessed(text: str) -> None:
    assert extracted(text).answer is None


@pytest.mark.parametrize(
    "text", ["so \\boxed{73", "\\boxed{5} and \\boxed{\\frac{1}{2}", "\\boxed{\\boxed{5}"]
)
def test_open_box_is_no_answer_even_after_a_closed_one(text: str) -> None:
    found = extracted(text)
    assert found.answer is None
    assert "never closed" in found.reason


@pytest.mark.parametrize("text", ["\\boxed 7", "\\boxed{5}, so \\boxed", "\\boxed{5} and \\boxed "])
def test_bare_box_at_the_cut_counts_as_open(text: str) -> None:
    assert extracted(text, is_cut=True).answer is None
    assert extracted(text, is_cut=False).answer is not None


def test_only_the_text_after_the_last_think_tag_counts() -> None:
    assert extracted("<think>\\boxed{1}</think> \\boxed{2}").answer == "2"
    assert extracted("a </think> \\boxed{1} </think> \\boxed{2}").answer == "2"
    assert extracted("<think>\\boxed{1</think> \\boxed{2}").answer == "2"


@pytest.mark.parametrize(
    ("text", "reasoning_open"),
    [("<think>so \\boxed{5}", False), ("so \\boxed{5}", True), ("x</think><think>5", False)],
)
def test_open_think_block_is_no_answer(text: str, reasoning_open: bool) -> None:
    found = extracted(text, reasoning_open=reasoning_open)
    assert found.answer is None
    assert found.in_reasoning == ("boxed" in text)


def test_text_without_any_think_block_counts_as_a_whole() -> None:
    assert extracted("\\boxed{5}", reasoning_open=False).answer == "5"


def test_box_only_in_the_reasoning_is_noticed() -> None:
    found = extracted("<think>\\boxed{5}</think> Done.")
    assert found.answer is None
    assert found.in_reasoning


def test_lone_surrogates_do_not_stop_anything() -> None:
    assert extracted("\ud800 \\boxed{5}").answer == "5"


PIECES = [
    "\\boxed{",
    "{",
    "}",
    "\\boxed ",
    "\\boxed 1 ",
    "<think>",
    "</think>",
    "the answer is ",
    "#### 5\n",
    "\\boxed{1}, ",
    "\\boxed{\\boxed{1}}",
    "\\",
    "* ",
    "final answer\n",
    "\n",
    " ",
]


@pytest.mark.parametrize("piece", PIECES)
def test_two_megabytes_of_anything_take_seconds(piece: str) -> None:
    text = piece * (2_000_000 // len(piece))
    start = time.perf_counter()
    extracted(text, is_cut=True)
    assert time.perf_counter() - start < 15.0  # a quadratic scan would take many minutes
