"""`bench=sequences`: a split is a seed; the frozen test split has a seed of its own, never trained on."""

from growpage.bench.base import Problem, ProblemSet
from growpage.bench.problems import problem_set
from growpage.bench.sequences.generator import VERSION, Difficulty, make_plan
from growpage.bench.sequences.plan import Plan, name_of, question_text, solve
from growpage.bench.spec import BenchmarkSpec
from growpage.errors import require

FROZEN_SEED = 2026  # the test split; no policy or recipe is tuned on it
SECOND_SEED = 4051  # another split, to check the first
NUM_PROBLEMS = 200
KNOBS = ("kinds", "max_items", "max_steps", "max_phases")


class Sequences:
    """`num_problems_expected` problems, else 200; each depends on seed, index and difficulty alone.

    A knob that is None has the default of `Difficulty`, on which the bundled model was trained.
    """

    def __init__(self, spec: BenchmarkSpec) -> None:
        self._spec = spec
        self._difficulty = difficulty_of(spec)
        count = spec.num_problems_expected
        self._num_problems = NUM_PROBLEMS if count is None else count
        require(
            self._num_problems >= 1,
            "bench.num_problems_expected", self._num_problems, ">= 1 or null",
        )  # fmt: skip

    def load(self) -> ProblemSet:
        seed = self._spec.seed
        problems = [
            sequences_problem(seed, index, self._difficulty) for index in range(self._num_problems)
        ]
        source = f"growpage.bench.sequences version {VERSION}, seed {seed}, {self._difficulty}"
        return problem_set(self._spec.name, problems, source)

    def messages(self, problem: Problem) -> list[dict[str, str]]:
        """The question alone: the language of the problems leaves no room for an instruction."""
        return [{"role": "user", "content": problem.question}]


def difficulty_of(spec: BenchmarkSpec) -> Difficulty:
    """The knobs that `spec` sets. Raises `UsageError` for one out of range."""
    knobs = {name: getattr(spec, name) for name in KNOBS}
    chosen = {name: value for name, value in knobs.items() if value is not None}
    if "kinds" in chosen:
        chosen["kinds"] = tuple(chosen["kinds"])
    return Difficulty(**chosen)


def split_plan(seed: int, index: int, difficulty: Difficulty) -> Plan:
    """Problem `index` of the split `seed`. Training draws from streams of other names."""
    return make_plan(f"sequences-{VERSION}/split/{seed}", index, difficulty)


def sequences_problem(seed: int, index: int, difficulty: Difficulty) -> Problem:
    plan = split_plan(seed, index, difficulty)
    return Problem(
        id=f"sequences/{seed}/{index:04d}",
        question=question_text(plan),
        answer=str(solve(plan)),
        kind=plan.kind,
        metadata={
            "phases": [name_of(phase) for phase in plan.phases],
            "num_steps": sum(phase.num_steps for phase in plan.phases),
            "num_live_items": plan.num_live_items,
            "demand": demand_class(plan.num_live_items),
        },
    )


def demand_class(num_live_items: int) -> str:
    """How much must be kept: none (the last step), low (to 8 items), mid (to 28), high (more)."""
    for name, most in (("none", 0), ("low", 8), ("mid", 28)):
        if num_live_items <= most:
            return name
    return "high"
