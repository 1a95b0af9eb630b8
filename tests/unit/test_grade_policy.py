"""What counts as the same answer: the table of decisions, and what each policy field changes."""

from typing import Any

import pytest

from growpage.grade.compare import Comparison, compare
from growpage.grade.policy import MathPolicy
from growpage.grade.symbolic import SymbolicIrrational

RIGHT = [
    ("5", "5."),
    ("5", "05"),
    ("5", "5.0"),
    ("1000", "1,000"),
    ("1000", r"1\,000"),
    ("1000", "1{,}000"),
    ("1000", "1 000"),
    ("1000", "$1000$"),
    ("-5", "−5"),
    ("5", "+5"),
    ("-5", "-(5)"),
    ("5", "-(-5)"),
    ("5", r"5 \text{ cm}"),
    ("5", "5 cm"),
    (r"5 \text{ m}", "5 m"),
    (r"5 \text{ m}", "5m"),
    (r"5 \text{ cm}", r"5\ \mathrm{cm}"),
    (r"5 \text{ cm}^2", r"5 \text{ square centimeters}"),
    (r"5 \text{ cm}^2", r"5\text{ cm}^{2}"),
    (r"5 \text{ cm}^2", "5 cm²"),
    (r"60 \text{ mph}", r"60 \text{ miles per hour}"),
    ("60", r"60 \text{ miles/hour}"),
    ("5", r"5 \text{ apples}"),
    ("5000000", r"5 \text{ million}"),
    ("12", "1 dozen"),
    (r"\$5", "5"),
    (r"\$5", r"\$5.00"),
    (r"\$5", r"5 \text{ dollars}"),
    (r"\$32,\!348", "32348"),
    (r"\$32,\!348", r"\$32,348"),
    (r"\$32,\!348", r"\$32{,}348"),
    (r"28\%", "28"),
    (r"28\%", r"28\%"),
    (r"28\%", r"28 \text{ per cent}"),
    (r"90^\circ", "90"),
    (r"90^\circ", "90°"),
    (r"90^\circ", r"90 \text{ degrees}"),
    ("52_8", "52"),
    ("52_8", r"52_{\text{eight}}"),
    ("52_8", "(52)_8"),
    ("52_8", "52_{8}"),
    ("x=5", "5=x"),
    ("x=5", "x = 5.0"),
    ("5", "x=y=5"),
    ("1024", "2^{10}=1024"),
    (r"\frac13", r"0.\overline{3}"),
    (r"\frac16", r"0.1\overline{6}"),
    (r"\frac14", ".25"),
    (r"\frac32", r"\frac64"),
    (r"\frac32", "1.5"),
    (r"\frac32", "3/2"),
    (r"\frac32", r"1\frac12"),
    (r"\frac32", "1 1/2"),
    (r"\frac32", "1½"),
    (r"\frac32", r"\frac{3}{2}\text{ hours}"),
    (r"\frac{7}{2}", r"3\frac12"),
    (r"\frac{3}{2}", r"3 \cdot \frac12"),
    (r"-\frac{7}{2}", r"-3\frac12"),
    (r"-\frac72", r"\frac{-7}{2}"),
    (r"-\frac72", r"\frac{7}{-2}"),
    (r"\frac{\sqrt3}{3}", r"\frac{1}{\sqrt3}"),
    (r"\frac{\sqrt3}{3}", r"\frac{\sqrt{3}}{3}"),
    (r"3\sqrt{13}", r"\sqrt{117}"),
    (r"3\sqrt{13}", "√117"),
    (r"3\sqrt{13}", "3√13"),
    ("1,-2", "-2,1"),
    ("1,-2", r"\{1,-2\}"),
    ("1,-2", r"1 \text{ and } -2"),
    ("1,-2", "x=1, x=-2"),
    ("1,-2", "x=1,-2"),
    ("3, 5, 7", r"3, 5, \text{ and } 7"),
    ("3, 5, 7", "7,5,3"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"),
    (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"),
    (r"1 \pm \sqrt{19}", "x = 1 ± √19"),
    (r"1 \pm \sqrt{19}", r"1 \mp \sqrt{19}"),
    (r"\pm 3", "3,-3"),
    (r"\{1\pm\sqrt{5},-2\}", r"-2, 1+\sqrt5, 1-\sqrt5"),
    (r"\{1\pm\sqrt{5},-2\}", r"\{-2, 1-\sqrt5, 1+\sqrt5\}"),
    ("(15,-29)", "15,-29"),
    ("(15,-29)", "(15, -29)"),
    ("(15,-29)", r"\left(15,-29\right)"),
    ("(15,-29)", "x=15, y=-29"),
    ("(15,-29)", r"\langle 15,-29\rangle"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3, \pi/2)"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"\left(3,\dfrac{\pi}{2}\right)"),
    (r"(2,\infty)", "x>2"),
    (r"(2,\infty)", "2<x"),
    (r"(2,\infty)", r"(2,+\infty)"),
    (r"x \in [-2,7]", "[-2,7]"),
    (r"x \in [-2,7]", r"-2 \le x \le 7"),
    (r"x \in [-2,7]", r"7 \ge x \ge -2"),
    (r"(-\infty, 2) \cup (3, \infty)", r"x<2 \text{ or } x>3"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2)U(3,\infty)"),
    (r"(0,9) \cup (9,36)", r"(9,36)\cup(0,9)"),
    ("5x - 7y + 11z + 4 = 0", "-5x+7y-11z-4=0"),
    ("5x - 7y + 11z + 4 = 0", "10x - 14y + 22z = -8"),
    ("5x - 7y + 11z + 4 = 0", "5x - 7y + 11z = -4"),
    ("y = 2x + 3", "2x+3"),
    ("y = 2x + 3", "2x - y + 3 = 0"),
    ("y = 2x + 3", "y - 3 = 2x"),
    ("y = 2x + 3", "y = 3 + 2x"),
    (
        r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}",
        r"\begin{bmatrix} -\frac13 \\ \frac23 \\ \frac53 \end{bmatrix}",
    ),
    (
        r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}",
        r"\begin{pmatrix} -1 & 0 \\[4pt] 0 & -1 \\ \end{pmatrix}",
    ),
    (
        r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}",
        r"\left(\begin{array}{cc} -1 & 0 \\ 0 & -1 \end{array}\right)",
    ),
    (r"\text{(C)}", "C"),
    (r"\text{(C)}", "(C)"),
    (r"\text{(C)}", "c"),
    (r"\text{(C)}", r"\text{(C) } 12"),
    (r"\text{(C)}", r"\textbf{(C)}\ 12"),
    ("12", r"\textbf{(C)}\ 12"),
    ("12", r"\textbf{(C) } 12"),
    (r"\text{Evelyn}", "evelyn"),
    (r"\text{Evelyn}", r"\textbf{Evelyn}"),
    (r"\text{even}", "Even"),
    (r"\text{no solution}", "no solution"),
    (r"\text{No solution}", r"\text{no solution}"),
    ("1:2", "1:2"),
    ("12:00", "12{:}00"),
    ("12:30", r"12:30 \text{ p.m.}"),
    ("1:00", "01:00"),
    ("6 - 5i", "6-5i"),
    ("6 - 5i", "-5i+6"),
    ("3R^2", "3R²"),
    (r"\cot x", r"\frac{\cos x}{\sin x}"),
    (r"\cot x", r"\frac{1}{\tan x}"),
    (r"\cot x", r"\cot(x)"),
    ("(a+5)(b+2)", "ab+2a+5b+10"),
    ("(a+5)(b+2)", "(b+2)(a+5)"),
    ("8n^2 + 4n + 1", "1+4n(2n+1)"),
    ("x^8 + x^7 + x^6 + x^5 + x^4 + x^3 + x^2 + x + 1", r"\frac{x^9-1}{x-1}"),
    (r"\frac{11+9a}{20}", r"\frac{11}{20}+\frac{9a}{20}"),
    (r"\frac{20000}{\pi}", r"20000/\pi"),
    ("p - q", "-(q-p)"),
    (".0000672", r"6.72 \times 10^{-5}"),
    (r"11,\! 111,\! 111,\! 100", "11111111100"),
    (r"11,\! 111,\! 111,\! 100", "11,111,111,100"),
    (r"1\frac{4}{5}", r"\frac95"),
    (r"1\frac{4}{5}", "1.8"),
    (r"137 \frac{1}{2}", "137.5"),
    (r"\infty", r"\infty"),
    (r"3 \pmod{7}", "3"),
    ("3", r"3 \pmod 7"),
    ("3", r"x \equiv 3 \pmod{7}"),
    (r"\log_2 8", "3"),
    ("3", r"\log_2 8"),
    (r"\sin 30^\circ", r"\frac12"),
    (r"\frac12", r"\sin 30^\circ"),
    ("2^{n+1}", r"2\cdot 2^n"),
    (r"6x\sqrt{x}", r"6\sqrt{x^3}"),
    (r"\frac{1}{2}", "2^{-1}"),
    ("12", r"\lfloor 12.7\rfloor"),
    ("5", r"\lvert -5\rvert"),
    ("5", "f(2)=5"),
    ("5", "P(A) = 5"),
    (r"\frac{1}{4}", r"P(X=2)=\frac14"),
    (r"\emptyset", r"\{\}"),
    ("0", "-0"),
    (r"\text{True}", "True"),
    ("18.90", "18.9"),
    (r"75^\circ", r"75^{\circ}"),
    ("15x - 80", r"15x-80\text{ dollars}"),
    ("5", r"5\quad"),
    ("5", "5 units"),
    ("5", r"5\text{ ways}."),
    ("5", r"5\text{ units}^2"),
    ("27", "3^3"),
    ("27", "3^{3}"),
    ("5", "5."),
    ("120", "5!"),
    ("13", r"\boxed{13}"),
]

