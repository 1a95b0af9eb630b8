"""The budget study of the bundled model: tables and figure from runs of `experiment=study`, or from an exported file.

python run.py -m experiment=study && python scripts/make_study.py
python scripts/make_study.py results/paper/data/study.parquet --out results/paper/study
"""

import argparse
import sys
from pathlib import Path

from growpage.errors import EXIT_USAGE, UsageError
from growpage.paper.stored import read_stored
from growpage.paper.study import write_study
from growpage.places import default_runs_folder
from growpage.store.errors import StoreError
from growpage.store.sweeps import last_sweep


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("runs", nargs="*", help="runs or exported files; default: the last sweep")
    parser.add_argument(
        "--out", type=Path, default=Path("results/study"), help="folder to write to"
    )
    args = parser.parse_args()
    root = default_runs_folder()
    try:
        for path in write_study(read_stored(root, args.runs or last_sweep(root)), args.out):
            print(f"written  {path}")
    except (UsageError, StoreError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_USAGE
    return 0


if __name__ == "__main__":
    sys.exit(main())
