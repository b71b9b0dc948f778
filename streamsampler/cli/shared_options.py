"""The options that several commands have, named alike in all of them."""

from __future__ import annotations

import click

from streamsampler.cli import options as arguments
from streamsampler.cli.grouping import grouped_option, options_of
from streamsampler.engines.launch.start_methods import START_METHODS
from streamsampler.engines.registry import ENGINES

POSITIVE = arguments.Count(min=1)

NAMED_AGENTS = (
    "'random', or 'package.module:object' for an agent, a function observation -> action, an object with predict, a "
    "torch module, or a class or function that makes one of these from the observation space and the action space. Or "
    "'model.zip' for a model of Stable-Baselines3 ('pip install stable-baselines3'); such files can run code."
)
_STATISTICS = (
    "the statistics of the VecNormalize that the model was trained under, which Stable-Baselines3 saves by themselves; "
    "'none' for a model that was trained without"
)
DETERMINISTIC = grouped_option(
    "What", "--deterministic/--stochastic", "deterministic", default=None,
    help="For models of Stable-Baselines3, other objects with predict, and torch modules: whether to act without "
    "drawing. The default of evaluate and compare is --deterministic, but for torch modules, and of sample, "
    "--stochastic.",
)  # fmt: skip

STATISTICS = grouped_option("What", "--vec-normalize", metavar="FILE", help=f"With --agent model.zip: {_STATISTICS}.")

ENV_ID = click.argument("env_id", metavar="ENV_ID")

AGENT = options_of(
    grouped_option(
        "What", "--agent", default="random", show_default=True, metavar="NAME",
        help=f"What chooses the actions: {NAMED_AGENTS}",
    ),
    STATISTICS,
    DETERMINISTIC,
)  # fmt: skip
"""Which agent."""

AGENTS = options_of(
    grouped_option(
        "What", "--agent", "agents", multiple=True, metavar="NAME",
        help=f"An agent, which others are compared with, and then another one, or more. Each is {NAMED_AGENTS}",
    ),
    grouped_option(
        "What", "--vec-normalize", multiple=True, metavar="FILE",
        help=f"For agents that are model.zip: {_STATISTICS}. Once for all of them, or for each in their order.",
    ),
    DETERMINISTIC,
)  # fmt: skip
"""Which agents."""

ENVIRONMENT = options_of(
    grouped_option(
        "What", "--env-kwarg", "env_kwargs", callback=arguments.env_kwargs, multiple=True, metavar="KEY=VALUE",
        help="An argument for making the environment; a Python literal, or true, false or null, or else text. May be "
        "repeated.",
    ),
    grouped_option(
        "What", "--import", "imports", multiple=True, metavar="MODULE",
        help="Import a module first, which registers the environment; from the current directory if it is not "
        "installed. May be repeated.",
    ),
    grouped_option(
        "What", "--max-episode-length", type=POSITIVE, metavar="N", show_default="the environment's own limit",
        help="Truncate trajectories after N timesteps.",
    ),
)  # fmt: skip
"""Which environment."""

HOW = options_of(
    grouped_option(
        "How", "--workers", type=click.IntRange(min=0), metavar="N", show_default="the cores there are to use",
        help="How many processes; 0 for none but this one.",
    ),
    grouped_option(
        "How", "--vec", type=POSITIVE, metavar="N",
        help="Run N environments side by side in each process, and ask the agent for their actions at once: faster "
        "with a network. Another N may give other trajectories.",
    ),
    grouped_option(
        "How", "--seed", type=click.IntRange(min=0), metavar="N", show_default="a random one, shown in the summary",
        help="The same seed gives the same trajectories, whatever the number of workers.",
    ),
    grouped_option(
        "How", "--worker-threads", callback=arguments.number_or_none, default="1", show_default=True, metavar="N",
        help="How many threads a network computes on in each process; 'none' leaves that to the libraries. The last "
        "bits of its numbers may depend on it.",
    ),
    grouped_option(
        "How", "--engine", type=click.Choice([*ENGINES, "ray"]),
        help="How processes are connected: 'processes' by pipes and shared memory, on Linux; 'queues' by queues of "
        "Python's own multiprocessing, on every system. 'ray' for actors of a Ray cluster, which needs the extra "
        "'ray'. The data are the same.",
    ),
    grouped_option(
        "How", "--ray-address", metavar="HOST:PORT", show_default="a cluster that is started for this run",
        help="With --engine ray: the address of the Ray cluster, of which this machine is a node; 'auto' finds "
        "one here.",
    ),
    grouped_option(
        "How", "--start-method", type=click.Choice(START_METHODS),
        help="How processes are started. 'fork' and 'spawn' choose --engine queues.",
    ),
)  # fmt: skip
"""How many workers, from which seed, and how processes are connected."""

FAILURES = options_of(
    grouped_option(
        "When something fails", "--on-failure", type=click.Choice(["raise", "drop"]), default="raise",
        show_default=True,
        help="What an exception of the environment or the agent does: 'raise' ends the command. 'drop' leaves its "
        "trajectory out, and takes another one instead; where failures depend on the state, what is left is biased.",
    ),
    grouped_option(
        "When something fails", "--fingerprint", callback=arguments.check_mode, default="warn", show_default=True,
        metavar="warn|error|none", help="What is done where processes compute with other kernels than others, or than "
        "those that wrote the folder that --resume continues: the same seed may give other trajectories there.",
    ),
    grouped_option(
        "When something fails", "--step-timeout", type=arguments.ABOVE_ZERO, metavar="SECONDS", show_default="no limit",
        help="Kill and replace a process in which a reset, an action or a timestep takes longer.",
    ),
    grouped_option(
        "When something fails", "--max-restarts", callback=arguments.quota, default="auto", show_default=True,
        metavar="N", help="How many processes that died or hung are replaced within a minute, and ten times as many in "
        "all; 'none' for any number, 'auto' for 10 with up to eight workers, in proportion with more. Their "
        "trajectories are run again, with the same result. One more ends the command.",
    ),
    grouped_option(
        "When something fails", "--max-worker-memory", callback=arguments.size, metavar="SIZE", show_default="no limit",
        help="Replace a process that uses more private memory than this, such as 500MB or 2GB.",
    ),
    grouped_option(
        "When something fails", "--close-timeout", type=arguments.ABOVE_ZERO, default=5.0, show_default=True,
        metavar="SECONDS", help="How long all processes together may take to close their environments at the end.",
    ),
)  # fmt: skip
"""What happens when something fails."""

_QUIET = "Print nothing on standard error but errors"
QUIET = grouped_option("Output", "-q", "--quiet", is_flag=True, help=f"{_QUIET}.")

QUIET_WITH_MODELS = grouped_option(
    "Output", "-q", "--quiet", is_flag=True,
    help=f"{_QUIET}, and the warning that a model's statistics are missing.",
)  # fmt: skip
"""Of the commands that take `--agent`."""

PRINTED = options_of(
    grouped_option("Output", "--json", "as_json", is_flag=True, help="Print the summary as one JSON object."),
    QUIET_WITH_MODELS,
)
"""What is printed."""

PART = grouped_option(
    "In parts", "--part", callback=arguments.part, metavar="I/N",
    help="Only the I-th, from 1 on, of N contiguous ranges of the trajectories, such as 2/7: for job arrays on "
    "clusters. 'streamsampler merge' makes of the files of all parts the file of one run, byte for byte. Not where it "
    "is unknown how many trajectories there will be.",
)  # fmt: skip
"""Which part of the trajectories."""

SAMPLED_BY = options_of(ENVIRONMENT, HOW, FAILURES)
"""What all commands have that run an environment."""
