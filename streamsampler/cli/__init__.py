"""The command line: parse, call the library, print.

::

    commands.py     the commands, their options, what they print
    sampling.py     one run: from what was asked for to what came of it
    arguments.py    kinds of option values
    outfile.py      the file to write, checked before anything is sampled
    summary.py      what a run came to, for people and for programs
    failures.py     exceptions, as messages and exit codes
    interrupts.py   Ctrl-C and SIGTERM
    streams.py      standard output for the result alone
    grouping.py     options in groups

Exit codes: 0 success, 1 failure, 2 usage, 130 after Ctrl-C, 143 after SIGTERM.
"""

from streamsampler.cli.commands import main

__all__ = ["main"]
