"""The commands `evaluate` and `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamsampler.cli import options as shared
from streamsampler.cli.evaluation_options import (
    BOUNDS,
    RESULT,
    SEEDS_AND_SCENARIOS,
    SUCCESS,
    most,
    shared_arguments,
    suite_arguments,
    taken_amount,
)
from streamsampler.cli.grouped import command, option, options_of
from streamsampler.cli.results import print_found
from streamsampler.cli.suites import SUITE, TABLE, SuiteFile, agents_of, check_tasks, environments_of
from streamsampler.cli.values import ABOVE_ZERO, POSITIVE

if TYPE_CHECKING:
    from streamsampler.cli.running import CliRun
    from streamsampler.evaluation.evaluation import Evaluation
    from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation

_WHICH = ("first", "best", "median", "worst")
_UNTIL = ("guarantee", "min_trajectories", "max_trajectories")


def _video_of(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[Any, ...] | None:
    """Return words, and indices as integers; None for the default."""
    for value in values:
        if value not in _WHICH and not value.isdecimal():
            raise click.BadParameter(f"{value!r} is neither {', '.join(_WHICH)} nor an index")
    return tuple(int(value) if value.isdecimal() else value for value in values) or None


_RETURN_OF = option(
    shared.RECORDED, "--return-of", multiple=True, metavar="AGENT|POLICY|all",
    help="In environments of several agents: the agent for which returns count. May be repeated, for a team.",
)  # fmt: skip
_HOW_MUCH = options_of(
    option("How much (exactly one of these)", "--num-trajectories", type=POSITIVE, metavar="N",
        help="Exactly N trajectories."),
    SEEDS_AND_SCENARIOS,
    option("How much (exactly one of these)", "--until-halfwidth", type=ABOVE_ZERO, metavar="H",
        help="Run trajectories until half the width of the mean return's interval is at most H; if all returns are "
             "equal, until at most 1 % of trajectories may have another return. May be combined with --seeds."),
)  # fmt: skip
_PRECISION = options_of(
    option(
        "With --until-halfwidth", "--precision-of", type=click.Choice(["return", "success"]), default="return",
        show_default=True, help="The interval's quantity: the mean return, or the success rate."),
    option("With --until-halfwidth", "--guarantee", is_flag=True,
        help="Use an interval that stays valid although it decides when to stop. It needs more trajectories, and for "
             "returns their --bounds. Without this option, intervals of returns hold in 90 to 95 of 100 evaluations."),
    option("With --until-halfwidth", "--min-trajectories", type=POSITIVE, metavar="N",
        show_default="30 for returns, 10 for success, 1 with --guarantee",
        help="Least number of trajectories before the end."),
    most("With --until-halfwidth"),
)  # fmt: skip
_VIDEOS = options_of(
    option("Output", "--video", type=click.Path(path_type=Path), metavar="FOLDER",
        help="Record videos of some trajectories, which are chosen after the evaluation and run again. Their file "
             f"names have index, seed and return. {shared.VIDEO_EXTRA}"),
    option("Output", "--video-of", callback=_video_of, multiple=True, metavar="WHICH",
        show_default="first, best, median and worst",
        help="With --video: the trajectories to record: first, best, median, worst, or an index. May be repeated."),
)  # fmt: skip


@command("Evaluate an agent: numbers with their intervals.")
@click.argument("env_id", metavar="[ENV_ID]", required=False)
@options_of(_HOW_MUCH, _PRECISION, shared.PART, SUITE, shared.POLICIES, _RETURN_OF, BOUNDS, SUCCESS, shared.SAMPLED_BY,
    RESULT, TABLE, _VIDEOS, shared.PRINTED)  # fmt: skip
@click.pass_context
def evaluate(
    ctx: click.Context, /, env_id: str | None, as_json: bool, quiet: bool, imports: tuple[str, ...], **options: Any
) -> None:
    """Evaluate an agent in an environment, and print each number with its interval.

    ENV_ID is an environment registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module first;
    or a module of PettingZoo. With --suite a file names the environments. The trajectories are the same for any number
    of workers. Progress appears on standard error, with the interval as it narrows. After Ctrl-C the finished
    trajectories are evaluated.

    Examples:
      streamsampler evaluate CartPole-v1 --agent model.zip --num-trajectories 100 --seed 1 --out model.json
      streamsampler evaluate CartPole-v1 --agent my_agents:greedy --seeds 0-99
      streamsampler evaluate CartPole-v1 --until-halfwidth 5
      streamsampler evaluate my/Maze-v0 --import my_envs --until-halfwidth 0.05 --precision-of success --guarantee
      streamsampler evaluate my/Maze-v0 --import my_envs --scenarios mazes.json --json
      streamsampler evaluate CartPole-v1 --num-trajectories 100 --video videos --video-of worst --video-of 17
      streamsampler evaluate CartPole-v1 --num-trajectories 700 --seed 1 --part 2/7 --out part-2.json
      streamsampler evaluate --suite suite.toml --agent my_agents:make --num-trajectories 50 --table md

    Exit codes:
      0 success, 1 failure (also of a task of a suite), 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
    """
    names = ("num_trajectories", "seeds", "scenarios", "until_halfwidth")
    check_tasks(env_id, options)
    suite: SuiteFile | None = options["suite"]
    amount = taken_amount(ctx, options, names, _UNTIL)
    from streamsampler.cli.agents import load_agents, take_policies
    from streamsampler.cli.environments import environment_of
    from streamsampler.cli.running import Follower
    from streamsampler.evaluation.evaluate import evaluate as evaluated

    env_id = take_policies(options, env_id or "")
    arguments = {name: options[name] for name in ("precision_of", "bounds", "video", "video_of")}
    arguments |= {} if suite is None else {"bounds": suite.bounds(options["bounds"])}
    arguments |= {"return_of": options["return_of"]} if options["return_of"] else {}

    def find(run: CliRun) -> Evaluation | SuiteEvaluation:
        if suite is not None:
            envs, of_tasks = environments_of(suite, options)
            return evaluated(
                agents_of(suite, options, of_tasks), envs, **amount, **arguments, normalise=suite.normalise(),
                tasks=options["tasks"] or None, open_envs=options["open_envs"], **suite_arguments(options, amount),
                progress=Follower(run),
            )  # fmt: skip
        spaces = environment_of(env_id, options["env_kwargs"])[1]
        agent = load_agents(options, spaces, predicting=True)
        follower = Follower(run, 1 if options["video"] is None else 2)
        return evaluated(agent, env_id, **amount, **arguments, **shared_arguments(options, amount), progress=follower)

    print_found(ctx, options, find, as_json=as_json, quiet=quiet, imports=imports)
