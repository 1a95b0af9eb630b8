"""Seeds and keys that do not move, and data that may not change under a run."""

import pytest

from growpage.bench.base import Problem, ProblemSet
from growpage.errors import UsageError
from growpage.run.resume import (
    check_same_data,
    check_same_files,
    missing,
    plan,
    prompt_hash,
    request_seed,
)


def problems(*names: str) -> tuple[Problem, ...]:
    return tuple(Problem(id=name, question="?", answer="1") for name in names)


def test_seed_is_the_same_for_ever() -> None:
    # a change here silently breaks the continuation of every stored run
    assert request_seed(0, "q1", 0) == 1231145495568851600
    assert request_seed(1, "gsm8k-17", 3) == 6868555723878134884


def test_seeds_differ_by_base_problem_and_index_and_fit_63_bits() -> None:
    seeds = [
        request_seed(base, f"q{problem}", index)
        for base in range(4)
        for problem in range(20)
        for index in range(4)
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert request_seed(1, "1", 1) != request_seed(11, "1", 1) != request_seed(1, "11", 1)


def test_plan_does_not_depend_on_the_order_of_problems() -> None:
    one = plan(problems("a", "b"), num_samples=2, base_seed=7, config_hash="h")
    other = plan(problems("b", "a"), num_samples=2, base_seed=7, config_hash="h")
    assert {item.key for item in one} == {item.key for item in other}
    assert [item.request_id for item in one] == ["a/0", "a/1", "b/0", "b/1"]


def test_plan_without_problems_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no problems"):
        plan((), num_samples=2, base_seed=0, config_hash="h")


def test_nothing_stored_means_everything_is_missing() -> None:
    items = plan(problems("a"), num_samples=3, base_seed=0, config_hash="h")
    assert missing(items, {}) == items


def test_same_data_passes_and_other_data_names_both() -> None:
    now = ProblemSet(name="gsm8k", problems=(), source="hub@2", sha256="b" * 64)
    check_same_data(None, now)
    check_same_data({"sha256": "b" * 64, "source": "hub@1"}, now)
    with pytest.raises(UsageError, match="aaaaaaaaaaaa from hub@1, now bbbbbbbbbbbb from hub@2"):
        check_same_data({"sha256": "a" * 64, "source": "hub@1"}, now)


def test_large_file_that_was_only_copied_is_the_same_file() -> None:
    before = {"m.safetensors": "size:9000,mtime_ns:1"}
    check_same_files(before, {"m.safetensors": "size:9000,mtime_ns:2"})
    check_same_files(None, {"m.safetensors": "size:9000,mtime_ns:2"})
    with pytest.raises(UsageError, match=r"m\.safetensors changed"):
        check_same_files(before, {"m.safetensors": "size:9001,mtime_ns:1"})


def test_prompt_hash_sees_every_token_and_their_borders() -> None:
    assert prompt_hash([1, 23]) != prompt_hash([12, 3])
    assert prompt_hash([1, 23]) == prompt_hash((1, 23))
