"""An expression as a tree: LaTeX or plain notation, nothing evaluated.

Implicit products bind like written ones, left to right. A number before a literal fraction is a mixed number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from growpage.grade.tokens import FUNCTIONS, GREEK, Number, Token, TooLarge, Unreadable
from growpage.grade.unit_names import words

_MAX_TOKENS = 800  # keeps every recursion over a tree within the interpreter's limit
_DECORATIONS = words("overline bar hat vec tilde widehat overrightarrow overleftrightarrow dot")
_BRACKETS = {"(": ")", "[": "]", "{": "}", "|": "|"}
_ROUNDINGS = {"lfloor": ("rfloor", "floor"), "lceil": ("rceil", "ceil")}


@dataclass(frozen=True, slots=True)
class Node:
    """op: num, sym, neg, add, mul, div, pow, root (index, radicand), fun, fact, binom, abs, floor,
    ceil, degrees, mixed (whole, fraction), pm and mp (the sign in front of one argument).
    """

    op: str
    args: tuple["Node", ...] = ()
    name: str = ""
    number: Number | None = None

    @property
    def value(self) -> Fraction | None:
        return self.number.value if self.number is not None else None


def integer(value: int) -> Node:
    return Node("num", number=Number(Fraction(value), "", raw=str(value)))


def parse_expression(tokens: Sequence[Token]) -> Node:
    """The tree of all tokens. Raises `Unreadable` when any is left over, `TooLarge` when there are too many."""
    if len(tokens) > _MAX_TOKENS:
        raise TooLarge(f"an expression of {len(tokens)} tokens")
    parser = _Parser(tokens)
    node = parser.sum()
    if parser.peek() is not None:
        raise Unreadable(f"'{tokens[parser.at].text}' inside the expression")
    return node


@dataclass(slots=True)
class _Parser:
    tokens: Sequence[Token]
    at: int = 0
    bars: list[int] = field(default_factory=list)  # open |, which also ends an implicit product

    def peek(self, offset: int = 0) -> Token | None:
        index = self.at + offset
        return self.tokens[index] if index < len(self.tokens) else None

    def next_is(self, kind: str, *texts: str) -> bool:
        token = self.peek()
        return token is not None and token.kind == kind and (not texts or token.text in texts)

    def take(self, kind: str, *texts: str) -> bool:
        if self.next_is(kind, *texts):
            self.at += 1
            return True
        return False

    def expect(self, kind: str, text: str) -> None:
        if not self.take(kind, text):
            raise Unreadable(f"'{text}' is missing")

    # sums and products

    def sum(self) -> Node:
        terms = [self.signed(self.product)]
        while self.next_is("sym", "+", "-") or self.next_is("cmd", "pm", "mp"):
            terms.append(self.signed(self.product))
        return terms[0] if len(terms) == 1 else Node("add", tuple(terms))

    def signed(self, operand: Callable[[], Node]) -> Node:
        """One optional sign; a doubled sign is a slip of the pen and not read."""
        if self.take("sym", "+"):
            return self.unsigned(operand)
        if self.take("sym", "-"):
            return Node("neg", (self.unsigned(operand),))
        for sign in ("pm", "mp"):
            if self.take("cmd", sign):
                return Node(sign, (self.unsigned(operand),))
        return operand()

    def unsigned(self, operand: Callable[[], Node]) -> Node:
        if self.next_is("sym", "+", "-") or self.next_is("cmd", "pm", "mp"):
            raise Unreadable("a doubled sign")
        return operand()

    def product(self) -> Node:
        node = self.factor()
        while True:
            if self.take("sym", "*"):
                node = _times(node, self.signed(self.factor))
            elif self.take("sym", "/"):
                node = Node("div", (node, self.signed(self.factor)))
            elif self.starts_factor():
                node = self.juxtaposed(node)
            else:
                return node

    def juxtaposed(self, left: Node) -> Node:
        token, before = self.peek(), self.tokens[self.at - 1]
        assert token is not None
        is_frac_after_number = before.kind == "num" and token.is_cmd("frac")
        if is_frac_after_number and left.op == "mul" and left.args[-1].op == "num":
            raise Unreadable("a mixed number inside a product")
        if before.kind == "num" and left.op == "num":
            if token.is_cmd("frac"):
                return self.mixed(left, self.factor())
            if token.kind == "num":
                return self.slashed_mixed(left)
        if token.kind == "num":
            raise Unreadable("a number right after something else")  # x2, \frac{7}{4}1
        return _times(left, self.factor())

    def mixed(self, whole: Node, fraction: Node) -> Node:
        """3\\frac12 is 7/2; with anything but a proper fraction of integers it is not read at all."""
        if fraction.op == "div" and all(arg.op == "num" for arg in fraction.args):
            top, bottom = (arg.value for arg in fraction.args)
            parts = (whole.value, top, bottom)
            if all(part is not None and part.denominator == 1 for part in parts):
                assert top is not None
                assert bottom is not None
                if 0 < top < bottom and whole.value:
                    return Node("mixed", (whole, fraction))
            raise Unreadable("a number before an improper fraction")
        return _times(whole, fraction)

    def slashed_mixed(self, whole: Node) -> Node:
        """'2 2/3': two numbers side by side mean something only before a slash."""
        top = self.primary()
        if not self.take("sym", "/") or not self.next_is("num"):
            raise Unreadable("two numbers side by side")
        return self.mixed(whole, Node("div", (top, self.primary())))

    def starts_factor(self) -> bool:
        token = self.peek()
        if token is None:
            return False
        if token.kind in ("num", "letter"):
            return True
        if token.kind == "cmd":
            return token.text in _FACTOR_COMMANDS or token.text in _DECORATIONS
        return token.is_sym("(", "[", "{") or (token.is_sym("|") and not self.bars)

    # factors

    def factor(self) -> Node:
        node = self.primary()
        while True:
            if self.take("sym", "^"):
                node = Node("pow", (node, self.script()))
                if self.next_is("sym", "^"):
                    raise Unreadable("a double superscript")
            elif self.take("sym", "!"):
                if self.next_is("sym", "!"):
                    raise Unreadable("a double factorial")
                node = Node("fact", (node,))
            elif self.take("sym", "degree"):
                node = Node("degrees", (node,))
            else:
                return node

    def script(self) -> Node:
        """What stands raised: a group, or one factor with its sign (2^10 is 1024, as people type it)."""
        if self.next_is("sym", "{"):
            return self.primary()
        return self.signed(self.primary)

    def primary(self) -> Node:
        token = self.peek()
        if token is None:
            raise Unreadable("the expression ends too early")
        self.at += 1
        if token.kind == "num":
            return Node("num", number=token.number)
        if token.kind == "letter":
            return Node("sym", name=token.text + self.subscript())
        if token.kind == "cmd":
            return self.command(token.text)
        if token.is_sym("(", "[", "{", "|"):
            return self.group(token.text)
        raise Unreadable(f"'{token.text}' inside the expression")

    def group(self, opening: str) -> Node:
        if opening == "|":
            self.bars.append(self.at)
            node = self.sum()
            self.bars.pop()
            self.expect("sym", "|")
            return Node("abs", (node,))
        bars, self.bars = self.bars, []
        node = self.sum()
        if opening == "{" and self.take("cmd", "over"):
            node = Node("div", (node, self.sum()))
        self.bars = bars
        self.expect("sym", _BRACKETS[opening])
        return node

    def subscript(self) -> str:
        """The text of a subscript; it is part of the name."""
        if self.take("sym", "'"):
            return "'" + self.subscript()
        if not self.take("sym", "_"):
            return ""
        if not self.take("sym", "{"):
            token = self.peek()
            if token is None or token.kind not in ("num", "letter", "word"):
                raise Unreadable("an empty subscript")
            self.at += 1
            return "_" + _name_of(token)
        parts: list[str] = []
        while not self.take("sym", "}"):
            token = self.peek()
            if token is None or token.is_sym("{"):
                raise Unreadable("a subscript that is no name")
            parts.append(_name_of(token))
            self.at += 1
        return "_" + "".join(parts)

    def command(self, name: str) -> Node:
        if name == "frac":
            return Node("div", self.two_arguments())
        if name == "binom":
            return Node("binom", self.two_arguments())
        if name == "sqrt":
            return self.root()
        if name in FUNCTIONS:
            return self.function(name)
        if name in _ROUNDINGS:
            closing, op = _ROUNDINGS[name]
            node = self.sum()
            self.expect("cmd", closing)
            return Node(op, (node,))
        if name in GREEK or name in ("pi", "infty"):
            return Node("sym", name=f"\\{name}" + self.subscript())
        if name in _DECORATIONS:
            return Node("sym", name=f"\\{name}:" + self.decorated() + self.subscript())
        raise Unreadable(f"the command \\{name}")

    def decorated(self) -> str:
        tokens: list[Token] = []
        if self.take("sym", "{"):
            while not self.take("sym", "}"):
                token = self.peek()
                if token is None or token.kind != "letter":
                    raise Unreadable("a mark over something that is no name")
                tokens.append(token)
                self.at += 1
        elif self.next_is("letter"):
            token = self.peek()
            assert token is not None
            tokens.append(token)
            self.at += 1
        if not tokens:
            raise Unreadable("a mark over nothing")
        return "".join(token.text for token in tokens)

    def two_arguments(self) -> tuple[Node, Node]:
        """\\frac{1}{2}, \\frac12, \\frac1{2}, \\frac{270}7."""
        token = self.peek()
        if token is not None and token.kind == "num":
            assert token.number is not None
            digits = token.number.raw
            if len(digits) == 2 and digits.isdigit() and not token.number.is_decimal:
                self.at += 1
                return integer(int(digits[0])), integer(int(digits[1]))
        return self.argument(), self.argument()

    def argument(self) -> Node:
        token = self.peek()
        if token is not None and token.kind == "num":
            assert token.number is not None
            if len(token.number.raw) != 1:
                raise Unreadable("an argument without braces")
        elif token is not None and token.is_sym("(", "[", "|"):
            raise Unreadable("an argument without braces")
        return self.primary()

    def root(self) -> Node:
        index = integer(2)
        if self.next_is("sym", "["):
            self.at += 1
            index = self.sum()
            self.expect("sym", "]")
        return Node("root", (index, self.primary()))

    def function(self, name: str) -> Node:
        base = exponent = None
        if name == "log" and self.take("sym", "_"):
            base = self.primary()
        if self.take("sym", "^"):
            exponent = self.script()
        argument = self.function_argument()
        if exponent is not None and exponent == Node("neg", (integer(1),)):
            if name not in ("sin", "cos", "tan", "cot", "sec", "csc"):
                raise Unreadable(f"the inverse of {name}")
            return Node("fun", (argument,), f"arc{name}")
        args = (argument,) if base is None else (argument, base)
        node = Node("fun", args, name)
        return node if exponent is None else Node("pow", (node, exponent))

    def function_argument(self) -> Node:
        """One bracketed group, or the factors that follow: \\sin 2x is the sine of 2x."""
        if self.next_is("sym", "(", "{", "["):
            node = self.primary()
            return Node("degrees", (node,)) if self.take("sym", "degree") else node
        node = self.factor()
        while self.starts_factor() and not self.next_is("cmd", *FUNCTIONS):
            if self.next_is("sym", "(", "[", "|"):
                break
            node = self.juxtaposed(node)
        return node


_FACTOR_COMMANDS = FUNCTIONS | GREEK | {"frac", "binom", "sqrt", "pi", "infty", "lfloor", "lceil"}


def _times(left: Node, right: Node) -> Node:
    factors = left.args if left.op == "mul" else (left,)
    return Node("mul", (*factors, right))


def _name_of(token: Token) -> str:
    return token.number.raw if token.number is not None else token.text
