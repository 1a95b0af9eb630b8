"""From the characters a model writes to plain LaTeX. Linear time, whole outputs or single answers."""

import re
import unicodedata

THINK, END_THINK = "<think>", "</think>"

_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F)}
_PUNCTUATION = {0x3000: " ", 0x3001: ",", 0x3002: ".", 0x2028: "\n", 0x2029: "\n", 0x0D: "\n"}
_INVISIBLE = {
    code: None
    for code in range(0x10000)
    if unicodedata.category(chr(code)) in ("Cc", "Cf") and chr(code) not in "\n\t\r"
}
_PLAIN: dict[int, int | str | None] = {**_INVISIBLE, **_FULL_WIDTH, **_PUNCTUATION}

# Our own table and not NFKC, which would turn x² into x2.
_SIGNS = str.maketrans(
    {
        "−": "-", "–": "-", "‒": "-", "﹣": "-", "‐": "-", "‑": "-",
        "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "∙": "\\cdot ", "∗": "*",
        "÷": "\\div ", "∕": "/", "⁄": "/", "∶": ":",
        "±": "\\pm ", "∓": "\\mp ", "°": "^\\circ ", "º": "^\\circ ", "%": "\\%",
        "π": "\\pi ", "∞": "\\infty ", "θ": "\\theta ", "φ": "\\varphi ", "ϕ": "\\phi ",
        "α": "\\alpha ", "β": "\\beta ", "γ": "\\gamma ", "δ": "\\delta ", "λ": "\\lambda ",
        "μ": "\\mu ", "σ": "\\sigma ", "ω": "\\omega ",
        "≤": "\\le ", "⩽": "\\le ", "≥": "\\ge ", "⩾": "\\ge ", "≠": "\\ne ", "≈": "\\approx ",
        "≡": "\\equiv ", "∈": "\\in ", "∪": "\\cup ", "∩": "\\cap ", "∅": "\\emptyset ",
        "ℝ": "\\mathbb{R}", "∠": "\\angle ", "⟨": "\\langle ", "⟩": "\\rangle ",
        "½": "\\frac{1}{2}", "⅓": "\\frac{1}{3}", "⅔": "\\frac{2}{3}", "¼": "\\frac{1}{4}",
        "¾": "\\frac{3}{4}", "⅕": "\\frac{1}{5}", "⅖": "\\frac{2}{5}", "⅗": "\\frac{3}{5}",
        "⅘": "\\frac{4}{5}", "⅙": "\\frac{1}{6}", "⅚": "\\frac{5}{6}", "⅛": "\\frac{1}{8}",
        "⅜": "\\frac{3}{8}", "⅝": "\\frac{5}{8}", "⅞": "\\frac{7}{8}",
        "\u00a0": "\\ ", "\u2009": "\\,", "\u202f": "\\,", "\u2007": "\\,",
        "’": "'", "′": "'", "\t": " ", "\n": " ",
    }
)  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")


def clean(text: str) -> str:
    """Drop control and zero-width characters; full-width characters become ASCII."""
    plain = text.encode("utf-8", "replace").decode("utf-8")
    return plain.translate(_PLAIN)


def translate_signs(answer: str) -> str:
    """Mathematical characters as LaTeX: −, π, √, °, ½, ×, superscripts and the like."""
    text = re.sub(
        "[⁰¹²³⁴-⁹⁺⁻ⁿ]+", lambda m: "^{" + m.group().translate(_SUPERSCRIPTS) + "}", answer
    )
    text = re.sub("[₀-₉]+", lambda m: "_{" + m.group().translate(_SUBSCRIPTS) + "}", text)
    text = re.sub(r"√\s*([0-9]+(?:\.[0-9]+)?|[A-Za-z])", r"\\sqrt{\1}", text)
    text = text.replace("√", "\\sqrt ")
    # An escaped percent sign must not become two.
    return text.replace("\\%", "%").translate(_SIGNS)