WRONG = [
    ("1000", "10,00"),
    ("5", "-5"),
    ("-5", "5"),
    ("5", "--5"),
    ("-5", "--5"),
    ("12", "1, 2"),
    ("12", "123"),
    ("123", "12"),
    (r"5 \text{ cm}", "5 m"),
    (r"5 \text{ cm}", r"5 \text{ m}"),
    (r"5 \text{ cm}^2", r"5 \text{ cm}"),
    ("5", r"12 \text{ apples}"),
    ("5", "5 million"),
    ("5", r"5 \text{ or } 6"),
    ("5", r"5 \text{ if } x>0"),
    ("5", r"\text{not } 5"),
    ("5", "approximately 5"),
    ("5", r"\approx 5"),
    ("5", "about 5"),
    (r"\$5", r"5 \text{ cents}"),
    (r"5.4 \text{ cents}", r"\$5.4"),
    (r"28\%", "0.28"),
    ("0.28", r"28\%"),
    (r"90^\circ", r"\frac{\pi}{2}"),
    (r"90^\circ", r"90\text{ radians}"),
    (r"\frac{\pi}{2}", r"90^\circ"),
    (r"\frac{\pi}{2}", "90"),
    ("52_8", "52_{10}"),
    ("52_8", "42"),
    ("42", "52_8"),
    ("x=5", "y=5"),
    ("1024", "2^{10}=1023"),
    (r"\frac13", "0.33"),
    (r"\frac13", "0.333333333"),
    (r"\frac13", "0.333..."),
    (r"\frac13", r"0.333\ldots"),
    (r"\frac14", r"25\%"),
    (r"\sqrt2", "1.41421356"),
    (r"\frac{7}{2}", r"3 \cdot \frac12"),
    (r"-\frac72", r"\frac{-7}{-2}"),
    (r"3\sqrt{13}", r"3\sqrt{14}"),
    (r"3\sqrt{13}", r"\sqrt{13}"),
    ("5,6", "5"),
    ("5", "5,6"),
    ("1,-2", "(1,-2)"),
    ("1,-2", "1,-2,1"),
    ("1,-2", "1,2"),
    ("3, 5, 7", "3,5,7,9"),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1+\sqrt{19}"),
    (r"\pm 3", "3"),
    ("3", r"\pm 3"),
    (r"\{1\pm\sqrt{5},-2\}", r"\{-2, 1-\sqrt5\}"),
    ("(15,-29)", "-29,15"),
    ("(15,-29)", "(-29,15)"),
    ("(15,-29)", "[15,-29]"),
    ("(15,-29)", r"\begin{pmatrix} 15\\-29\end{pmatrix}"),
    (r"\left( 3, \frac{\pi}{2} \right)", "(3, 1.5708)"),
    (r"(2,\infty)", r"x\ge 2"),
    (r"(2,\infty)", "x<2"),
    (r"(2,\infty)", r"(2,-\infty)"),
    (r"x \in [-2,7]", r"-2 < x \le 7"),
    (r"x \in [-2,7]", "[-2,7)"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2)"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2),(3,\infty)"),
    (r"(-\infty, 2) \cup (3, \infty)", r"(-\infty,2]\cup(3,\infty)"),
    ("5x - 7y + 11z + 4 = 0", "5x - 7y + 11z = 4"),
    ("5x - 7y + 11z + 4 = 0", "5x - 7y + 11z + 4"),
    ("y = 2x + 3", "x = 2y+3"),
    (
        r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix}",
        r"\begin{pmatrix} -1/3 \\ 2/3 \\ 5/4 \end{pmatrix}",
    ),
    (
        r"\begin{pmatrix} -1 & 0 \\ 0 & -1 \end{pmatrix}",
        r"\begin{pmatrix} 0 & -1 \\ -1 & 0 \end{pmatrix}",
    ),
    ("12", r"\textbf{(C)}\ 13"),
    (r"\text{(C)}", "D"),
    (r"\text{(C)}", "B, C"),
    (r"\text{Evelyn}", "Evelyn is the answer"),
    (r"\text{even}", r"\text{even function}"),
    (r"\text{even}", "odd"),
    ("1:2", "2:4"),
    ("1:2", r"\frac12"),
    (r"12:30 \text{ p.m.}", r"12:30 \text{ a.m.}"),
    ("6 - 5i", "6+5i"),
    ("3R^2", "3r^2"),
    (r"\cot x", r"\tan x"),
    ("(a+5)(b+2)", "(a+2)(b+5)"),
    (r"\frac{20000}{\pi}", "6366.2"),
    (r"-\frac{\pi}{6}", r"-30^\circ"),
    ("2k", "2n"),
    (".0000672", r"6.72 \cdot 10^{-6}"),
    (r"11,\! 111,\! 111,\! 100", "11,111,111,101"),
    (r"1\frac{4}{5}", r"1\frac{5}{4}"),
    ("2^{98}", "2^{99}"),
    ("2^{-98}", "2^{-99}"),
    (r"\infty", r"-\infty"),
    ("e^{-100}", "0"),
    ("10^{20}+1", "10^{20}"),
    (r"3 \pmod{7}", r"3 \pmod{5}"),
    ("2", r"\log 100"),
    (r"\ln 2", r"\log 2"),
    (r"\sqrt{x^2}", "x"),
    ("10", "2x=10"),
    ("5", r"\text{Answer: }5"),
    ("-2,1", "-21"),
    (r"\emptyset", "0"),
    ("36", r"36\text{ or }37"),
    ("3", r"3\text{ and }3"),
    ("27", "27.000001"),
    ("5", "5!"),
    ("5", "5.."),
    ("5", "5;"),
    ("5", "5,"),
    ("2", "two"),
    (r"\frac{3}{4}", r"\frac{3}{4}x"),
    ("1.875", "1,875"),
]

