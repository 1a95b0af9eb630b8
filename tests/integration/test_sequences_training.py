"""The training command from end to end, tiny and on a CPU: a folder that others can load."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from growpage.bench.sequences.plan import question_text
from growpage.engine.models.loader import load_model as load_for_engine
from growpage.errors import UsageError
from growpage.sequences_training import command
from growpage.sequences_training.card import verify_weights
from growpage.sequences_training.config import load_config
from growpage.sequences_training.data import transcripts
from growpage.sequences_training.evaluate import forward_one, generate
from growpage.sequences_training.export import load_model

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "train_sequences_model.py"
TINY = ROOT / "conf" / "training" / "tiny.yaml"
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder that the command wrote."""
    out = tmp_path_factory.mktemp("trained")
    arguments = [
        "--preset",
        "tiny",
        "--device",
        "cpu",
        "--out",
        str(out),
        "evaluate.num_problems=2",
    ]
    assert command.main([*arguments, "optim.num_steps=20"], TINY.parent) == 0
    return out


@pytest.fixture(scope="module")
def facts(trained):
    return json.loads((trained / "training.json").read_text())


@pytest.fixture(scope="module")
def reasoner(trained):
    return load_model(trained, load_config(TINY).model, CPU)


@pytest.fixture(scope="module")
def problems():
    return transcripts(1, 5, load_config(TINY).data.difficulty)


@pytest.fixture
def logits(reasoner, problems):
    with torch.inference_mode():
        return reasoner.logits(forward_one(reasoner, problems[2].ids)[0])


def test_loss_falls(facts):
    losses = [entry["loss"] for entry in facts["report"]["history"]]
    assert losses[-1] < 6.3  # 6.75 is log of the vocabulary
    assert facts["report"]["num_steps"] == 20
    assert facts["report"]["final_summary_loss"] > 0


def test_card_names_the_weights_and_what_was_measured(trained):
    verify_weights(trained)
    card = (trained / "README.md").read_text()
    assert "**trained into** this model" in card
    assert "| frozen | greedy | 2 |" in card
    assert "| kind walk |" in card
    assert "num_steps: 20" in card


def test_damaged_weights_are_noticed(trained, tmp_path):
    for name in ("model.safetensors", "README.md"):
        (tmp_path / name).write_bytes((trained / name).read_bytes())
    damaged = bytearray((tmp_path / "model.safetensors").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "model.safetensors").write_bytes(damaged)
    with pytest.raises(UsageError, match="corrupt or from another run"):
        verify_weights(tmp_path)


def test_folder_is_small_and_flat(trained):
    files = list(trained.iterdir())
    assert len(files) <= 8
    assert all(path.is_file() and path.stat().st_size < 16 * 2**20 for path in files)


def test_transformers_gives_the_same_logits(trained, problems, logits):
    model = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    assert type(model).__name__ == "Qwen3ForCausalLM"
    with torch.inference_mode():
        theirs = model(torch.tensor([problems[2].ids])).logits[0]
    torch.testing.assert_close(theirs, logits, atol=1e-4, rtol=1e-4)


def test_engine_gives_the_same_logits(trained, problems, logits):
    decoder = load_for_engine(str(trained), dtype="float32", device="cpu").decoder
    ids = torch.tensor(problems[2].ids)

    def attend(_layer, _q_raw, q, k, v):
        group = q.shape[1] // k.shape[1]
        keys, values = (part.repeat_interleave(group, dim=1).transpose(0, 1) for part in (k, v))
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None], keys[None], values[None], is_causal=True
        )
        return mixed[0].transpose(0, 1)

    with torch.inference_mode():
        ours = decoder.compute_logits(decoder(ids, torch.arange(len(ids)), attend))
    torch.testing.assert_close(ours, logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("index", range(5))
def test_chat_template_gives_the_prompt_of_the_training(trained, problems, index):
    tokenizer = AutoTokenizer.from_pretrained(trained)
    messages = [{"role": "user", "content": question_text(problems[index].plan)}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt = problems[index].ids[: problems[index].num_prompt_tokens]
    assert tokenizer.encode(text, add_special_tokens=False) == prompt


def test_cached_generation_equals_recomputation(reasoner, problems):
    outputs = generate(reasoner, problems, [0.0] * 5, 160, torch.Generator().manual_seed(0))
    for problem, output in zip(problems, outputs, strict=True):
        prompt = problem.ids[: problem.num_prompt_tokens]
        with torch.inference_mode():
            scores = reasoner.logits(forward_one(reasoner, prompt + output)[0])
        best = scores[len(prompt) - 1 : -1]
        picked = best.gather(1, torch.tensor(output)[:, None])[:, 0]
        torch.testing.assert_close(picked, best.max(dim=1).values, atol=1e-3, rtol=0)


def test_failed_evaluation_leaves_the_model_and_says_so(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no memory left")

    monkeypatch.setattr(command, "evaluate", fail)
    arguments = ["--preset", "tiny", "--device", "cpu", "--out", str(tmp_path), "optim.num_steps=1"]
    assert command.main([*arguments, "data.num_problems=40"], TINY.parent) == 0
    verify_weights(tmp_path)
    assert "Not measured" in (tmp_path / "README.md").read_text()


def test_time_limit_ends_the_training(tmp_path):
    arguments = [
        "--preset",
        "tiny",
        "--device",
        "cpu",
        "--out",
        str(tmp_path),
        "--max-minutes",
        "0.1",
    ]
    changes = ["optim.num_steps=100000", "data.num_problems=100", "evaluate.num_problems=1"]
    assert command.main([*arguments, *changes], TINY.parent) == 0
    report = json.loads((tmp_path / "training.json").read_text())["report"]
    assert report["stopped_by_time"]
    assert report["seconds"] < 8


def test_script_explains_itself_and_refuses_mistakes(tmp_path):
    def run(*arguments):
        line = [sys.executable, str(SCRIPT), *arguments]
        return subprocess.run(line, capture_output=True, text=True, timeout=100)

    assert "--max-minutes" in run("--help").stdout
    wrong = run("--out", str(tmp_path), "--preset", "tiny", "optim.stepz=3")
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: optim.key=stepz: unknown")
    assert "Traceback" not in wrong.stderr


def test_worker_processes_give_the_same_corpus():
    code = (
        "from growpage.sequences_training.config import DataConfig\n"
        "from growpage.sequences_training.data import build_corpus\n"
        "import sys\n"
        "if __name__ == '__main__':\n"
        "    assert 'torch' not in sys.modules\n"
        "    make = lambda n: build_corpus(DataConfig(num_problems=1100, num_workers=n), 0).ids\n"
        "    assert (make(0) == make(2)).all()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr
