#!/usr/bin/env python
"""Engine speed: `python scripts/bench_engine.py preset=vs_vllm` (or nano, pressure, pressure_long, kernels)."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
    from growpage.speed.command import main

    sys.exit(main(sys.argv[1:]))
