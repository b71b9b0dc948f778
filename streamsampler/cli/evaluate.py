"""The commands `evaluate` and `compare`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import click

from streamsampler.cli import options as shared
from streamsampler.cli.options import TYPED, SeveralArgument, command, is_from_file, option, options_of
from streamsampler.cli.saved import comparison_of_files
from streamsampler.cli.suites import SUITE, TABLE, SuiteFile, agents_of, agents_to_compare, check_tasks, environments_of

if TYPE_CHECKING:
    from streamsampler.cli.running import CliRun
    from streamsampler.evaluation.comparison import Comparison
    from streamsampler.evaluation.evaluation import Evaluation
    from streamsampler.evaluation.suites.suite_comparison import SuiteComparison
    from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation

AnyFound: TypeAlias = "Evaluation | Comparison | SuiteEvaluation | SuiteComparison"

_SEEDS = re.compile(r"(?P<first>[0-9]{1,18})(-(?P<last>[0-9]{1,18}))?")
_MOST_SEEDS = 10_000_000
_WHICH = ("first", "best", "median", "worst")
_CODES = {"not worse": 0, "worse": 3, "undecided": 4}
"""The exit codes of verdicts."""
_UNTIL = ("guarantee", "min_trajectories", "max_trajectories")


def _seeds(text: str) -> list[int]:
    """Return the seeds of an option such as ``3,7,10-19``.

    Raises:
        click.BadParameter: The text has another form.
    """
    found: list[int] = []
    for bit in text.split(","):
        match = _SEEDS.fullmatch(bit.strip())
        if match is None:
            raise click.BadParameter(f"{bit.strip()!r} is neither a seed nor a range of seeds, such as 3,7,10-19")
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if last < first:
            raise click.BadParameter(f"{bit.strip()!r} goes down: a range of seeds is 10-19")
        if last - first >= _MOST_SEEDS:
            raise click.BadParameter(f"{bit.strip()!r} has {last - first + 1:,} seeds, more than {_MOST_SEEDS:,}")
        found += range(first, last + 1)
    return found


def _scenarios(name: str) -> list[Any]:
    return shared.json_list(name, '[{"seed": 1, "options": {}, "name": "…"}]')


def _video_of(_ctx: click.Context, _param: click.Parameter, values: tuple[str, ...]) -> tuple[Any, ...] | None:
    """Return words, and indices as integers; None for the default."""
    for value in values:
        if value not in _WHICH and not value.isdecimal():
            raise click.BadParameter(f"{value!r} is neither {', '.join(_WHICH)} nor an index")
    return tuple(int(value) if value.isdecimal() else value for value in values) or None


SEEDS_AND_SCENARIOS = options_of(
    option("How much (exactly one of these)", "--seeds", type=_seeds, metavar="SEEDS",
        help="A trajectory for each of these seeds, such as 3,7,10-19."),
    option("How much (exactly one of these)", "--scenarios", type=_scenarios, metavar="FILE",
        help="A trajectory for each scenario of a JSON file, in this order. The file has a list of objects with some "
             "of the keys 'seed', 'options' (for the reset) and 'name'."),
)  # fmt: skip
"""The trajectories to run."""

SUCCESS = option(
    shared.RECORDED, "--success", type=click.Choice(["end", "once"]), default="end", show_default=True,
    help="If infos have 'success' or 'is_success': whether the last timestep decides about success, or any timestep.",
)  # fmt: skip

RESULT = options_of(
    option("Output", "-o", "--out", metavar="FILE", show_default="the file of --resume",
        help="Write the result, with every return, its index and its seed, to a .json file. After Ctrl-C the file has "
        "the finished trajectories. While the command runs, and after a kill, they are in FILE.partial.json."),
    option("Output", "--resume", metavar="FILE",
        help="Resume from a file of --out, also of a killed command: its trajectories are not run again. Request more "
             "trajectories than before, or leave the amount out to complete the file's own. Repeat all other options "
             "that decide about trajectories, except --seed and --part."),
)  # fmt: skip
"""The files of results."""


BOUNDS = option(
    shared.RECORDED, "--bounds", type=float, nargs=2, metavar="LEAST LARGEST",
    help="The least and the largest possible return. With them an interval exists even if all returns are equal, or "
         "few, or uneven.",
)  # fmt: skip
"""The bounds of returns."""


def most(heading: str) -> Callable[[Any], Any]:
    """Return the option of the most trajectories, under a heading."""
    return option(
        heading, "--max-trajectories", type=shared.POSITIVE, metavar="N",
        show_default="10,000, or the number of seeds",
        help="The most trajectories; with --suite, of each task.",
    )  # fmt: skip


_RETURN_OF = option(
    shared.RECORDED, "--return-of", multiple=True, metavar="AGENT|POLICY|all",
    help="In environments of several agents: the agent for which returns count. May be repeated, for a team.",
)  # fmt: skip

_HOW_MUCH = options_of(
    option("How much (exactly one of these)", "--num-trajectories", type=shared.POSITIVE, metavar="N",
        help="Exactly N trajectories."),
    SEEDS_AND_SCENARIOS,
    option("How much (exactly one of these)", "--until-halfwidth", type=shared.ABOVE_ZERO, metavar="H",
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
    option("With --until-halfwidth", "--min-trajectories", type=shared.POSITIVE, metavar="N",
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
    from streamsampler.cli import naming
    from streamsampler.cli.running import Follower
    from streamsampler.evaluation.evaluate import evaluate as evaluated

    env_id = naming.take_policies(options, env_id or "")
    told = {name: options[name] for name in ("precision_of", "bounds", "video", "video_of")}
    told |= {} if suite is None else {"bounds": suite.bounds(options["bounds"])}
    told |= {"return_of": options["return_of"]} if options["return_of"] else {}

    def find(run: CliRun) -> Evaluation | SuiteEvaluation:
        if suite is not None:
            envs, of_tasks = environments_of(suite, options)
            return evaluated(
                agents_of(suite, options, of_tasks), envs, **amount, **told, normalise=suite.normalise(),
                tasks=options["tasks"] or None, open_envs=options["open_envs"], **suite_arguments(options, amount),
                progress=Follower(run),
            )  # fmt: skip
        spaces = naming.environment_of(env_id, options["env_kwargs"])[1]
        agent = naming.load_agents(options, spaces, predicting=True)
        follower = Follower(run, 1 if options["video"] is None else 2)
        return evaluated(agent, env_id, **amount, **told, **shared_arguments(options, amount), progress=follower)

    print_found(ctx, options, find, as_json=as_json, quiet=quiet, imports=imports)


def taken_amount(
    ctx: click.Context, options: dict[str, Any], names: tuple[str, ...], of_rule: tuple[str, ...]
) -> dict[str, Any]:
    """Remove the options of the number of trajectories from all options, and return them by name.

    Args:
        ctx: The command's context.
        options: The command's options.
        names: Names of these options; the last is a rule that decides when to stop, and may go through seeds.
        of_rule: The options of this rule.
    """
    if (suite := options.get("suite")) is not None:
        options["num_trajectories"] = suite.n_trajectories(ctx, options["num_trajectories"])
    amount = shared.given_amounts(ctx, options, names, "seeds", names[-1], optional=options["resume"] is not None)
    rule = {name: options.pop(name) for name in of_rule}
    if names[-1] not in amount and not any(is_from_file(ctx, name) for name in amount):
        rule = {name: value for name, value in rule.items() if not is_from_file(ctx, name)}
    return {**amount, **rule, "part": options.pop("part")}


def shared_arguments(options: dict[str, Any], amount: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments shared by `streamsampler.evaluate` and `compare`, without agents and amounts."""
    from streamsampler.cli.request import drawn_seed, sampler_arguments

    # The library reports that parts need a common seed, and resumes with the seed of a file.
    is_given = options["seed"] is not None or amount["part"] is not None or options["resume"] is not None
    seed = options["seed"] if is_given else drawn_seed()
    files = {name: options[name] for name in ("out", "resume")}
    arguments = {**sampler_arguments(options, seed), "success": options["success"], **files}
    return {**arguments, "env_kwargs": options["env_kwargs"]} if options["env_kwargs"] else arguments


