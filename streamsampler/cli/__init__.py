"""The command line: parse, call the library, print.

::

    commands.py     the commands and their options
    execution.py    a command carried out, and what it prints
    request.py      what was asked for, and what came of it
    sampling.py     one run: from the one to the other
    sharding.py     a run that writes shards, and can be gone on with
    inspection.py   what a file or a folder holds
    models.py       agents from files
    arguments.py    kinds of option values
    outfile.py      the file or folder to write, checked before anything is sampled
    tally.py        returns and lengths, added up
    summary.py      what a run came to, for people and for programs
    failures.py     exceptions, as messages and exit codes
    notices.py      the library's warnings, above the progress bar
    interrupts.py   Ctrl-C and SIGTERM
    streams.py      standard output for the result alone
    grouping.py     options in groups

Exit codes: 0 success, 1 failure, 2 usage, 130 after Ctrl-C, 143 after SIGTERM.
"""

from streamsampler.cli.commands import main

__all__ = ["main"]
