"""Programs against tests: the shared cases, what a program is, what counts as equal, and whose fault a failure is."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from growpage.bench.base import Problem
from growpage.errors import UsageError
from growpage.grade.base import Answer, Verdict
from growpage.grade.code import CodeGrader
from growpage.grade.outputs import same_text, same_value
from growpage.grade.policy import CodePolicy
from growpage.grade.programs import find_program, find_program_as_lcb
from growpage.grade.sandbox import Ended, Limits, Sandbox

DATA = Path(__file__).parent.parent / "data" / "grader_cases.jsonl"
CASES = [
    case
    for line in DATA.read_text(encoding="utf-8").splitlines()
    if (case := json.loads(line))["task"] == "code"
]


def problem_of(case: dict[str, Any]) -> Problem:
    metadata = {key: case[key] for key in ("time_limit_s", "memory_mb", "fn_name") if key in case}
    if case["kind"] == "code-functional":
        pairs = zip(case["inputs"], case["outputs"], strict=True)
        tests = [{"input": given, "output": expected} for given, expected in pairs]
        metadata |= {"kind": "functional", "tests": tests}
    else:
        metadata |= {"kind": "stdin", "tests": case["tests"]}
    return Problem(id=case["id"], question="q", answer="", metadata=metadata)


def answer_to(problem: Problem, program: str, **values: Any) -> Answer:
    text = f"<think>…</think>\n```python\n{program}\n```"
    return Answer(problem=problem, **({"text": text, "finish_reason": "stop"} | values))


def stdin_problem(*pairs: tuple[str, str], **metadata: Any) -> Problem:
    tests = [{"input": given, "output": expected} for given, expected in pairs]
    facts = {"kind": "stdin", "tests": tests} | metadata
    return Problem(id="p", question="q", answer="", metadata=facts)


@pytest.fixture(scope="module")
def grader() -> Iterator[CodeGrader]:
    grader = CodeGrader()
    yield grader
    grader.close()


def verdict(grader: CodeGrader, problem: Problem, program: str, **values: Any) -> Verdict:
    return grader.grade([answer_to(problem, program, **values)])[0]


def test_there_are_30_cases() -> None:
    assert len(CASES) == 30


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_shared_case_gets_its_verdict(
    case: dict[str, Any], grader: CodeGrader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    canaries = [tmp_path / "GRADER_CANARY", tmp_path.parent / "GRADER_CANARY"]
    for canary in canaries:
        canary.touch()
    monkeypatch.chdir(tmp_path)
    found = verdict(grader, problem_of(case), case["program"])
    assert found.correct == case["expected"], (case["note"], found)
    has_tests = bool(case.get("tests", True))
    assert ("grader_error" in found.flags) == (not has_tests), found
    assert all(canary.exists() for canary in canaries)


@pytest.mark.parametrize(
    ("program", "rule"),
    [
        ("while True: pass", "timeout"),
        ("x = []\nwhile True: x.append(' ' * (1 << 24))", "memory"),
        ("while True: print('x' * 65536)", "output"),
        ("raise ValueError('boom')", "runtime"),
        ("def f(:", "runtime"),
        ("import sys; sys.exit(1)", "runtime"),
        ("print(7)", "tests"),
    ],
)
def test_failure_names_its_kind_and_its_test(grader: CodeGrader, program: str, rule: str) -> None:
    problem = stdin_problem(("1\n", "1\n"), time_limit_s=1.5, memory_mb=256)
    found = verdict(grader, problem, program)
    assert (found.correct, found.rule) == (False, rule), found
    assert found.reason.startswith("test 1 of 1")
    assert found.extracted is not None


def test_first_failure_stops_and_all_tests_must_pass(grader: CodeGrader) -> None:
    problem = stdin_problem(("1\n", "1"), ("2\n", "0"), ("3\n", "3"))
    found = verdict(grader, problem, "print(input())")
    assert found.reason == "test 2 of 3: wrong answer"


@pytest.mark.parametrize("program", ["print(input())\nquit()", "print(input())\nexit(0)"])
def test_leaving_with_success_is_no_failure(grader: CodeGrader, program: str) -> None:
    assert verdict(grader, stdin_problem(("1\n", "1")), program).correct


def test_nothing_is_kept_between_tests(grader: CodeGrader) -> None:
    program = (
        "class Solution:\n    seen = []\n    def f(self, x):\n"
        "        self.seen.append(x)\n        return len(self.seen)"
    )
    tests = [{"input": [5], "output": 1}, {"input": [6], "output": 1}]
    facts = {"kind": "functional", "fn_name": "f", "tests": tests}
    assert verdict(grader, Problem(id="p", question="", answer="", metadata=facts), program).correct


def test_types_and_functions_of_leetcode_need_no_import(grader: CodeGrader) -> None:
    program = (
        "class Solution:\n    def f(self, xs: List[int], s: Optional[str] = None) -> int:\n"
        "        heap = xs[:]; heapify(heap); return Counter(heap)[gcd(4, 6)] + pow(2, 5, 7) + int(math.pi)"
    )
    facts = {"kind": "functional", "fn_name": "f", "tests": [{"input": [[2, 2, 1]], "output": 9}]}
    assert verdict(grader, Problem(id="p", question="", answer="", metadata=facts), program).correct


def test_without_program_there_is_no_answer(grader: CodeGrader) -> None:
    problem = stdin_problem(("1\n", "1"))
    found = verdict(grader, problem, "", text="<think>\n```python\nprint(1)\n```\n</think>I can't.")
    assert found.flags == ("no_answer", "answer_in_reasoning_only")
    cut = verdict(grader, problem, "", text="```python\nprint(1)", finish_reason="length")
    assert cut.flags == ("truncated", "no_answer")
    assert "never closed" in cut.reason


def test_failure_of_the_sandbox_is_never_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    grader = CodeGrader()
    grader.close()
    monkeypatch.setattr("growpage.grade.sandbox._MODULE", "raise SystemExit(1)")
    found = verdict(grader, stdin_problem(("1\n", "1")), "print(2)")
    assert found.rule == "infrastructure_error"
    assert {"grader_error", "infrastructure_error"} <= set(found.flags)
    grader.close()


def test_timeouts_beside_others_are_tried_alone() -> None:
    grader = CodeGrader(num_workers=2)
    problem = stdin_problem(("1\n", "1"), time_limit_s=1.0)
    programs = ["print(input())", "while True: pass", "print(input())"]
    found = grader.grade([answer_to(problem, program) for program in programs])
    grader.close()
    assert [verdict.rule for verdict in found] == ["tests", "timeout", "tests"]
    assert [verdict.correct for verdict in found] == [True, False, True]


def test_version_names_the_mode_and_the_policy() -> None:
    graders = [CodeGrader(), CodeGrader(policy=CodePolicy(extract="lcb"))]
    versions = [grader.version for grader in graders]
    for grader in graders:
        grader.close()
    assert versions[0].startswith("code-1+sandbox-")
    assert versions[0] != versions[1]


def test_unknown_policy_is_refused() -> None:
    with pytest.raises(UsageError, match=r"grader\.code\.extract.*final, lcb"):
        CodePolicy(extract="last")


# ---- what is a program -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\na\n```\nthen\n```py\nb\n```", "b\n"),
        ("```\na\n```\nIt prints\n```text\n3\n```\n```output\n4\n```", "a\n"),
        ("```python\nprint('''\n~~~\n''')\n```", "print('''\n~~~\n''')\n"),
        ("1. so:\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y\n"),
        ("```Python3\r\na\r\n```\r\n", "a\n"),
        ("````python\n```\na\n````", "```\na\n"),
        ("```python\na\n```\n```cpp\nb\n```", "a\n"),
        ("<think>```python\nx\n```</think>\n```python\ny\n```", "y\n"),
        ("```python\n \n```", None),
        ("print(1)", None),
        ("```python\na\n```\nor\n```python\nb", None),
        ("<think>```python\nx\n```", None),
    ],
)
def test_program_is_the_last_complete_block(text: str, program: str | None) -> None:
    assert find_program(text).program == program


def test_lcb_takes_the_lines_between_the_last_fences() -> None:
    text = "<think>```python\na\n```</think>none"
    assert find_program(text).program is None
    assert find_program_as_lcb(text).program == "a"


# ---- what is equal ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "expected", "same"),
    [
        ("1 2\n", "1 2", True),
        ("1  2 \n3\n\n", "1 2\n3", True),
        ("0.50 1\r\n", "0.5 1.0", True),
        ("Yes", "YES", False),
        ("1\n2", "1 2", False),
        ("", "", True),
        ("\n", "", True),
        ("50000000000000000", "50000000000000001", False),
        ("1_0", "10", False),
        ("nan", "NaN", False),
        ("\u0661", "1", False),
        ("1e999999", "1e999998", False),
        ("9" * 5000, "9" * 4999 + "8", False),
    ],
)
def test_text_agrees_by_line_and_by_decimal(written: str, expected: str, same: bool) -> None:
    assert same_text(written, expected, {}) is same


def test_tolerance_and_case_only_where_the_problem_says_so() -> None:
    near = {"kind": "tolerance", "absolute": 1e-5, "relative": 1e-5}
    assert same_text("ok 3.14159265", "ok 3.141590", near)
    assert not same_text("3.1416", "3.1415", near)
    assert not same_text("3.14159265", "3.141590", {})
    assert same_text("1000001", "1000000", near)
    assert not same_text("inf", "1", near)
    assert same_text("yEs", "YES", {"kind": "case"})


@pytest.mark.parametrize(
    ("returned", "expected", "same"),
    [
        (b"[1, 2]", [1, 2], True),
        (b"2.0", 2, True),
        (b"true", 1, False),
        (b'"3"', 3, False),
        (b"null", 3, False),
        (b"NaN", 3, False),
        (b"", 3, False),
        (b"[" * 100_000, [1], False),
        (b"9" * 10_000, 3, False),
        (b'{"a": [1]}', {"a": [1]}, True),
        (b"[2, 1]", [1, 2], False),
    ],
)
def test_values_agree_with_their_types(returned: bytes, expected: Any, same: bool) -> None:
    assert same_value(returned, expected, {}) is same


def test_lcb_comparison_and_any_order_are_choices() -> None:
    assert same_value(b"true", 1, {}, is_strict=False)
    assert same_value(b"[[2, 1], [1]]", [[1], [2, 1]], {"kind": "any_order"})
    assert not same_value(b"[[1, 2], [1]]", [[1], [2, 1]], {"kind": "any_order"})


# ---- attacks ---------------------------------------------------------------------------------------

ATTACKS = {
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "memory of many": "import os\nfor _ in range(8): os.fork()\nx = []\nwhile True: x.append(b'x' * (1 << 22))",
    "endless errors": "import sys\nwhile True: sys.stderr.write('x' * 65536)",
    "kills its parent": "import os\nos.kill(os.getppid(), 9)\nos.kill(-1, 9)",
    "sleeper that outlives": "import os, time\nif os.fork() == 0:\n    os.setsid()\n"
    "    if os.fork() == 0: time.sleep(300)\n    os._exit(0)\nprint(2)",
    "files that fill the disk": "i = 0\nwhile True:\n    open(f'f{i}', 'wb').write(b'x' * (1 << 24)); i += 1",
    "memory in files of the kernel": "import os\nfor i in range(100): os.write(os.memfd_create('x'), b'x' * (1 << 26))",
    "closed stdin and stdout": "import os\nos.close(0)\nos.close(1)\nwhile True: pass",
    "exit in a finalizer": "import os, atexit\natexit.register(os._exit, 0)\nraise ValueError",
    "exit before the answer": "import os\nos._exit(0)",
    "killed by itself": "import os\nos.kill(os.getpid(), 9)",
    "network": "import socket\ns = socket.socket()\ns.connect(('127.0.0.1', 80))",
    "new namespaces": "import ctypes, sys\nsys.exit(ctypes.CDLL(None).unshare(0x10000000) == 0 or 1)",
    "mount": "import ctypes, sys\nsys.exit(ctypes.CDLL(None).mount(b'x', b'/', b'tmpfs', 0, None) == 0 or 1)",
    "raises its limits": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
    "breaks the channel": "import os\nos.write(3, b'ready\\n')",
    "deep recursion": "def f(n): return f(n + 1)\nf(0)",
    "huge source": "x = [" + "0," * 200_000 + "]\nraise ValueError",
    "nested source": "(" * 50_000,
    "null in source": "print(1)\0",
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox()
    yield sandbox
    sandbox.close()


SMALL = Limits(time_limit_s=2.0, memory_bytes=512 << 20, disk_bytes=64 << 20)


@pytest.mark.parametrize("attack", ATTACKS)
def test_attack_fails_and_the_next_program_is_unharmed(attack: str, sandbox: Sandbox) -> None:
    found = sandbox.run_stdin(ATTACKS[attack], "1\n", SMALL)
    assert found.ended is not Ended.infrastructure, found
    assert found.output.strip() != b"1"
    assert found.wall_s < 4.0
    assert sandbox.run_stdin("print(input())", "1\n", SMALL).output == b"1\n"
    assert programs_running() == []


def programs_running() -> list[int]:
    """Programs that are left, ours or nobody's: those under the sandbox of another test run are not ours to count."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    programs = [pid for pid in pids if _RUNNER.search(command_of(pid))]
    return [pid for pid in programs if not belongs_to_others(pid)]


