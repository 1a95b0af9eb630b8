"""The grader of programs: LiveCodeBench's rules in a sandbox, and a verdict that says which test decided."""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

from growpage.bench.base import Problem
from growpage.grade.base import Answer, Verdict
from growpage.grade.outputs import same_text, same_value
from growpage.grade.policy import CodePolicy
from growpage.grade.programs import Found, find_program, find_program_as_lcb
from growpage.grade.sandbox import Ended, Limits, ProgramRun, Sandbox
from growpage.grade.verifiers import is_right

CODE_GRADER_VERSION = 1  # any change that can change a verdict raises it
_SUITE_EXTRA_S = 5.0  # a program may take (limit + 1) * tests + 5 seconds, as in LiveCodeBench
_STRONG_MODES = ("namespaces", "user_namespaces")
_INFRASTRUCTURE = Ended.infrastructure.value

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The tests of one problem. A test has `input` and `output`; of a function, a list of arguments and a value."""

    kind: str
    tests: Sequence[dict[str, Any]]
    fn_name: str = ""
    checker: dict[str, Any]
    limits: Limits

    @classmethod
    def of(cls, problem: Problem, limits: Limits) -> "Suite":
        """What `problem.metadata` says; a problem may have limits of its own."""
        facts = problem.metadata
        own: dict[str, Any] = {}
        if "time_limit_s" in facts:
            own["time_limit_s"] = float(facts["time_limit_s"])
        if "memory_mb" in facts:
            own["memory_bytes"] = int(facts["memory_mb"]) << 20
        return cls(
            kind=facts.get("kind", "stdin"),
            tests=facts.get("tests", ()),
            fn_name=facts.get("fn_name", ""),
            checker=facts.get("checker", {}),
            limits=replace(limits, **own),
        )

    @property
    def limit_s(self) -> float:
        return (self.limits.time_limit_s + 1.0) * len(self.tests) + _SUITE_EXTRA_S


class CodeGrader:
    """Runs programs in as many sandboxes as it has workers; each test is a fresh process."""

    def __init__(
        self,
        *,
        policy: CodePolicy | None = None,
        timeout_s: float = 6.0,
        memory_gib: float = 4.0,
        num_workers: int = 1,
    ) -> None:
        """timeout_s: wall clock a test. More workers than cores make slow verdicts of right programs."""
        self._policy = policy if policy is not None else CodePolicy()
        self._limits = Limits(time_limit_s=timeout_s, memory_bytes=int(memory_gib * 2**30))
        self._sandboxes = [Sandbox() for _ in range(num_workers)]
        mode = self._sandboxes[0].mode or "none"  # starts it: the kernel decides
        self.version = f"code-{CODE_GRADER_VERSION}+sandbox-{mode}+policy-{self._policy.sha8()}"
        if mode not in _STRONG_MODES:
            log.warning("weaker sandbox mode=%s: this kernel allows no namespaces", mode)

    def grade(self, answers: Sequence[Answer]) -> list[Verdict]:
        """One verdict an answer, in order. Never raises for anything a model wrote."""
        if len(self._sandboxes) == 1:
            return [self._grade(answer, self._sandboxes[0]) for answer in answers]
        free: SimpleQueue[Sandbox] = SimpleQueue()
        for sandbox in self._sandboxes:
            free.put(sandbox)

        def with_sandbox(answer: Answer) -> Verdict:
            sandbox = free.get()
            try:
                return self._grade(answer, sandbox)
            finally:
                free.put(sandbox)

        with ThreadPoolExecutor(len(self._sandboxes)) as pool:
            verdicts = list(pool.map(with_sandbox, answers))
        # The clock decides: what was too slow beside others gets the machine for itself.
        return [
            self._grade(answer, self._sandboxes[0]) if "timeout" in verdict.flags else verdict
            for answer, verdict in zip(answers, verdicts, strict=True)
        ]

    def close(self) -> None:
        """End the sandboxes. The grader may be used again."""
        for sandbox in self._sandboxes:
            sandbox.close()

    def _grade(self, answer: Answer, sandbox: Sandbox) -> Verdict:
        """The boundary: our own failure is a verdict of its own, no exception and not "wrong"."""
        try:
            return self._verdict(answer, sandbox)
        except Exception as error:
            log.exception("grader failed problem=%s", answer.problem.id)
            return _no_verdict("grader_error", f"{type(error).__name__}: {error}")

    def _verdict(self, answer: Answer, sandbox: Sandbox) -> Verdict:
        flags = ["truncated"] if answer.finish_reason == "length" else []
        suite = Suite.of(answer.problem, self._limits)
        if not suite.tests:
            return _no_verdict("no_tests", f"problem {answer.problem.id} has no tests")
        if answer.finish_reason in ("abort", "error"):
            reason = f"the sample ended with {answer.finish_reason}"
            return Verdict(correct=False, reason=reason, flags=("no_answer",))
        found = self._find(answer)
        if found.program is None:
            flags += ["no_answer", *(["answer_in_reasoning_only"] if found.in_reasoning else [])]
            reason = f"no program: {found.reason}"
            return Verdict(correct=False, reason=reason, rule="none", flags=tuple(flags))
        verdict = self._judge(found.program, suite, sandbox)
        if answer.problem.metadata.get("public_tests_only"):
            flags.append("public_tests_only")
        return replace(verdict, flags=(*verdict.flags, *flags), extracted=found.program)

    def _find(self, answer: Answer) -> Found:
        if self._policy.extract == "lcb":
            return find_program_as_lcb(answer.text)
        return find_program(answer.text, reasoning_open=answer.reasoning_open)

    def _judge(self, program: str, suite: Suite, sandbox: Sandbox) -> Verdict:
        """The first test that fails decides."""
        deadline = time.monotonic() + suite.limit_s
        for number, test in enumerate(suite.tests, start=1):
            where = f"test {number} of {len(suite.tests)}"
            if time.monotonic() > deadline:
                reason = f"{where}: the whole suite took longer than {suite.limit_s:g} s"
                return Verdict(correct=False, reason=reason, rule="timeout", flags=("timeout",))
            run = self._run(program, suite, test, sandbox)
            if run.ended is Ended.infrastructure:
                return _no_verdict(_INFRASTRUCTURE, f"{where}: {run.detail}")
            if run.ended is not Ended.finished:
                name = run.ended.value
                reason = f"{where}: {name}" + (f": {run.detail}" if run.detail else "")
                return Verdict(correct=False, reason=reason, rule=name, flags=(name,))
            if not self._agrees(run, suite, test):
                flags = _care(suite.checker, is_lcb=self._policy.compare == "lcb")
                return Verdict(
                    correct=False, reason=f"{where}: wrong answer", rule="tests", flags=flags
                )
        return Verdict(
            correct=True, reason=f"all {len(suite.tests)} tests passed", rule="tests", flags=()
        )

    def _run(
        self, program: str, suite: Suite, test: dict[str, Any], sandbox: Sandbox
    ) -> ProgramRun:
        if suite.kind == "functional":
            return sandbox.run_function(program, suite.fn_name, test["input"], suite.limits)
        return sandbox.run_stdin(program, test["input"], suite.limits)

    def _agrees(self, run: ProgramRun, suite: Suite, test: dict[str, Any]) -> bool:
        if suite.kind == "functional":
            is_strict = self._policy.compare == "strict"
            return same_value(run.output, test["output"], suite.checker, is_strict=is_strict)
        written = run.output.decode("utf-8", "replace")
        if self._policy.compare == "lcb":
            return same_text(written, test["output"], {})
        if "verifier" in suite.checker:
            return is_right(suite.checker["verifier"], test["input"], written, test["output"])
        return same_text(written, test["output"], suite.checker)


def _care(checker: dict[str, Any], *, is_lcb: bool) -> tuple[str, ...]:
    """A problem that equality cannot judge, where equality did: interactive, a broken test, several outputs."""
    kind = checker.get("kind", "")
    is_doubtful = kind in ("interactive", "broken") or (kind == "several" and is_lcb)
    return (f"checker_{kind}",) if is_doubtful else ()


def _no_verdict(rule: str, reason: str) -> Verdict:
    flags = ("grader_error",) if rule == "grader_error" else ("grader_error", rule)
    return Verdict(correct=False, reason=reason, rule=rule, flags=flags)