BARS = [
    ("5", "|-5|", True),
    (r"\sqrt{x^2}", "|x|", True),
    (r"|x-1|", "x-1", False),
    (r"|a||b|", "|ab|", True),
]

FLAGGED = [
    ("73", "073", "number_format"),
    ("7300", "7,300", "number_format"),
    ("5", r"5 \text{ cm}", "unit_added"),
    ("28\\%", "28", "unit_omitted"),
    ("5", "x = 5", "variable_added"),
    ("x=5", "5", "variable_omitted"),
    ("52_8", "52", "base_omitted"),
    ("3", r"3 \pmod{7}", "modulus_added"),
    (r"\frac32", r"\frac64", "unreduced"),
    ("1024", "2^{10}", "unevaluated"),
    (r"\frac{\sqrt3}{3}", r"\frac{1}{\sqrt3}", "unrationalised"),
    (r"\frac72", r"3\frac12", "mixed_number"),
    ("(1,2)", "1,2", "bare_tuple"),
    (r"(2,\infty)", "x>2", "inequality"),
    ("x + y = 2", "2x + 2y = 4", "scaled_equation"),
    ("12", r"\textbf{(C)}\ 12", "choice_label_added"),
    (r"\text{(C)}", r"\textbf{(C)}\ 12", "choice_value_added"),
]