_RUNNER = re.compile("program_runner.py|grade/program.py")


def belongs_to_others(pid: int) -> bool:
    while pid > 1:
        parent = parent_of(pid)
        if "growpage.grade.jail" in command_of(pid) and "growpage.grade.jail" not in command_of(
            parent
        ):
            return parent != os.getpid()
        pid = parent
    return False


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    except OSError:
        return ""


def needs_namespaces(sandbox: Sandbox) -> None:
    if sandbox.mode not in ("namespaces", "user_namespaces"):
        pytest.skip(f"this kernel allows no namespaces (mode {sandbox.mode})")


def test_nothing_of_ours_is_to_be_seen(sandbox: Sandbox, tmp_path: Path) -> None:
    needs_namespaces(sandbox)
    secret = tmp_path / "expected.json"
    secret.write_text("secret")
    os.environ["GROWPAGE_TEST_SECRET"] = "secret"
    program = (
        "import glob, os\n"
        f"os.symlink({str(secret)!r}, 'link')\n"
        f"for name in [{str(secret)!r}, 'link', '/proc/1/environ', '/proc/1/mem', *glob.glob('/proc/*/environ')]:\n"
        "    try: print(open(name, 'rb').read())\n"
        "    except OSError as error: print(type(error).__name__)\n"
        "print(os.environ, sorted(p for p in os.listdir('/proc') if p.isdigit()))"
    )
    try:
        found = sandbox.run_stdin(program, "", SMALL)
    finally:
        del os.environ["GROWPAGE_TEST_SECRET"]
    assert found.ended is Ended.finished, found
    assert b"secret" not in found.output
    assert b"['1', '2']" in found.output


