"""Where a command begins. Ctrl-C during the imports, too, ends it without a traceback."""

import signal


def main() -> int:
    """Run the command line of this process; returns the exit status."""
    try:
        from growpage.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
