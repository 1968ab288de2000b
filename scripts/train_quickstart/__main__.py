"""Train, save, reload, evaluate and write the model card."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from scripts.train_quickstart.card import evaluate_saved, model_card, training_section
from scripts.train_quickstart.configuration import SEED
from scripts.train_quickstart.corpus import load_corpus
from scripts.train_quickstart.evaluation import save
from scripts.train_quickstart.model import build_model
from scripts.train_quickstart.training import train

STEPS = 3700
THREADS = 2
OUT = Path("checkpoints/quickstart")


def parse_args() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train the quickstart checkpoint.")
    parser.add_argument("--steps", type=int, default=STEPS, help="number of optimizer steps")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write the checkpoint to")
    parser.add_argument("--threads", type=int, default=THREADS, help="torch CPU threads")
    parser.add_argument("--evaluate", action="store_true", help="only print the evaluation of the saved checkpoint")
    return parser.parse_args()


def main() -> None:
    """Train, save, reload, evaluate and write the model card."""
    args = parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    # Every buffer is written before it is read here; filling it first would only cost time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    corpus = load_corpus()
    if args.evaluate:
        print(evaluate_saved(corpus, args.out))
        return
    model = build_model()
    started = time.monotonic()
    train(model, corpus.train, args.steps)
    minutes = (time.monotonic() - started) / 60
    save(model, args.out)
    training = training_section(corpus, args.steps, args.threads, minutes)
    card = model_card(training, evaluate_saved(corpus, args.out), model.num_parameters())
    (args.out / "README.md").write_text(card)


if __name__ == "__main__":
    main()