def test_nothing_outside_the_box_can_be_written(sandbox: Sandbox, tmp_path: Path) -> None:
    needs_namespaces(sandbox)
    program = (
        "import os, sys\n"
        "for folder in ('/', '/usr', '/dev', '/etc', os.path.dirname(sys.executable), sys.base_prefix):\n"
        "    try: open(os.path.join(folder, 'growpage-was-here'), 'w'); print('written', folder)\n"
        "    except OSError: pass\n"
        "open('/tmp/own', 'w').write('x'); print(os.listdir('.'))"
    )
    found = sandbox.run_stdin(program, "", SMALL)
    assert b"written" not in found.output
    assert b"own" in found.output
    assert b"own" not in sandbox.run_stdin("import os; print(os.listdir('.'))", "", SMALL).output


def test_end_of_the_grader_ends_server_and_program(tmp_path: Path) -> None:
    import subprocess
    import sys
    import time

    code = (
        "import os, threading\nfrom growpage.grade.sandbox import Limits, Sandbox\n"
        "box = Sandbox()\nbox.mode\nprint(box._server[0]._process.pid, flush=True)\n"
        "box.run_stdin('import time; time.sleep(300)', '', Limits(time_limit_s=300))"
    )
    grader = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert grader.stdout is not None
    server = int(grader.stdout.readline())
    time.sleep(1.0)
    grader.kill()
    grader.wait()
    grader.stdout.close()
    deadline = time.monotonic() + 10.0
    while "growpage.grade.jail" in command_of(server) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert "growpage.grade.jail" not in command_of(server)


