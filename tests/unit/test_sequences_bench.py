"""The problems of bench=sequences: stable, solvable, readable, and honest about what must be kept."""

from types import SimpleNamespace

import pytest

from growpage.bench.sequences.benchmark import (
    FROZEN_SEED,
    KNOBS,
    SECOND_SEED,
    Sequences,
    split_plan,
)
from growpage.bench.sequences.generator import ALL_KINDS, Difficulty, make_plan
from growpage.bench.sequences.plan import Lookup, parse, question_text, solve
from growpage.bench.sequences.transcript import Transcript
from growpage.bench.sequences.vocabulary import (
    NEWLINE,
    TOKEN_ID,
    WORDS,
    decode,
    encode,
)
from growpage.errors import UsageError

PLANS = [make_plan("test", index, Difficulty()) for index in range(60)]


def spec(**changes):
    settings = {"name": "sequences", "seed": FROZEN_SEED, "num_problems_expected": None}
    return SimpleNamespace(**(dict.fromkeys(KNOBS) | settings | changes))


def text_after_think(transcript):
    return decode(transcript.ids[transcript.num_prompt_tokens :])


def test_frozen_split_never_changes():
    problems = Sequences(spec()).load()
    assert len(problems.problems) == 200
    assert problems.sha256 == "97afa2d8ceadd10bfc684690358f53eddac981ac3f3a25803855db08d869a7f0"


def test_splits_have_no_problem_in_common():
    first = {problem.question for problem in Sequences(spec()).load().problems}
    second = {problem.question for problem in Sequences(spec(seed=SECOND_SEED)).load().problems}
    assert len(first) == 200
    assert not first & second


def test_problem_does_not_depend_on_how_many_are_loaded():
    few = Sequences(spec(num_problems_expected=7)).load().problems
    assert few == Sequences(spec()).load().problems[:7]


def test_kinds_take_turns_and_demand_differs():
    problems = Sequences(spec()).load().problems
    assert [problem.kind for problem in problems[:5]] == list(ALL_KINDS)
    demands = {problem.metadata["demand"] for problem in problems}
    assert demands == {"none", "low", "mid", "high"}


def test_vocabulary_has_no_word_twice():
    assert len(TOKEN_ID) == len(WORDS)


def test_question_is_one_user_message():
    bench = Sequences(spec())
    problem = bench.load().problems[0]
    assert bench.messages(problem) == [{"role": "user", "content": problem.question}]


@pytest.mark.parametrize("plan", PLANS[:20], ids=lambda plan: plan.kind)
def test_question_reads_back_as_its_plan(plan):
    assert parse(question_text(plan)) == plan
    assert parse(question_text(plan).replace(" \n ", "\n")) == plan


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.kind)
def test_worked_solution_ends_with_the_answer_of_plain_arithmetic(plan):
    transcript = Transcript(plan)
    assert transcript.answer == solve(plan)
    assert text_after_think(transcript).endswith(f"</think> {NEWLINE} answer {solve(plan)} <eos>")


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.kind)
def test_prompt_tokens_are_the_question(plan):
    transcript = Transcript(plan)
    prompt = transcript.ids[: transcript.num_prompt_tokens]
    assert prompt == encode(f"<bos> {question_text(plan)}\n<think>\n")
    assert len(prompt) < 620
    assert len(transcript.ids) <= 1536


def test_every_sum_of_a_solution_is_right():
    for plan in PLANS:
        for line in text_after_think(Transcript(plan)).split(NEWLINE):
            words = line.split()
            if "+" in words:
                plus = words.index("+")
                total = int(words[plus - 1]) + int(words[plus + 1])
                assert int(words[-1]) == total % 53


def test_small_lookup_reads_as_written_here():
    plan = parse("start 49\n1. lookup (2) from jar\ntable\nmoon >jar 36\njar >moon 10")
    lines = [line.strip() for line in text_after_think(Transcript(plan)).split(NEWLINE)]
    assert lines == [
        "phase 1. lookup (2) from jar",
        "note answer",
        "(2) jar >moon 10 + 49 = 6",
        "(1) moon >jar 36 + 6 = 42",
        "end 42",
        "</think>",
        "answer 42 <eos>",
    ]