CHANGED = [
    ("28\\%", "0.28", {"percent_scales": True}, True),
    ("0.28", "28\\%", {"percent_scales": True}, True),
    (r"90^\circ", r"\frac{\pi}{2}", {"radians_answer_degrees": True}, True),
    (r"\frac13", "0.3333", {"tolerance": 1e-3}, True),
    (r"\frac13", "0.34", {"tolerance": 1e-3}, False),
    (r"\sqrt2", "1.4142", {"tolerance": 1e-3}, True),
    ("1000.4", "1000.5", {"tolerance": 1e-3}, True),
    ("1000", "1001", {"tolerance": 1e-2}, False),  # integers stay exact
    ("5", "5 or 6", {"any_of_several": True}, True),
    ("5", "4 or 6", {"any_of_several": True}, False),
    ("1,-2", "-2,1", {"lists_are_ordered": True}, False),
    ("[1,2)", "(1,2)", {"interval_ends_matter": False}, True),
    (
        r"\begin{pmatrix}1\\2\end{pmatrix}",
        r"\begin{bmatrix}1\\2\end{bmatrix}",
        {"matrix_brackets_matter": True},
        False,
    ),
    (r"\text{even}", "Even", {"case_matters": True}, False),
]


def compared(gold: str, answer: str, **policy: Any) -> Comparison:
    return compare(gold, answer, MathPolicy(**policy), SymbolicIrrational())


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
def test_same_answer_is_right(gold: str, answer: str) -> None:
    assert compared(gold, answer).equal


