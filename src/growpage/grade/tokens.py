"""An answer as tokens: the spellings of LaTeX and of plain text become one."""

import re
from dataclasses import dataclass, field
from fractions import Fraction

from growpage.grade.text import clean, translate_signs
from growpage.grade.unit_names import UNIT_RUNS, words

MAX_ANSWER_CHARS = 10_000
MAX_DEPTH = 40
_MAX_VALUE_DIGITS = 1_000  # longer literals are compared as texts and never computed with
_MAX_SCALE = 1_000

FUNCTIONS = words(
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc "
    "sinh cosh tanh coth ln log exp"
)
GREEK = words(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi "
    "rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi "
    "Omega ell hbar"
)
_TEXT_COMMANDS = words(
    "text mbox hbox textrm textbf textit textsf texttt textnormal emph mathrm mathbf mathit mathsf "
    "mathtt boldsymbol bm operatorname rm bf it"
)
_LETTER_COMMANDS = words("mathrm mathbf mathit mathsf boldsymbol bm operatorname")
_DROPPED = words(
    "left right big Big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr middle limits "
    "displaystyle textstyle scriptstyle quad qquad enspace thinspace nolimits boxed fbox "
    "strut null"
)
_SAME = {
    "dfrac": "frac", "tfrac": "frac", "cfrac": "frac", "dbinom": "binom", "tbinom": "binom",
    "leq": "le", "leqslant": "le", "geq": "ge", "geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">",
    "times": "*", "cdot": "*", "ast": "*", "div": "/", "colon": ":", "lbrace": "\\{",
    "rbrace": "\\}", "lbrack": "[", "rbrack": "]", "lvert": "|", "rvert": "|", "vert": "|",
    "mid": "|", "langle": "(", "rangle": ")", "infin": "infty", "varnothing": "emptyset",
    "degree": "degree", "dollar": "$", "pounds": "£", "euro": "€", "cents": "¢", "bmod": "mod",
    "pmod": "mod", "arcctg": "arccot", "tg": "tan", "ctg": "cot", "lg": "log",
}  # fmt: skip
_TWO_CHARACTERS = {"<=": "le", ">=": "ge", "!=": "ne"}
_PLAIN_WORDS = {"pi": "pi", "sqrt": "sqrt", "infinity": "infty", "infty": "infty"}

_SEPARATOR = r"(?:,\\[!,; ]\ *|,\{\}\ *|\{,\}\ *|\\[,;:!]\ *|\\\ \ *|~|\ )"
_GROUPED = re.compile(rf"[1-9][0-9]{{0,2}}({_SEPARATOR})[0-9]{{3}}(?:\1[0-9]{{3}})*(?![0-9]|\ */)")
_COMMA_GROUPED = re.compile(r"[1-9][0-9]{0,2}(?:,[0-9]{3})+(?!\ *,|[0-9])")
_DIGITS = re.compile(r"[0-9]*")
_FRACTION_PART = re.compile(r"\.([0-9]*)")
_REPEATING = re.compile(r"\\(?:overline|bar|dot)\ *(?:\{\ *([0-9]+)\ *\}|([0-9]))")
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)(?![0-9A-Za-z^.])")
_COMMAND = re.compile(r"\\([A-Za-z]+)\*?|\\(.)", re.DOTALL)
_LETTERS = re.compile(r"[A-Za-z]+")
_ROW_BREAK = re.compile(r"\\\\(?:\ *\[[^\]]{0,20}\])?")
_ENVIRONMENT = re.compile(r"\ *\{([a-zA-Z]+\*?)\}(?:\ *\{[clr|]*\})?")
_DEGREE = re.compile(r"\^\ *(?:\{\ *\\circ\ *\}|\\circ(?![A-Za-z]))")
_GROUP = re.compile(r"\ *\{([^{}]*)\}")


class Unreadable(ValueError):
    """The text is no answer in the grammar of this package."""


class TooLarge(ArithmeticError):
    """A value beyond the limits within which anything is computed."""