def test_small_ledger_sweeps_over_all_items_made_so_far():
    plan = parse("start 15\n1. ledger (4) add 7")
    lines = [line.strip() for line in text_after_think(Transcript(plan)).split(NEWLINE)]
    assert lines[2:8] == [
        "#0 15",
        "#1 7",
        "(4) /1 #0 15 + 7 = #2 22",
        "(3) /1 #1 7 + 22 = #3 29",
        "(2) /3 #0 15 + 29 = #4 44",
        "(1) /3 #1 7 + 44 = #5 51",
    ]


def test_small_facts_are_summed_once_and_then_swept():
    plan = parse("start 11\n1. facts (3) sum /1\nlist\na0 33 a1 9")
    lines = [line.strip() for line in text_after_think(Transcript(plan)).split(NEWLINE)]
    assert lines[2:7] == [
        "/1 a0 33 #0 44",
        "/1 a1 9 #1 0",
        "(3) /1 #0 44 + 0 = 44",
        "(2) /1 #1 0 + 44 = 44",
        "(1) /1 #0 44 + 44 = 35",
    ]


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.kind)
def test_tokens_are_readable_at_least_until_the_end_of_their_line(plan):
    transcript = Transcript(plan)
    assert len(transcript.last_read) == len(transcript.ids)
    end = len(transcript.ids) - 1
    for position in range(end, 0, -1):
        if transcript.ids[position] == TOKEN_ID[NEWLINE]:
            end = position
        assert transcript.last_read[position] >= end


def test_table_row_is_needed_until_the_step_that_reads_it():
    plan = next(plan for plan in PLANS if plan.kind == "lookup")
    transcript = Transcript(plan)
    phase = plan.phases[0]
    assert isinstance(phase, Lookup)
    prompt = transcript.ids[: transcript.num_prompt_tokens]
    for _, to, _ in phase.rows:
        pointer = TOKEN_ID[">" + WORDS[TOKEN_ID["acorn"] + to]]
        uses = [place for place, word in enumerate(transcript.ids) if word == pointer]
        in_solution = [place for place in uses if place >= len(prompt)]
        if in_solution:
            assert transcript.last_read[uses[0]] >= in_solution[-1]


def test_walk_needs_nothing_old():
    transcript = Transcript(split_plan(1, 0, Difficulty(kinds=("walk",))))
    spans = [last - place for place, last in enumerate(transcript.last_read)][1:]
    assert max(spans) < 130  # a note lives for ten steps of seven tokens
    assert transcript.plan.num_live_items == 0


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("max_items", 3),
        ("max_items", 129),
        ("max_steps", 15),
        ("max_steps", 121),
        ("max_phases", 4),
    ],
)
def test_knob_out_of_range_is_refused_by_name(knob, value):
    with pytest.raises(UsageError, match=rf"bench\.{knob}={value}: must be"):
        Sequences(spec(**{knob: value}))


def test_unknown_kind_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"bench\.kinds=walks: unknown.*Did you mean walk\?"):
        Sequences(spec(kinds=["walks"]))


def test_no_problems_are_refused():
    with pytest.raises(UsageError, match="num_problems_expected"):
        Sequences(spec(num_problems_expected=0))


def test_knobs_bound_the_problems():
    problems = Sequences(spec(max_items=8, max_steps=20, kinds=["facts", "lookup"])).load().problems
    assert {problem.kind for problem in problems} == {"facts", "lookup"}
    assert all(problem.metadata["num_live_items"] <= 8 for problem in problems)
    assert all(problem.metadata["num_steps"] <= 20 for problem in problems)


@pytest.mark.parametrize(
    ("question", "complaint"),
    [
        ("", "ends where 'start'"),
        ("start 3", "has no phase"),
        ("start 3\n1. walk (20) add 77", "word 5 must be one of 0..52"),
        ("start 3\n1. walk (0) add 7", "at least one step"),
        ("start 3\n1. stroll (20) add 7", "expected one of walk"),
        ("start 3\n1. walk (20) add 7\nlist", "complete before this line"),
        ("start 3\n1. facts (9) sum /1\nlist\na0 4", "must name a0 to a1"),
        ("start 3\n1. lookup (9) from owl\ntable\nowl >fox 3", "pointed to must stand there"),
    ],
)
def test_malformed_question_names_its_line(question, complaint):
    with pytest.raises(UsageError, match=complaint):
        parse(question)


def test_word_outside_the_language_is_named():
    with pytest.raises(UsageError, match="prompt word 'banana'"):
        encode("start banana")
