"""The command line: parse, call the library, print.

Each command is a function in a file of its own and adds only the checks that a command alone can need. `streamsampler
COMMAND --help` explains the options. The guide is `streamsampler/docs/cli.md`.
"""

from streamsampler.cli.app import main

__all__ = ["main"]
