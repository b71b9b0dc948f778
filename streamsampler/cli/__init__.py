"""The command line: parse, call the library, print.

Each command is a function in its own file, and checks only what the library cannot know. `streamsampler COMMAND --help`
explains the options. The guide is `streamsampler/docs/cli.md`.
"""

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command `streamsampler`."""
    try:
        # Imported here, so that Ctrl-C during the import of the commands prints no traceback.
        from streamsampler.cli.app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