@dataclass(frozen=True, slots=True)
class Token:
    """kind: num, letter, word, cmd or sym. Equality looks at the meaning, not at how it was written."""

    kind: str
    text: str
    number: "Number | None" = None
    spaced: bool = field(default=False, compare=False)  # white space stands before it

    def is_sym(self, *texts: str) -> bool:
        return self.kind == "sym" and self.text in texts

    def opens_bracket(self) -> bool:
        return self.is_sym("(", "[", "{", "\\{")

    def closes_bracket(self) -> bool:
        return self.is_sym(")", "]", "}", "\\}")

    def is_cmd(self, *texts: str) -> bool:
        return self.kind == "cmd" and self.text in texts

    def is_word(self, *texts: str) -> bool:
        return self.kind == "word" and self.text.lower() in texts


@dataclass(frozen=True, slots=True)
class Number:
    """An unsigned literal. Equal literals have equal `value`, or, if too long to compute with, equal `text`."""

    value: Fraction | None
    text: str  # canonical where it is a plain decimal, else ""
    is_decimal: bool = field(default=False, compare=False)
    raw: str = field(default="", compare=False)  # as written, without separators


def tokenize(answer: str, *, letters_are_units: bool = False) -> tuple[Token, ...]:
    """Tokens of one answer. Raises `Unreadable` for what has no meaning here, `TooLarge` if too long.

    letters_are_units: letters right after a number are one word ("5 m"), not variables.
    """
    text = _undelimited(translate_signs(clean(answer)).strip())
    if len(text) > MAX_ANSWER_CHARS:
        raise TooLarge(f"{len(text)} characters")
    return tuple(_Lexer(text, letters_are_units).run())


def literal(answer: str) -> tuple[bool, str] | None:
    """(is negative, canonical digits) if the whole answer is one plain decimal of any length, else None."""
    text = _undelimited(translate_signs(clean(answer)).strip())
    match = re.fullmatch(r"([-+]?)\ *([0-9][0-9,]*|(?=\.))(?:\.([0-9]*))?", text)
    if not match or (not match.group(2) and not match.group(3)):
        return None
    whole = match.group(2)
    if "," in whole and not _COMMA_GROUPED.fullmatch(whole):
        return None
    digits = canonical(whole.replace(",", ""), match.group(3) or "")
    return match.group(1) == "-" and digits != "0", digits


def canonical(whole: str, fraction: str = "") -> str:
    """'007', '50' → '7.5'. Texts only, so that length does not matter."""
    whole, fraction = whole.lstrip("0") or "0", fraction.rstrip("0")
    return f"{whole}.{fraction}" if fraction else whole


def _undelimited(text: str) -> str:
    """Without the dollars, bold stars and full stop around an answer; a lone dollar is money."""
    text = text.removeprefix("**").removesuffix("**").strip()
    if len(re.findall(r"(?<!\\)\$", text)) % 2 == 0:
        text = re.sub(r"(?<!\\)\$", " ", text).strip()
    if text.endswith(".") and not text.endswith(".."):
        text = text[:-1].rstrip()
    return text


