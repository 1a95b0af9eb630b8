"""Run a benchmark under a KV budget policy: `python run.py --help`."""

import sys

from growpage.start import main

if __name__ == "__main__":
    sys.exit(main())
