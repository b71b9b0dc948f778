"""The command `compare`."""

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
from streamsampler.cli.grouped import SeveralArgument, command, option, options_of
from streamsampler.cli.results import print_found
from streamsampler.cli.saved import comparison_of_files
from streamsampler.cli.suites import SUITE, SuiteFile, agents_to_compare, check_tasks, environments_of
from streamsampler.cli.values import POSITIVE

if TYPE_CHECKING:
    from streamsampler.cli.running import CliRun
    from streamsampler.evaluation.comparison import Comparison
    from streamsampler.evaluation.suites.suite_comparison import SuiteComparison

_AGENTS = options_of(
    option(shared.RUNS, "--agent", "agents", multiple=True, metavar="NAME",
        help=f"The reference agent, and then one or more agents to compare with it. Each is {shared.NAMED_AGENTS}"),
    option(shared.RUNS, "--vec-normalize", multiple=True, metavar="FILE",
        help=f"For agents of the form model.zip: {shared.WHAT_STATISTICS_ARE}. Once for all models, or once per model "
             "in their order."),
    shared.DETERMINISTIC,
)  # fmt: skip
_HOW_MANY_PAIRS = options_of(
    option("How much (exactly one of these)", "--num-trajectories", type=POSITIVE, metavar="N",
        help="Exactly N trajectories of each agent."),
    SEEDS_AND_SCENARIOS,
    option("How much (exactly one of these)", "--until-decided", metavar="ALPHA",
        type=click.FloatRange(0, 0.5, min_open=True, max_open=True),
        help="Run pairs until a test decides which agent is better. ALPHA is the probability of a wrong decision "
             "between equal agents, such as 0.05, although the test is evaluated after each pair. May be combined "
             "with --seeds. With --suite the test is about the mean over tasks, and is evaluated after rounds of "
             "trajectories of all tasks."),
)  # fmt: skip
_DECISION = options_of(
    most("With --until-decided"),
    option("Gate", "--fail-if-worse", "margin", type=float, metavar="MARGIN",
        help="Decide for each other agent whether it is worse than the first agent by more than MARGIN, which may be "
             "0: a mean return, or a success rate such as 0.05. The exit code is 3 if an agent is worse, and 4 if "
             "undecided. With --until-decided, run pairs until each agent is decided; ALPHA is then the probability "
             "of a wrong verdict."),
    option("Gate", "--decide-on", type=click.Choice(["return", "success"]), default="return", show_default=True,
        help="The quantity for --fail-if-worse and --until-decided: the mean return, for which --until-decided needs "
             "--bounds, or the success rate."),
)  # fmt: skip


@command("Compare agents on the same seeds.")
@click.argument("env_id", cls=SeveralArgument, metavar="[ENV_ID|FILE...]", nargs=-1)
@options_of(_HOW_MANY_PAIRS, _DECISION, shared.PART, SUITE, _AGENTS, BOUNDS, SUCCESS, shared.SAMPLED_BY,
    RESULT, shared.PRINTED)  # fmt: skip
@click.pass_context
def compare(
    ctx: click.Context, /, env_id: tuple[str, ...], as_json: bool, quiet: bool, imports: tuple[str, ...], **options: Any
) -> None:
    """Compare agents on the same seeds, and print their differences, pair by pair, with intervals.

    ENV_ID is an environment registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module first.
    Each agent is compared with the first. After Ctrl-C the finished pairs are compared; without any pair the first
    agent's trajectories are evaluated.

    Files of evaluate are compared without running anything, pair by pair if they have the same seeds.

    Examples:
      streamsampler compare CartPole-v1 --agent old.zip --agent new.zip --num-trajectories 100 --seed 1 --out both.json
      streamsampler compare old.json new.json
      streamsampler compare CartPole-v1 --agent random --agent my_agents:greedy --until-decided 0.05 --bounds 0 500
      streamsampler compare my/Maze-v0 --import my_envs --agent random --agent my_agents:greedy \
          --until-decided 0.05 --decide-on success
      streamsampler compare --suite suite.toml --agent old.zip --agent new.zip --num-trajectories 50
      streamsampler compare --suite suite.toml --agent old.zip --agent new.zip --until-decided 0.05 --bounds 0 500 \
          --fail-if-worse 10
      streamsampler compare CartPole-v1 --agent old.zip --agent new.zip --num-trajectories 100 --fail-if-worse 5

    Exit codes:
      0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM;
      with --fail-if-worse 0 no agent is worse, 3 an agent is worse, 4 undecided
    """
    if len(env_id) > 1 or "".join(env_id).endswith(".json"):
        compared_files = comparison_of_files(ctx, env_id, short_names(env_id), options)
        print_found(ctx, options, compared_files, as_json=as_json, quiet=quiet, imports=imports)
        return
    names = ("num_trajectories", "seeds", "scenarios", "until_decided")
    check_tasks("".join(env_id) or None, options)
    suite: SuiteFile | None = options["suite"]
    amount = taken_amount(ctx, options, names, ("max_trajectories",))
    if len(options["agents"]) < 2:
        raise click.UsageError("a comparison needs two agents or more: give --agent for each of them.")
    from streamsampler.cli.agents import load_each
    from streamsampler.cli.environments import environment_of
    from streamsampler.cli.running import Follower
    from streamsampler.core.errors import UsageError
    from streamsampler.environments.multi_agent import SpacesOfAgents
    from streamsampler.evaluation.compare import compare as compared

    def find(run: CliRun) -> Comparison | SuiteComparison:
        names = options["agents"]
        if suite is not None:
            envs, of_tasks = environments_of(suite, options)
            agents = agents_to_compare(suite, options, of_tasks)
            return compared(
                dict(zip(short_names(names), agents, strict=True)), envs, **amount,
                **{name: options[name] for name in ("margin", "decide_on")}, bounds=suite.bounds(options["bounds"]),
                normalise=suite.normalise(), tasks=options["tasks"] or None, open_envs=options["open_envs"],
                **suite_arguments(options, amount),
                progress=Follower(run, 1 if "until_decided" in amount else len(agents)),
            )  # fmt: skip
        spaces = environment_of(env_id[0], options["env_kwargs"])[1]
        if isinstance(spaces[0], SpacesOfAgents):
            raise UsageError(
                "the command compares agents in environments of a single agent; for several agents use "
                "streamsampler.compare in Python, with dicts of policies and return_of"
            )
        agents = load_each(
            names, options["vec_normalize"], [spaces] * len(names), options["deterministic"], predicting=True
        )
        follower = Follower(run, 1 if "until_decided" in amount else len(agents))
        return compared(
            dict(zip(short_names(names), agents, strict=True)), env_id[0], **amount,
            **{name: options[name] for name in ("margin", "decide_on", "bounds")},
            **shared_arguments(options, amount), progress=follower,
        )  # fmt: skip

    print_found(ctx, options, find, as_json=as_json, quiet=quiet, imports=imports)


def short_names(agents: tuple[str, ...]) -> list[str]:
    """Return a name for each agent: a file's name, with its folder only if the names alone are equal."""
    short = [Path(name).name if name.endswith((".zip", ".json")) else name for name in agents]
    names: list[str] = []
    for name, whole in zip(short, agents, strict=True):
        chosen = name if short.count(name) == 1 else whole
        names.append(chosen if chosen not in names else f"{chosen} #{len(names) + 1}")
    return names
