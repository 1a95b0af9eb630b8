"""Run a benchmark under a KV budget policy: `python run.py --help`."""

import sys

try:
    from growpage.start import main
except ModuleNotFoundError as error:
    if error.name != "growpage":
        raise
    sys.exit(
        "error: this Python has no growpage. Use .venv/bin/python run.py (make run makes it), or: pip install -e ."
    )

if __name__ == "__main__":
    sys.exit(main())
