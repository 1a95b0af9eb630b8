"""Every option of every group composes and converts; who owns a null; what the run hash covers."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra import compose, initialize_config_dir

from growpage.budget.registry import POLICIES
from growpage.budget.scorer_settings import ScorerSettings
from growpage.budget.scorers.registry import SCORERS
from growpage.cli import register_schemas
from growpage.config import (
    GROUPS,
    Config,
    from_dict,
    num_samples_planned,
    resolve,
    to_config,
    to_dict,
)
from growpage.engine.arrivals import ArrivalConfig
from growpage.engine.config import EngineConfig
from growpage.errors import UsageError
from growpage.grade.math import MathGrader
from growpage.grade.policy import MathPolicy
from growpage.identity import OUTSIDE_HASH, config_hash, grader_hash, hashed_values, run_name
from growpage.places import CONFIG_FOLDER
from growpage.run.build import build_grader
from growpage.run.preflight import scorer_names

FILES = sorted(
    file for file in CONFIG_FOLDER.rglob("*.yaml") if "training" not in file.parts
)  # training/ belongs to another entry point
OPTIONS = [
    f"{file.parent.name}/{file.stem}"
    for file in FILES
    if file.parent.parent == CONFIG_FOLDER and file.parent.name != "hydra"
]
# Keys that a choice cannot do without.
NEEDED = {"model/local": ["model.path=/models/any"]}


@pytest.fixture(scope="module", autouse=True)
def hydra_is_ready() -> Iterator[None]:
    register_schemas()
    with initialize_config_dir(str(CONFIG_FOLDER), version_base="1.3"):
        yield


def config_of(*overrides: str) -> Config:
    return to_config(compose("config", overrides=list(overrides)))


def resolved(*overrides: str) -> Config:
    return resolve(config_of(*overrides), on_gpu=False)


def leaves(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key


# ---- composition -----------------------------------------------------------------------------------


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_composes_and_converts(option: str) -> None:
    group, name = option.split("/")
    config = resolved(f"{group}={name}", *NEEDED.get(option, ()))
    assert isinstance(config, Config)
    assert all(is_dataclass(getattr(config, key)) for key in (*GROUPS, "policy"))
    if group in ("model", "bench", "policy"):
        assert getattr(config, group).name == name


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_file_begins_with_a_command_that_composes(file: Path) -> None:
    comments = [line for line in file.read_text().splitlines() if line.startswith("#")]
    commands = [match for line in comments if (match := re.search(r"python run\.py(.*)", line))]
    if file.name == "quiet.yaml":  # in force for every command
        assert comments
        return
    assert commands, "no command in the comment"
    words = commands[0][1].split("     ")[0].split()
    overrides = [word for word in words if re.fullmatch(r"[a-z_.]+=[^…]+", word)]
    resolved(*overrides)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_keeps_its_own_class(name: str) -> None:
    assert type(config_of(f"policy={name}").policy) is POLICIES[name]


def test_a_set_value_keeps_the_class_of_the_policy() -> None:
    policy = config_of("policy=growpage", "policy.tau=0.25").policy
    assert type(policy) is POLICIES["growpage"]
    assert policy.tau == 0.25


def test_there_is_a_file_for_every_policy() -> None:
    files = {file.stem for file in (CONFIG_FOLDER / "policy").glob("*.yaml")}
    assert files == set(POLICIES)


@pytest.mark.parametrize(
    ("bench", "model"),
    [
        ("arithmetic", "smollm2_135m"),
        ("aime24", "qwen3_8b"),
        ("gsm8k", "qwen3_8b"),
        ("sequences", "sequences_reasoner"),
    ],
)
def test_a_benchmark_names_its_model(bench: str, model: str) -> None:
    assert config_of(f"bench={bench}").model.name == model


@pytest.mark.parametrize(
    "overrides",
    [
        ("bench=aime24", "model=smollm2_135m"),
        ("model=smollm2_135m", "bench=aime24"),
        ("experiment=policies", "bench=aime24", "model=smollm2_135m"),
    ],
)
def test_the_command_line_beats_the_model_of_the_benchmark(overrides: Sequence[str]) -> None:
    config = config_of(*overrides)
    assert (config.bench.name, config.model.name) == ("aime24", "smollm2_135m")


def test_an_experiment_gives_way_to_the_command_line() -> None:
    config = config_of("experiment=policies", "bench.limit=3")
    assert config.bench.limit == 3


@pytest.mark.parametrize(
    ("bench", "questions", "samples", "max_tokens", "budget"),
    [  # paper Table 5
        ("amc23", 40, 32, 16384, 4096),
        ("aime24", 30, 32, 32768, 4096),
        ("math500", 500, 8, 16384, 4096),
        ("gsm8k", 1319, 4, 16384, 4096),
    ],
)
def test_benchmarks_have_the_sizes_of_the_paper(
    bench: str, questions: int, samples: int, max_tokens: int, budget: int
) -> None:
    config = config_of(f"bench={bench}")
    found = config.bench
    assert (found.num_problems_expected, found.num_samples) == (questions, samples)
    assert (found.max_tokens, found.budget_tokens) == (max_tokens, budget)
    assert num_samples_planned(config) == questions * samples
    assert config.sampling.temperature == 0.6


def test_hub_data_are_pinned_to_the_commits_that_the_loader_knows() -> None:
    from growpage.bench.registry import make_benchmark

    for bench in ("gsm8k", "math500", "amc23", "aime24"):
        config = config_of(f"bench={bench}").bench
        stated = make_benchmark(config).hub_source()  # type: ignore[attr-defined]
        bare = replace(config, hub_id=None, hub_config=None, split=None, revision=None)
        assert stated == make_benchmark(bare).hub_source()  # type: ignore[attr-defined]


def test_the_card_of_the_model_sets_the_sampler() -> None:
    sampling = config_of("sampling=card", "model=qwen3_8b").sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.95, 20)


def test_all_missing_values_are_named_at_once() -> None:
    composed = compose("config", overrides=["model=local"])
    composed.bench.max_tokens = "???"
    with pytest.raises(UsageError, match=r"No value for bench\.max_tokens, model\.path\."):
        to_config(composed)


def test_the_help_text_names_every_option() -> None:
    text = yaml.safe_load((CONFIG_FOLDER / "hydra/help/growpage.yaml").read_text())["template"]
    words = set(re.split(r"[\s,:;]+", text))
    options = [option.split("/") for option in OPTIONS]
    assert not {f"{group}={name}" for group, name in options if not {group, name} <= words}


# ---- who owns a null -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "budget"),
    [
        (("model.kv_defaults.budget_tokens=128", "policy.budget_tokens=512"), 512),
        (("model.kv_defaults.budget_tokens=128", "bench.budget_tokens=256"), 128),
        (("model.kv_defaults.budget_tokens=null", "bench.budget_tokens=256"), 256),
        (("model.kv_defaults.budget_tokens=null", "bench.budget_tokens=null"), 4096),
    ],
    ids=["command line", "model", "benchmark", "paper"],
)
def test_a_budget_is_asked_of_the_next_owner(overrides: Sequence[str], budget: int) -> None:
    assert resolved("policy=fixed", *overrides).policy.budget_tokens == budget


def test_the_bundled_model_brings_small_pages_and_its_summaries() -> None:
    config = resolved()
    policy = config.policy
    assert config.engine.page_size == 16
    assert (policy.initial_pages, policy.k_loc) == (8, 4)
    assert (policy.beta_long, policy.ema_bias_correction) == (0.99, True)


def test_where_nobody_says_the_paper_does() -> None:
    config = resolved("model=local", "model.path=org/any")
    policy = config.policy
    assert (policy.initial_pages, policy.beta_long) == (8, 0.999)
    assert policy.ema_bias_correction is False


@pytest.mark.parametrize(("on_gpu", "device", "page"), [(False, "cpu", 16), (True, "cuda", 256)])
def test_the_device_decides_what_only_it_can_know(on_gpu: bool, device: str, page: int) -> None:
    config = resolve(config_of("model=local", "model.path=org/any"), on_gpu=on_gpu)
    assert (config.engine.device, config.engine.page_size) == (device, page)


def test_output_length_comes_from_the_benchmark_unless_set() -> None:
    assert resolved("bench=gsm8k").sampling.max_tokens == 16384
    assert resolved("bench=gsm8k", "sampling.max_tokens=7").sampling.max_tokens == 7


def test_resolving_twice_changes_nothing() -> None:
    config = resolved("policy=fixed")
    assert resolve(config, on_gpu=False) == config


def test_only_the_elastic_policy_gets_the_elastic_pool() -> None:
    assert resolved("policy=elastic-reserve").pool.kind.value == "elastic"
    assert resolved("policy=fullkv").pool.kind.value == "static"


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolved("paths.runs=out").paths.runs == str(tmp_path / "out")


# ---- plain values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_a_stored_configuration_reads_back_equal(name: str) -> None:
    config = resolved(f"policy={name}", "bench=gsm8k", "model=smollm2_135m")
    stored = json.loads(json.dumps(to_dict(config)))
    assert from_dict(stored) == config


def test_a_stored_configuration_with_a_foreign_key_is_refused() -> None:
    values = to_dict(resolved())
    values["policy"]["tua"] = 1
    with pytest.raises((UsageError, KeyError, AttributeError), match="tua"):
        from_dict(values)


def test_dict_config_is_known_to_two_modules_only() -> None:
    source = CONFIG_FOLDER.parent / "src" / "growpage"
    users = {file.name for file in source.rglob("*.py") if "DictConfig" in file.read_text()}
    assert users == {"cli.py", "config.py"}


def test_scorers_are_known_without_their_registry() -> None:
    assert scorer_names() == sorted(SCORERS)


# ---- the hash --------------------------------------------------------------------------------------

POLICY_FIELDS = {f"policy.{item.name}" for cls in POLICIES.values() for item in fields(cls)}
ENGINE_FIELDS = {f"engine.{item.name}" for item in fields(EngineConfig)}
INSIDE = {
    *POLICY_FIELDS,
    *(f"policy.scorer_settings.{item.name}" for item in fields(ScorerSettings)),
    *ENGINE_FIELDS,
    "model.path", "model.revision", "model.load_format", "model.dtype", "model.enable_thinking",
    "bench.family", "bench.hub_id", "bench.hub_config", "bench.split", "bench.revision",
    "bench.num_problems_expected",  # of bench=arithmetic, which makes so many
    "bench.gsm8k_samples", "bench.gsm8k_thinking",
    "bench.kinds", "bench.max_items", "bench.max_steps", "bench.max_phases",
    "bench.limit", "bench.num_samples", "bench.prompt_role", "bench.instruction", "bench.seed",
    "pool.kind",
    "sampling.temperature", "sampling.top_p", "sampling.top_k", "sampling.min_p",
    "sampling.max_tokens", "sampling.ignore_eos",
    *(f"arrivals.{item.name}" for item in fields(ArrivalConfig)),
    "seed",
}  # fmt: skip
LATER = {"bench.gsm8k_samples", "bench.gsm8k_thinking"}  # inside unless they are null
OUTSIDE = {
    "model.name", "model.needs_gpu", "model.params_b", "model.install",
    "model.kv_defaults.page_size", "model.kv_defaults.initial_pages",
    "model.kv_defaults.beta_long", "model.kv_defaults.ema_bias_correction",
    "model.kv_defaults.budget_tokens",
    "model.card.temperature", "model.card.top_p", "model.card.top_k", "model.card.min_p",
    "bench.name", "bench.path", "bench.max_tokens", "bench.budget_tokens",
    "grader.name", "grader.timeout_s", "grader.memory_gib", "grader.num_workers",
    "grader.whole_output", "grader.code.extract", "grader.code.compare",
    *(f"grader.policy.{item.name}" for item in fields(MathPolicy)),
    "paths.runs", "stage", "fresh", "trace", "dry_run",
}  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
def test_every_field_is_inside_or_outside_the_hash(name: str) -> None:
    config = resolved(f"policy={name}")
    everything, inside = set(leaves(to_dict(config))), set(leaves(hashed_values(config)))
    assert inside == (everything & INSIDE) - LATER
    assert everything - inside == everything & (OUTSIDE | LATER)
    assert not INSIDE & OUTSIDE


def test_the_table_of_excluded_keys_names_only_existing_ones() -> None:
    prefixes = {name.rpartition(".")[0] for name in OUTSIDE} | OUTSIDE
    assert prefixes >= OUTSIDE_HASH


@pytest.mark.parametrize(
    "override",
    ["policy.tau=0.01", "seed=1", "bench.limit=3", "sampling.max_tokens=9", "engine.page_size=32"],
)
def test_what_changes_results_changes_the_hash(override: str) -> None:
    assert config_hash(config_of(override)) != config_hash(config_of())


@pytest.mark.parametrize(
    "override",
    [
        "paths.runs=/elsewhere",
        "stage=grade",
        "fresh=true",
        "trace=true",
        "dry_run=true",
        "grader.timeout_s=3",
    ],
)
def test_what_does_not_leaves_the_hash(override: str) -> None:
    assert config_hash(config_of(override)) == config_hash(config_of())


def test_a_default_that_is_spelt_out_leaves_the_hash() -> None:
    spelt_out = config_of("policy.initial_pages=8", "policy.beta_long=0.99", "policy.k_loc=4")
    assert config_hash(spelt_out) == config_hash(config_of())


@pytest.mark.parametrize("family", ["arithmetic", "sequences"])
def test_the_number_of_generated_problems_changes_the_hash(family: str) -> None:
    setting = f"bench.family={family}"
    fewer = config_of(setting, "bench.num_problems_expected=12")
    assert config_hash(fewer) != config_hash(config_of(setting))


def test_the_number_that_a_data_set_must_have_leaves_the_hash() -> None:
    setting = ("bench=gsm8k", "model=smollm2_135m")
    unchecked = config_of(*setting, "bench.num_problems_expected=null")
    assert config_hash(unchecked) == config_hash(config_of(*setting))


def test_a_local_file_counts_by_its_content(tmp_path: Path) -> None:
    first, moved = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    first.write_text('{"question": "1+1?", "answer": "2"}\n')
    moved.write_text(first.read_text())
    setting = ("bench=gsm8k", "model=smollm2_135m")
    before = config_hash(config_of(*setting, f"bench.path={first}"))
    assert config_hash(config_of(*setting, f"bench.path={moved}")) == before
    first.write_text('{"question": "1+2?", "answer": "3"}\n')
    assert config_hash(config_of(*setting, f"bench.path={first}")) != before


def test_a_grader_is_known_by_what_decides_its_verdicts() -> None:
    before = grader_hash(config_of())
    assert grader_hash(config_of("grader.num_workers=2")) == before
    assert grader_hash(config_of("grader.timeout_s=3")) != before
    assert grader_hash(config_of("grader.policy.accept_truncated=false")) != before


def test_a_decision_of_the_grader_reaches_it() -> None:
    decisions = ("grader.policy.tolerance=0.01", "grader.policy.case_matters=true")
    config = config_of("grader=math", *decisions)
    assert config.grader.policy == MathPolicy(tolerance=0.01, case_matters=True)
    assert build_grader(config).version == MathGrader(policy=config.grader.policy).version


def test_the_file_of_the_grader_states_the_decisions_of_the_project() -> None:
    stated = yaml.safe_load((CONFIG_FOLDER / "grader/math.yaml").read_text())["policy"]
    assert stated == asdict(MathPolicy())


@pytest.mark.parametrize("policy", ["growpage", "elastic-reserve"])
def test_run_names_are_safe_in_every_shell(policy: str) -> None:
    name = run_name(config_of(f"policy={policy}"))
    assert re.fullmatch(r"[a-z0-9_.-]+-[0-9a-f]{8}", name)