@pytest.mark.parametrize("mode", ["user_namespaces", "processes"])
def test_weaker_modes_keep_limits_and_leave_nothing(mode: str) -> None:
    sandbox = Sandbox(modes=[mode])
    if not sandbox.mode.startswith(mode):
        pytest.skip(f"this kernel does not allow {mode}")
    names = ["kills its parent", "sleeper that outlives", "network", "files that fill the disk"]
    for program in [ATTACKS[name] for name in names]:
        found = sandbox.run_stdin(program, "1\n", SMALL)
        assert found.ended is not Ended.infrastructure, found
        assert found.output.strip() != b"1"
    assert sandbox.run_stdin("print(input())", "1\n", SMALL).output == b"1\n"
    sandbox.close()
    assert programs_running() == []


def test_landlock_keeps_programs_to_their_folder(tmp_path: Path) -> None:
    sandbox = Sandbox(modes=["processes"])
    if not sandbox.mode.endswith("landlock"):
        pytest.skip("this kernel has no Landlock")
    (tmp_path / "secret").write_text("secret")
    program = (
        "import glob, os\n"
        f"for name in [{str(tmp_path / 'secret')!r}, *glob.glob('/proc/*/environ'), '/etc/passwd']:\n"
        "    try: open(name, 'rb').read(); print('read', name)\n"
        "    except OSError: pass\n"
        f"try: open({str(tmp_path / 'new')!r}, 'w'); print('written')\n"
        "except OSError: pass\n"
        "open('own', 'w').write('x'); print(open('own').read())\n"
        "import numpy; print(numpy.arange(2).sum())"
    )
    found = sandbox.run_stdin(program, "", SMALL)
    sandbox.close()
    assert (found.ended, found.output) == (Ended.finished, b"x\n1\n"), found


def test_the_strongest_mode_that_works_is_taken() -> None:
    sandbox = Sandbox(modes=["absent", "processes"])
    assert sandbox.mode.startswith("processes")
    sandbox.close()
    nothing = Sandbox(modes=["absent"])
    assert nothing.mode == ""
    assert nothing.run_stdin("print(1)", "", SMALL).ended is Ended.infrastructure
