"""The list of commands.

A command imports its implementation when it runs, so that help and errors about options appear without NumPy and
Gymnasium.
"""

from __future__ import annotations

import signal
import sys

import click

from streamsampler.cli.bench import bench
from streamsampler.cli.check import check
from streamsampler.cli.compare import compare
from streamsampler.cli.evaluate import evaluate
from streamsampler.cli.export import export
from streamsampler.cli.info import info
from streamsampler.cli.merge import merge
from streamsampler.cli.plot import plot
from streamsampler.cli.replay import replay
from streamsampler.cli.sample import sample
from streamsampler.cli.streams import Interrupts, stream_errors_shown
from streamsampler.core.version import __version__


class _Listed(click.Group):
    """Lists its commands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return list(self.commands)


@click.group(cls=_Listed, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="streamsampler", message="%(prog)s %(version)s")
def cli() -> None:
    """Collect trajectories from Gymnasium environments in parallel, reproducibly, and evaluate agents."""


for _command in (sample, evaluate, compare, merge, check, bench, info, replay, plot, export):
    cli.add_command(_command)


def main() -> None:
    """Run the command `streamsampler`."""
    interrupts = Interrupts()
    interrupts.install()
    try:
        with stream_errors_shown():
            cli(obj=interrupts)
    finally:
        # Only the interpreter's own last steps remain, and a traceback from them would not help.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if interrupts.received is not None:
            sys.exit(interrupts.exit_code)
