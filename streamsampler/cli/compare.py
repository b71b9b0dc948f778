"""The command `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from streamsampler.cli import evaluate as evaluation
from streamsampler.cli import options as shared
from streamsampler.cli.grouping import command, option, options_of

if TYPE_CHECKING:  # the command's help is to come at once
    from streamsampler.cli.running import Run
    from streamsampler.evaluation.comparison import Comparison

_AGENTS = options_of(
    option("What", "--agent", "agents", multiple=True, metavar="NAME",
        help=f"An agent, which others are compared with, and then another one, or more. Each is {shared.NAMED_AGENTS}"),
    option("What", "--vec-normalize", multiple=True, metavar="FILE",
        help=f"For agents that are model.zip: {shared.WHAT_STATISTICS_ARE}. Once for all of them, or for each in "
        "their order."),
    shared.DETERMINISTIC,
)  # fmt: skip
_HOW_MUCH = options_of(
    option("How much (exactly one of these)", "-n", "--num-trajectories", type=shared.POSITIVE, metavar="N",
        help="Exactly N trajectories of each agent."),
    evaluation.SEEDS_AND_SCENARIOS,
    option("How much (exactly one of these)", "--until-decided", metavar="ALPHA",
        type=click.FloatRange(0, 0.5, min_open=True, max_open=True),
        help="Go on until a test is sure which agent is better. ALPHA is how often equal agents may be told apart, "
        "such as 0.05, although the test looks after each pair. May go through --seeds."),
)  # fmt: skip

_DECISION = options_of(
    option("With --until-decided", "--decide-on", type=click.Choice(["return", "success"]), default="return",
        show_default=True,
        help="What the test is about: the mean return, which needs --bounds, or the rate of success."),
    evaluation.bounds("With --until-decided"),
    evaluation.most("With --until-decided"),
)  # fmt: skip


@command("Compare agents on the same seeds.")
@shared.ENV_ID
@options_of(_HOW_MUCH, _DECISION, shared.PART, _AGENTS, evaluation.SUCCESS, shared.SAMPLED_BY,
    evaluation.RESULT, shared.PRINTED)  # fmt: skip
@click.pass_context
def compare(
    ctx: click.Context, /, env_id: str, as_json: bool, quiet: bool, imports: tuple[str, ...], **options: Any
) -> None:
    r"""Compare agents on the same seeds, and print their differences, pair by pair, with intervals.

    ENV_ID is an environment that is registered with Gymnasium, such as CartPole-v1, or module:ENV_ID to import a module
    first. Each agent is compared with the first one. After Ctrl-C the finished pairs are compared.

    Examples:
      streamsampler compare CartPole-v1 --agent old.zip --agent new.zip --num-trajectories 100 --seed 1 --out both.json
      streamsampler compare CartPole-v1 --agent random --agent my_agents:greedy --until-decided 0.05 --bounds 0 500
      streamsampler compare my/Maze-v0 --import my_envs --agent random --agent my_agents:greedy \
          --until-decided 0.05 --decide-on success

    Exit codes:
      0 success, 1 failure, 2 wrong usage, 130 after Ctrl-C, 143 after SIGTERM
    """
    names = ("num_trajectories", "seeds", "scenarios", "until_decided")
    amount = evaluation.taken_amount(ctx, options, names, ("bounds", "max_trajectories"))
    if len(options["agents"]) < 2:
        raise click.UsageError("a comparison needs two agents or more: give --agent for each of them.")
    from streamsampler.cli import naming
    from streamsampler.cli.running import Follower
    from streamsampler.core.errors import UsageError
    from streamsampler.environments.multi_agent import SpacesOfAgents
    from streamsampler.evaluation.compare import compare as compared

    def find(run: Run) -> Comparison:
        spaces = naming.environment_of(env_id, options["env_kwargs"])[1]
        if isinstance(spaces[0], SpacesOfAgents):
            raise UsageError(
                "compare is for environments of one agent here; in Python streamsampler.compare takes several dicts of "
                "policies, and return_of"
            )
        names = options["agents"]
        agents = naming.load_each(
            names, options["vec_normalize"], [spaces] * len(names), options["deterministic"], predicting=True
        )
        follower = Follower(run, 1 if "until_decided" in amount else len(agents))
        return compared(
            dict(zip(short_names(names), agents, strict=True)), env_id, **amount, decide_on=options["decide_on"],
            **evaluation.shared_arguments(options, amount), progress=follower,
        )  # fmt: skip

    evaluation.print_found(ctx, options, find, as_json=as_json, quiet=quiet, imports=imports)


def short_names(agents: tuple[str, ...]) -> list[str]:
    """Return a name for each agent: of files without their folders, unless these tell them apart."""
    short = [Path(name).name if name.endswith(".zip") else name for name in agents]
    names: list[str] = []
    for name, whole in zip(short, agents, strict=True):
        chosen = name if short.count(name) == 1 else whole
        names.append(chosen if chosen not in names else f"{chosen} #{len(names) + 1}")
    return names