def suite_arguments(options: dict[str, Any], amount: dict[str, Any]) -> dict[str, Any]:
    """Return `shared_arguments` without the arguments of environments, which belong to each task."""
    return {name: value for name, value in shared_arguments(options, amount).items() if name != "env_kwargs"}


def print_found(
    ctx: click.Context, options: dict[str, Any], find: Callable[[CliRun], AnyFound], *, as_json: bool,
    quiet: bool, imports: tuple[str, ...],
) -> None:  # fmt: skip
    """Evaluate or compare, print the result, write it, and exit.

    Args:
        ctx: The command's context.
        options: The options by name.
        find: Returns the result.
        as_json: Whether to print the JSON of `--out`.
        quiet: Whether to print only errors on standard error.
        imports: Modules to import first.
    """
    from streamsampler.cli.running import running, translated
    from streamsampler.cli.streams import print_error, print_result
    from streamsampler.evaluation.evaluate import EvaluationInterruptedError
    from streamsampler.evaluation.journal import INTERRUPTED
    from streamsampler.evaluation.replay import VideoError
    from streamsampler.evaluation.run_file import save_interrupted

    out = _take_files(options)
    begun, problem = perf_counter(), None
    with running(ctx, "evaluating", quiet=quiet, imports=imports) as run:
        run.if_interrupted = _if_interrupted(options)
        try:
            with run.bar:
                found = find(run)
        except EvaluationInterruptedError as interrupt:
            found = interrupt.found
        except VideoError as error:
            found, problem = error.found, error
        interrupted = run.interrupts.received is not None
        if out is not None:
            out = save_interrupted(found, out) if found.stopped == INTERRUPTED else found.save(out)
        text = _text(found, options, as_json=as_json)
    if interrupted or not run.shows_end:
        alone = "agents" in options and found.KIND in ("evaluation", "suite")
        print_error(_line(found, perf_counter() - begun, interrupted=interrupted, alone=alone))
    if not (as_json or options.get("table")):
        text += _written(ctx, out, options, found)
        if options.get("video") and problem is None and not interrupted:
            text += f"\nvideos in: {options['video']}"
    if problem is None:
        run.finish(text, kept=out, code=_code_of(found))
    with translated(ctx):
        print_result(text, kept=out)
        raise problem


