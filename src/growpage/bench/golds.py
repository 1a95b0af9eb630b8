"""Gold answers: from what data sets write to what the grader compares.

Each function raises ValueError with the reason when the text is not of its kind.
"""

import re


def gsm8k_gold(answer: str) -> str:
    """What follows the last `####`, without thousands commas; the minus stays."""
    final = answer.rsplit("####", 1)[-1].strip().replace(",", "")
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", final):
        raise ValueError("must be a number, or a solution that ends with '#### number'")
    return final


def aime_gold(answer: str) -> str:
    """An integer in 0..999 without the zeros that pad it."""
    if not re.fullmatch(r"[0-9]{1,3}", answer):
        raise ValueError("must be an integer in 0..999")
    return answer.lstrip("0") or "0"


def amc_gold(answer: str) -> str:
    """An integer; the data set writes it as a float (27.0)."""
    if not re.fullmatch(r"-?[0-9]+(\.0*)?", answer):
        raise ValueError("must be an integer")
    return answer.split(".")[0]


def verbatim_gold(answer: str) -> str:
    """As it stands: in MATH-500, `-2,1` is a list and not a number."""
    return answer