@pytest.mark.parametrize(("gold", "answer"), WRONG)
def test_other_answer_is_wrong(gold: str, answer: str) -> None:
    assert not compared(gold, answer).equal


@pytest.mark.parametrize(("gold", "answer", "right"), BARS)
def test_absolute_values(gold: str, answer: str, right: bool) -> None:
    assert compared(gold, answer).equal == right


@pytest.mark.parametrize(("gold", "answer", "flag"), FLAGGED)
def test_lenient_acceptance_leaves_a_flag(gold: str, answer: str, flag: str) -> None:
    result = compared(gold, answer)
    assert result.equal
    assert flag in result.flags


@pytest.mark.parametrize(("gold", "answer", "flag"), FLAGGED)
def test_policy_can_refuse_each_lenient_acceptance(gold: str, answer: str, flag: str) -> None:
    accepting = [name for name in MathPolicy.__slots__ if name.startswith("accept_")]
    refusing = MathPolicy(**dict.fromkeys(accepting, False))
    assert refusing.refused(flag)
    result = compare(gold, answer, refusing, SymbolicIrrational())
    assert not result.equal
    assert result.reason.startswith("refused by policy")


@pytest.mark.parametrize(("gold", "answer", "policy", "right"), CHANGED)
def test_policy_changes_the_comparison(
    gold: str, answer: str, policy: dict[str, Any], right: bool
) -> None:
    assert compared(gold, answer, **policy).equal == right
    assert compared(gold, answer).equal != right or not right


def test_every_decision_changes_the_hash() -> None:
    hashes = {MathPolicy().sha8()}
    for name in MathPolicy.__slots__:
        default = getattr(MathPolicy(), name)
        hashes.add(MathPolicy(**{name: 0.5 if name == "tolerance" else not default}).sha8())
    assert len(hashes) == len(MathPolicy.__slots__) + 1


SETS = [
    (r"\mathbb{R} \setminus \{0\}", r"(-\infty,0)\cup(0,\infty)", True),
    (r"(-\infty,0)\cup(0,\infty)", r"\mathbb{R} \setminus \{0\}", True),
    (r"(-\infty,0)\cup(0,\infty)", r"\mathbb{R} \setminus \{1\}", False),
]


@pytest.mark.parametrize(("gold", "answer", "right"), SETS)
def test_sets_outside_the_grammar_are_left_to_math_verify(
    gold: str, answer: str, right: bool
) -> None:
    result = compared(gold, answer)
    assert (result.equal, result.rule) == (right, "math_verify")


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("[2,5]", r"[2,5]\cap[2,7^{7^{7^7}}]"),
        ("[2,5]", r"[2,5]\cap[2,9999!]"),
        ("[2,5]", r"[2.0000000001,5]\cap[2,7]"),
        ("[2,5]", r"[2,5]\cap[2,--7]"),
    ],
)
def test_guards_keep_math_verify_from_what_it_gets_wrong(gold: str, answer: str) -> None:
    result = compared(gold, answer)
    assert (result.equal, result.rule) == (False, "unreadable")


@pytest.mark.parametrize(
    "answer",
    [
        "9^{9^{9}}-5",
        "(9^{9^{9}})!",
        "2^{10^{10}}",
        r"\binom{10^{12}}{5 \cdot 10^{11}}",
        "99999999!",
        r"\sin(10^{1000})",
        r"\sqrt{2}^{10^{9}}",
        r"e^{e^{e^{e^{e}}}}",
        "(" * 3000 + "1" + ")" * 3000,
        "1+" * 4000 + "1",
        "x^" * 3000 + "2",
        r"\sin " * 3000 + "x",
        "1/" * 390 + "1",
        "9" * 20000 + "^2",
    ],
)
def test_values_too_large_are_wrong_and_fast(answer: str) -> None:
    assert not compared("5", answer).equal
    assert not compared(r"\sqrt{3}", answer).equal


@pytest.mark.parametrize("text", ["9^{9^{9}}", "1000000!", r"\binom{10^9}{5\cdot 10^8}"])
def test_equal_texts_need_no_value(text: str) -> None:
    assert compared(text, text).equal
    assert compared(text, text.replace("^{9}}", "^9}")).equal
