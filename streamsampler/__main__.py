"""Run the command line: `python -m streamsampler`."""

import os
import sys


def _forget_current_directory() -> None:
    """Remove the current directory from the front of `sys.path`, where `python -m` puts it.

    Otherwise a file in it with the name of an imported module, such as `numpy.py`, would run. `--import` and `--agent`
    append the directory. Python's own imports before this line need `python -P -m`, or the installed command.
    """
    try:
        current = os.getcwd()
    except OSError:  # it was removed
        current = ""
    if sys.path and sys.path[0] in ("", current) and not sys.flags.safe_path:
        del sys.path[0]


if __name__ == "__main__":
    _forget_current_directory()
    from streamsampler.cli import main

    main()
