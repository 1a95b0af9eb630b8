"""The command line of the training: build the data, train, export, measure, write the card."""

import argparse
import json
import logging
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from growpage.bench.sequences.vocabulary import WORDS
from growpage.errors import UsageError, require
from growpage.sequences_training.card import write_card
from growpage.sequences_training.config import TrainingConfig, load_config
from growpage.sequences_training.data import build_corpus
from growpage.sequences_training.evaluate import evaluate
from growpage.sequences_training.export import load_model, save_model, save_weights
from growpage.sequences_training.model import Reasoner
from growpage.sequences_training.recipe import Trainer

log = logging.getLogger(__name__)

RESERVE_S = 40.0  # of the time limit, for export and evaluation


def main(arguments: Sequence[str], config_folder: Path) -> int:
    """Run one training; returns the exit code. Mistakes of the user are printed in one line."""
    options = parser(config_folder).parse_args(arguments)
    try:
        require(options.max_minutes > 0, "--max-minutes", options.max_minutes, "> 0")
        config = load_config(config_folder / f"{options.preset}.yaml", options.overrides)
        device = pick_device(options.device)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    _log_to(options.out / "training.log")
    train(config, options.out, device, 60.0 * options.max_minutes)
    return 0


def parser(config_folder: Path) -> argparse.ArgumentParser:
    presets = sorted(path.stem for path in config_folder.glob("*.yaml"))
    result = argparse.ArgumentParser(
        prog="train_sequences_model.py",
        description="Train the bundled model `sequences_reasoner` from scratch and write it as a Hugging Face folder.",
        epilog="Example: train_sequences_model.py --out model optim.num_steps=5000 summaries.weight=0.05",
    )
    result.add_argument(
        "--out", type=Path, required=True, help="folder for the model, its card and training.log"
    )
    result.add_argument(
        "--preset", default="sequences_reasoner", choices=presets, help="recipe in conf/training (default: %(default)s)"
    )  # fmt: skip
    result.add_argument(
        "--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)"
    )
    result.add_argument(
        "--max-minutes", type=float, default=10.0,
        help="limit for everything; when it is near, the schedule is sped up (default: %(default)s)",
    )  # fmt: skip
    result.add_argument(
        "overrides", nargs="*", metavar="section.key=value", help="changes to the recipe"
    )
    return result


def pick_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device={name}: must be auto, cpu, cuda or cuda:N.") from None
    require(
        device.type != "cuda" or torch.cuda.is_available(),
        "--device",
        name,
        "a device that is present",
    )
    return device


def train(
    config: TrainingConfig, out: Path, device: torch.device, limit_s: float
) -> dict[str, Any]:
    """The whole run; the exported model is complete before anything is measured."""
    started = time.monotonic()
    log.info("config=%s", json.dumps(config.to_dict()))
    corpus = build_corpus(config.data, config.seed)
    log.info(
        "data documents=%d tokens=%d dropped=%d elapsed_s=%.0f",
        len(corpus.prompt_lengths), len(corpus.ids), corpus.num_dropped, time.monotonic() - started,
    )  # fmt: skip
    model = Reasoner(config.model, len(WORDS))
    model.initialise(config.seed)
    model.to(device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        model.compile_parts()
    save_model(model, out)
    trainer = Trainer(model, corpus, config, device)

    def seconds_left() -> float:
        return limit_s - min(RESERVE_S, limit_s / 4) - (time.monotonic() - started)

    report = trainer.run(seconds_left=seconds_left, save=lambda: save_weights(model, out))
    save_model(model, out)
    facts: dict[str, Any] = {
        "config": config.to_dict(),
        "report": asdict(report),
        "num_parameters": sum(weight.numel() for weight in model.parameters()),
        "vocab_size": len(WORDS),
        "num_documents": len(corpus.prompt_lengths),
        "num_dropped": corpus.num_dropped,
        "hardware": describe_hardware(device),
        "software": f"Python {platform.python_version()}, torch {torch.__version__}",
        "source": "scripts/train_sequences_model.py",
        "evaluation": None,
    }
    _write_facts(out, facts)
    _attempt(lambda: _measure(config, out, device, facts))
    log.info("done out=%s elapsed_s=%.0f", out, time.monotonic() - started)
    return facts


def _measure(
    config: TrainingConfig, out: Path, device: torch.device, facts: dict[str, Any]
) -> None:
    torch.set_float32_matmul_precision("highest")
    exported = load_model(out, config.model, device)
    facts["evaluation"] = evaluate(exported, config)
    _write_facts(out, facts)
    log.info("evaluation=%s", json.dumps(facts["evaluation"]))


def _attempt(work: Callable[[], None]) -> None:
    """A failed measurement is reported with its traceback; the exported model stays, its card says so."""
    try:
        work()
    except (RuntimeError, ValueError, IndexError) as error:
        log.error("the evaluation failed: %s", error, exc_info=True)


def _write_facts(out: Path, facts: dict[str, Any]) -> None:
    write_card(out, facts)
    (out / "training.json").write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def describe_hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return f"one {torch.cuda.get_device_name(device)}"
    return f"CPU ({platform.machine()}, {torch.get_num_threads()} threads)"


def _log_to(path: Path) -> None:
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(message)s",
        datefmt="%H:%M:%S",
        handlers=[logging.StreamHandler(sys.stdout), logging.FileHandler(path, mode="w")],
        force=True,
    )