class _Lexer:
    def __init__(self, text: str, letters_are_units: bool) -> None:
        self._text = text
        self._letters_are_units = letters_are_units
        self._at = 0
        self._tokens: list[Token] = []
        self._brackets = 0  # open ( [ \{, where a comma separates and never groups digits
        self._braces = 0
        self._spaced = False

    def run(self) -> list[Token]:
        while self._at < len(self._text):
            self._step()
        return self._tokens

    def _step(self) -> None:
        char = self._text[self._at]
        if char in " ~":
            self._at += 1
            self._spaced = True
        elif char in "0123456789" or (char == "." and self._peek(1) in tuple("0123456789")):
            self._number()
        elif char == "\\":
            self._command()
        elif char.isascii() and char.isalpha():
            self._letters()
        elif match := _DEGREE.match(self._text, self._at):
            self._emit("sym", "degree")
            self._at = match.end()
        elif self._text.startswith(("{:}", "{,}"), self._at):
            self._emit("sym", self._text[self._at + 1])
            self._at += 3
        elif self._text.startswith("{}", self._at):
            self._at += 2
            self._spaced = True
        elif self._text[self._at : self._at + 2] in _TWO_CHARACTERS:
            self._emit("cmd", _TWO_CHARACTERS[self._text[self._at : self._at + 2]])
            self._at += 2
        elif char in "()[]{}+-*/^_=<>,:;|!&'$£€¢%":
            self._bracket(char)
            self._emit("sym", char)
            self._at += 1
        else:
            self._word_of_another_script(char)

    def _peek(self, offset: int) -> str:
        return self._text[self._at + offset : self._at + offset + 1]

    def _emit(self, kind: str, text: str, number: Number | None = None) -> None:
        self._tokens.append(Token(kind, text, number, self._spaced))
        self._spaced = False

    def _bracket(self, char: str) -> None:
        if char in ("(", "[", "\\{"):
            self._brackets += 1
        elif char in (")", "]", "\\}"):
            self._brackets = max(0, self._brackets - 1)
        elif char == "{":
            self._braces += 1
        elif char == "}":
            self._braces = max(0, self._braces - 1)
        if self._brackets + self._braces > MAX_DEPTH:
            raise TooLarge(f"nested deeper than {MAX_DEPTH}")

    def _word_of_another_script(self, char: str) -> None:
        if not char.isalpha():
            raise Unreadable(f"the character {char!r}")
        end = self._at
        while end < len(self._text) and self._text[end].isalpha():
            end += 1
        self._emit("word", self._text[self._at : end])
        self._at = end

    # numbers

    def _number(self) -> None:
        whole, self._at = self._whole_part()
        fraction = repeating = ""
        is_decimal = False
        if match := _FRACTION_PART.match(self._text, self._at):
            if not match.group(1) and not _REPEATING.match(self._text, match.end()):
                raise Unreadable("a full stop inside the answer")
            fraction, is_decimal, self._at = match.group(1), True, match.end()
            if match := _REPEATING.match(self._text, self._at):
                repeating, self._at = match.group(1) or match.group(2), match.end()
        scale = "0"
        if match := _EXPONENT.match(self._text, self._at):
            scale, is_decimal, self._at = match.group(1), True, match.end()
        self._emit("num", "", _number(whole, fraction, repeating, scale, is_decimal))

    def _whole_part(self) -> tuple[str, int]:
        after_comma = bool(self._tokens) and self._tokens[-1].is_sym(",")
        patterns = [_GROUPED]
        if self._brackets == 0 and not after_comma:
            patterns.append(_COMMA_GROUPED)
        for pattern in patterns:
            if match := pattern.match(self._text, self._at):
                return re.sub("[^0-9]", "", match.group()), match.end()
        match = _DIGITS.match(self._text, self._at)
        assert match is not None
        return match.group(), match.end()

    # letters and commands

    def _letters(self) -> None:
        match = _LETTERS.match(self._text, self._at)
        assert match is not None
        run, self._at = match.group(), match.end()
        after_value = bool(self._tokens) and (
            self._tokens[-1].kind == "num" or self._tokens[-1].is_sym("}", ")", "degree", "%")
        )
        if run in FUNCTIONS:
            self._emit("cmd", run)
        elif run in _PLAIN_WORDS:
            self._emit("cmd", _PLAIN_WORDS[run])
        elif run == "U" and self._between_brackets():
            self._emit("cmd", "cup")
        elif (
            len(run) >= 4
            or run.lower() in ("and", "or")
            or (after_value and (self._letters_are_units or run.lower() in UNIT_RUNS))
        ):
            self._emit("word", run)
        else:
            for letter in run:
                self._emit("letter", letter)

    def _between_brackets(self) -> bool:
        after = self._text[self._at :].lstrip(" ~")
        return (
            bool(self._tokens)
            and self._tokens[-1].is_sym(")", "]", "\\}")
            and after.startswith(("(", "[", "\\{", "\\left"))
        )

    def _command(self) -> None:
        if match := _ROW_BREAK.match(self._text, self._at):
            self._emit("cmd", "\\")
            self._at = match.end()
            return
        match = _COMMAND.match(self._text, self._at)
        if match is None:
            raise Unreadable("a backslash at the end")
        self._at = match.end()
        if match.group(2) is not None:
            self._escaped(match.group(2))
            return
        name = _SAME.get(match.group(1), match.group(1))
        if match.group(1) in _DROPPED:
            if match.group(1) in ("left", "right") and self._peek(0) == ".":
                self._at += 1
        elif match.group(1) in _TEXT_COMMANDS:
            self._text_command(match.group(1))
        elif name in ("begin", "end"):
            self._environment(name)
        elif name in ("mathbb", "mathcal", "mathfrak"):
            self._lettered(name)
        elif not name.isalpha() or name == "degree":
            self._bracket(name)
            self._emit("sym", name)
        else:
            self._emit("cmd", name)

    def _escaped(self, char: str) -> None:
        if char in "{}":
            self._bracket("\\" + char)
            self._emit("sym", "\\" + char)
        elif char in "%$":
            self._emit("sym", char)
        elif char in ",;:! /":
            self._spaced = True
        elif char in "()[]":
            pass  # maths delimiters
        elif char == "|":
            self._emit("sym", "|")
        else:
            raise Unreadable(f"the command \\{char}")

    def _text_command(self, name: str) -> None:
        group = _GROUP.match(self._text, self._at)
        if group is None:
            return  # a switch such as {\bf 5}, or text that nests: its content is read as it stands
        self._at = group.end()
        content = group.group(1)
        bare = content.strip(" ~")
        if bare in FUNCTIONS:
            self._emit("cmd", bare)
        elif name in _LETTER_COMMANDS and len(bare) == 1 and bare.isalpha():
            self._emit("letter", bare)
        else:
            self._text_content(content)

    def _text_content(self, content: str) -> None:
        """Inside \\text every run of letters is a word; the rest reads as usual."""
        self._spaced = self._spaced or content.startswith((" ", "~", "\\ "))
        for part in re.findall(
            r"[^\W\d_]+(?:['-][^\W\d_]+)*\.?|[^A-Za-z]+?(?=[A-Za-z]|$)", content
        ):
            if part[0].isalpha():
                self._emit("word", part.rstrip("."))
            elif part.strip(" ~.\\"):
                inner = _Lexer(part, False)
                for token in inner.run():
                    self._tokens.append(token)
            else:
                self._spaced = True

    def _environment(self, name: str) -> None:
        match = _ENVIRONMENT.match(self._text, self._at)
        if match is None:
            raise Unreadable(f"\\{name} without a name")
        self._at = match.end()
        self._emit("cmd", f"{name}:{match.group(1).rstrip('*')}")

    def _lettered(self, name: str) -> None:
        match = re.compile(r"\ *\{?\ *([A-Za-z])\ *\}?").match(self._text, self._at)
        if match is None:
            raise Unreadable(f"\\{name} without a letter")
        self._at = match.end()
        self._emit("letter", f"{name}:{match.group(1)}")


def _number(whole: str, fraction: str, repeating: str, scale: str, is_decimal: bool) -> Number:
    raw = whole + (f".{fraction}" if is_decimal else "")
    if repeating or scale != "0":
        raw += f"({repeating})e{scale}"
    if len(whole) + len(fraction) + len(repeating) > _MAX_VALUE_DIGITS:
        if repeating or scale != "0":
            raise TooLarge("a literal of more than 1000 digits")
        return Number(None, canonical(whole, fraction), is_decimal, raw)
    if len(scale) > 6 or abs(int(scale)) > _MAX_SCALE:
        raise TooLarge(f"a power of ten of {scale}")
    value = Fraction(int((whole + fraction) or "0"), 10 ** len(fraction))
    if repeating:
        value += Fraction(int(repeating), (10 ** len(repeating) - 1) * 10 ** len(fraction))
    return Number(value * Fraction(10) ** int(scale), "", is_decimal, raw)
