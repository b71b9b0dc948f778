"""The command `evaluate` and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamsampler.cli import options as arguments
from streamsampler.cli.amounts import check_part, given_amount
from streamsampler.cli.evaluation_options import RESULT, SEEDS_AND_SCENARIOS, SUCCESS, bounds, most, seeds_for
from streamsampler.cli.grouping import GroupedCommand, grouped_option, options_of
from streamsampler.cli.policies import POLICIES, RETURN_OF, take_policies
from streamsampler.cli.replay_command import VIDEO_EXTRA
from streamsampler.cli.shared_options import ENV_ID, PART, POSITIVE, PRINTED, SAMPLED_BY

_AMOUNTS = ("num_trajectories", "seeds", "scenarios", "until_halfwidth")
_WHICH = ("first", "best", "median", "worst")
_UNTIL = ("guarantee", "bounds", "min_trajectories", "max_trajectories")

_EXAMPLES = """\b
Examples:
  streamsampler evaluate CartPole-v1 --agent model.zip --num-trajectories 100 --seed 1 --out model.json
  streamsampler evaluate CartPole-v1 --agent my_agents:greedy --seeds 0-99
  streamsampler evaluate CartPole-v1 --until-halfwidth 5
  streamsampler evaluate my/Maze-v0 --import my_envs --until-halfwidth 0.05 --precision-of success --guarantee
  streamsampler evaluate my/Maze-v0 --import my_envs --scenarios mazes.json --json
  streamsampler evaluate CartPole-v1 --num-trajectories 100 --video videos --video-of worst --video-of 17
  streamsampler evaluate CartPole-v1 --num-trajectories 700 --seed 1 --part 2/7 --out part-2.json

\b
Exit codes:
  0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
"""


def _video_of(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[Any, ...]:
    """Return words, and indices as integers."""
    for value in values:
        if value not in _WHICH and not value.isdecimal():
            raise click.BadParameter(f"{value!r} is neither {', '.join(_WHICH)} nor an index")
    return tuple(int(value) if value.isdecimal() else value for value in values)


_HOW_MUCH = options_of(
    grouped_option(
        "How much (exactly one of these)", "-n", "--num-trajectories", type=POSITIVE, metavar="N",
        help="Exactly N trajectories.",
    ),
    SEEDS_AND_SCENARIOS,
    grouped_option(
        "How much (exactly one of these)", "--until-halfwidth", type=arguments.ABOVE_ZERO, metavar="H",
        help="Go on until half the width of the interval of the mean return is at most H. May go through --seeds.",
    ),
)  # fmt: skip

_PRECISION = options_of(
    grouped_option(
        "With --until-halfwidth", "--precision-of", type=click.Choice(["return", "success"]), default="return",
        show_default=True, help="What the interval is of: the mean return, or the rate of success.",
    ),
    grouped_option(
        "With --until-halfwidth", "--guarantee", is_flag=True,
        help="Use an interval that holds although it decides when to stop. It needs more trajectories, and for returns "
        "their --bounds. Without, intervals of returns hold in 90 to 95 of 100 evaluations.",
    ),
    bounds("With --until-halfwidth"),
    grouped_option(
        "With --until-halfwidth", "--min-trajectories", type=POSITIVE, metavar="N",
        show_default="30 for returns, 10 for success, 1 with --guarantee",
        help="The fewest trajectories to stop after.",
    ),
    most("With --until-halfwidth"),
)  # fmt: skip

_VIDEOS = options_of(
    grouped_option(
        "Output", "--video", type=click.Path(path_type=Path), metavar="FOLDER",
        help="Film some trajectories, which are chosen when the evaluation is complete, and run again. The files are "
        f"named by index, seed and return. {VIDEO_EXTRA}",
    ),
    grouped_option(
        "Output", "--video-of", callback=_video_of, multiple=True, metavar="WHICH",
        show_default="first, best, median and worst",
        help="With --video: which ones: first, best, median, worst, or an index. May be repeated.",
    ),
)  # fmt: skip


@click.command(cls=GroupedCommand, epilog=_EXAMPLES, short_help="Evaluate an agent: numbers with their intervals.")
@ENV_ID
@options_of(_HOW_MUCH, _PRECISION, PART, POLICIES, RETURN_OF, SUCCESS, SAMPLED_BY, RESULT, _VIDEOS, PRINTED)
@click.pass_context
def evaluate(
    ctx: click.Context, /, env_id: str, as_json: bool, quiet: bool, imports: tuple[str, ...], **options: Any
) -> None:
    """Evaluate an agent in an environment, and print each number with the interval that holds for it.

    ENV_ID is an environment that is registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module
    first; or a module of PettingZoo. The trajectories are the same for any number of workers. Progress is shown on
    standard error, with the interval as it narrows. After Ctrl-C the finished trajectories are evaluated.
    """
    env_id = take_policies(options, env_id)
    seeds = seeds_for(ctx, options, "until_halfwidth")
    name, value = given_amount(ctx, options, _AMOUNTS, "How many trajectories?")
    check_part(options, name, value)
    until = {name: options.pop(name) for name in _UNTIL}
    amount = {name: value, **seeds, **({"part": part} if (part := options.pop("part")) else {})}
    if name == "until_halfwidth":
        _check_bounds(until, options["precision_of"])
        amount |= {"precision_of": options["precision_of"], **until}
    else:
        arguments.refuse_without(ctx, until, "--until-halfwidth", name)
    del options["precision_of"]
    agent, statistics = options.pop("agent"), options.pop("vec_normalize")
    policies, return_of = options.pop("policies"), options.pop("return_of")
    arguments.check_statistics([agent] if policies is None else policies.values(), statistics)
    arguments.check_side_by_side(options)
    if options["video_of"] and options["video"] is None:
        raise click.UsageError("--video-of says what to film: give --video, the folder for the videos, too.")
    from streamsampler.cli.evaluating import execute, run_evaluation

    request = {
        **options, "env_id": env_id, "agents": (agent,), "vec_normalize": (statistics,) if statistics else (),
        "amount": amount, "policies": policies, "return_of": return_of,
    }  # fmt: skip
    execute(ctx, run_evaluation, request, imports, as_json=as_json, quiet=quiet)


def _check_bounds(until: dict[str, Any], precision_of: str) -> None:
    guarantee, bounds = until["guarantee"], until["bounds"]
    if bounds is not None and not guarantee:
        raise click.UsageError("--bounds are for --guarantee: give it, too.")
    if bounds is not None and precision_of == "success":
        raise click.UsageError("--bounds are those of returns, and the precision is that of the success rate.")
    if guarantee and bounds is None and precision_of == "return":
        raise click.UsageError("--guarantee needs --bounds LEAST LARGEST of returns: without, nothing is certain.")
