#!/usr/bin/env python
"""Train the bundled model: `python scripts/train_sequences_model.py --out DIR` (one GPU, minutes)."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":  # worker processes import this file and must not load torch
    sys.path.insert(0, str(ROOT / "src"))
    from growpage.sequences_training.command import main

    sys.exit(main(sys.argv[1:], ROOT / "conf" / "training"))
