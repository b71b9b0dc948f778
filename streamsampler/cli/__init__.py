"""The command line: parse, call the library, print.

Each command is a function in a file of its own and adds only the checks that a command alone can need. `streamsampler
COMMAND --help` explains the options. The guide is `streamsampler/docs/cli.md`.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command `streamsampler`."""
    try:
        # Not above: Ctrl-C while the commands are imported would print a traceback.
        from streamsampler.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