def _code_of(found: AnyFound) -> int:
    """Return the exit code: 1 if a task of a suite failed, otherwise the code of the requested verdict."""
    if getattr(found, "failed", None):
        return 1
    if getattr(found, "margin", None) is None:
        return 0
    return _CODES[cast("Comparison | SuiteComparison", found).verdict().outcome]


def _text(found: AnyFound, options: dict[str, Any], *, as_json: bool) -> str:
    if as_json:
        return found.to_json().rstrip("\n")
    match options.get("table"):
        case "md":
            return cast("SuiteEvaluation", found).to_markdown().rstrip("\n")
        case "csv":
            return cast("SuiteEvaluation", found).to_csv().rstrip("\n")
    return str(found)


def _take_files(options: dict[str, Any]) -> Path | None:
    """Replace `--out` and `--resume` by paths that can be written; return the path to write."""
    from streamsampler.cli.naming import checked_file
    from streamsampler.evaluation.journal import whole_of

    for name in ("out", "resume"):
        if options[name] is not None:
            options[name] = checked_file(
                options[name], ".json", where="results are written to .json files", option=f"'--{name}'"
            )
    resumed: Path | None = options["resume"] and whole_of(options["resume"])
    options["out"] = options["out"] or resumed
    return options["out"]  # type: ignore[no-any-return]


def _if_interrupted(options: dict[str, Any]) -> str:
    """Return the message for a signal before the first trajectory."""
    return "nothing was kept" if options["resume"] is None else f"{options['resume']} is unchanged"


def _written(ctx: click.Context, out: Path | None, options: dict[str, Any], found: AnyFound) -> str:
    """Return lines about the file, and after an interrupt the command that completes it."""
    from streamsampler.cli.request import command_line
    from streamsampler.evaluation.journal import INTERRUPTED

    if out is None or found.stopped != INTERRUPTED:
        return "" if out is None else f"\nwritten to: {out}"
    more = () if options["resume"] is not None else ("--resume", str(options["out"]))
    return f"\nwritten to: {out}\nto get all: {command_line(ctx.meta[TYPED], *more)}"


def _line(found: AnyFound, seconds: float, *, interrupted: bool, alone: bool) -> str:
    from streamsampler.core.words import count, duration

    n_timesteps = sum(int(each.lengths.sum()) for each in found.evaluations)
    amount = f"{count(sum(map(len, found.evaluations)), 'trajectory')}, {count(n_timesteps, 'timestep')}"
    line = f"{amount} in {duration(seconds)}"
    why = " Only the first agent has trajectories: there are no pairs to compare yet." if alone else ""
    return f"Interrupted: the result is of {line}.{why}" if interrupted else line


_AGENTS = options_of(
    option(shared.RUNS, "--agent", "agents", multiple=True, metavar="NAME",
        help=f"The reference agent, and then one or more agents to compare with it. Each is {shared.NAMED_AGENTS}"),
    option(shared.RUNS, "--vec-normalize", multiple=True, metavar="FILE",
        help=f"For agents of the form model.zip: {shared.WHAT_STATISTICS_ARE}. Once for all models, or once per model "
             "in their order."),
    shared.DETERMINISTIC,
)  # fmt: skip
_HOW_MANY_PAIRS = options_of(
    option("How much (exactly one of these)", "--num-trajectories", type=shared.POSITIVE, metavar="N",
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
    from streamsampler.cli import naming
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
        spaces = naming.environment_of(env_id[0], options["env_kwargs"])[1]
        if isinstance(spaces[0], SpacesOfAgents):
            raise UsageError(
                "the command compares agents in environments of a single agent; for several agents use "
                "streamsampler.compare in Python, with dicts of policies and return_of"
            )
        agents = naming.load_each(
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
