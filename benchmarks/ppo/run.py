"""Measure PPO's wall time to a given return.

    python -m benchmarks ppo                    # CartPole-v1 and Pendulum-v1, three seeds: some twenty minutes
    python -m benchmarks ppo --seeds 1 --env CartPole-v1 --contenders example,gymnasium_sync
    python -m benchmarks ppo --env HalfCheetah-v5 --contenders example,sb3 --out benchmarks/results/ppo_halfcheetah.json

The contenders, which all learn with the code of `streamsampler.examples.ppo` but for Stable-Baselines3:

- `example`: that example. Fragments of 250 timesteps of eight environments, whose episodes go on; two workers with four
  environments each (`VecWorker`), torch in the workers.
- `streamsampler`: whole trajectories in place of fragments, one environment per worker; `streamsampler_numpy`: the
  actor run by NumPy there (`MlpAgent`), and values computed afterwards; `streamsampler_vec`, `streamsampler_vec_numpy`:
  these two with several environments per worker, and batched actions.
- `gymnasium_sync`, `gymnasium_async`: Gymnasium's vector environments, and actions for all of them in one pass. They do
  not normalise, so they cannot take HalfCheetah-v5.
- `sb3`, `sb3_subproc`: Stable-Baselines3's PPO with its own loop, in one process or with one for each environment. It
  is the reference for the learning curve. (`sb3_subproc` only where it is asked for.)

sb3 has the same algorithm, networks, initialisation, optimiser, hyperparameters and running statistics in its own code.
Torch has one thread everywhere.

This cannot be the same: whole trajectories are the shortest prefix with at least 2,000 timesteps. So these batches are
somewhat longer and vary, and every return is complete but where the environment truncates; there the value of the true
last observation stands for the rest. Fragments let the value of the next observation stand for the rest; the next batch
continues from there. With whole trajectories each batch starts from resets, so that early parts of episodes weigh more
where episodes are longer than a fragment. Episodes count when they have ended, so long ones that run on show late in
the fragments' curves. Statistics to normalise by stand still in each batch of this library, and move with each timestep
in sb3.

A run's clock starts after all imports and before the first environment or process is made, and includes the workers'
start. Contenders take turns, seed by seed, in changing order, each in a process of its own. Learned is what first has a
mean return over 20 successive training episodes at the target. Needs torch, stable-baselines3 and, for the chart,
matplotlib.
"""

from __future__ import annotations

import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import click

from benchmarks.harness import machine
from benchmarks.harness.running import ROOT
from benchmarks.ppo.results import Result, finals, reached, save, summary
from benchmarks.ppo.tasks import TASKS
from streamsampler.core.extras import install_hint

RESULTS = ROOT / "benchmarks" / "results"
COLOURS = {
    "example": "tab:brown",
    "streamsampler": "tab:blue",
    "streamsampler_numpy": "tab:purple",
    "streamsampler_vec_numpy": "tab:pink",
    "streamsampler_vec": "tab:cyan",
    "gymnasium_sync": "tab:orange",
    "gymnasium_async": "tab:red",
    "sb3": "tab:green",
    "sb3_subproc": "tab:olive",
}


def run_in_process(
    name: str, env_id: str, seed: int, workers: int, start_method: str | None, steps: int | None
) -> Result:
    """One run, in a fresh process; raises where it fails."""
    arguments = ["--run", name, "--env", env_id, "--first-seed", str(seed), "--workers", str(workers)]
    arguments += [] if steps is None else ["--timesteps", str(steps)]
    arguments += [] if start_method is None else ["--start-method", start_method]
    command = [sys.executable, "-m", "benchmarks.ppo.run", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return {"contender": name, "env": env_id, "seed": seed, **json.loads(done.stdout.splitlines()[-1])}


def chart(results: list[Result], path: Path) -> None:
    """Returns by timesteps, and by seconds: a thin line for each seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    environments = list(dict.fromkeys(result["env"] for result in results))
    figure, rows = pyplot.subplots(len(environments), 2, figsize=(12, 4 * len(environments)), squeeze=False)
    for env_id, axes in zip(environments, rows, strict=True):
        for axis, x in zip(axes, ("timesteps", "seconds"), strict=True):
            named: set[str] = set()
            for result in [result for result in results if result["env"] == env_id]:
                name = result["contender"]
                points = [point for point in result["curve"] if point["mean_return"] is not None]
                label = None if name in named else name
                named.add(name)
                ys = [point["mean_return"] for point in points]
                axis.plot([point[x] for point in points], ys, color=COLOURS[name], lw=1.2, alpha=0.8, label=label)
            axis.axhline(TASKS[env_id].target, color="grey", ls=":", lw=1)
            axis.set(xlabel=x, ylabel="mean return of 20 training episodes", title=env_id)
            axis.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=100)


def one_run(name: str, env_id: str, seed: int, workers: int, start_method: str | None, timesteps: int | None) -> None:
    """Train, and print a line of JSON."""
    import dataclasses

    from benchmarks.ppo.runs import run

    task = TASKS[env_id]
    iterations = task.iterations if timesteps is None else math.ceil(timesteps / task.batch)
    print(json.dumps(run(name, dataclasses.replace(task, iterations=iterations), seed, workers, start_method)))


def known_contenders(given: str | None, environments: tuple[str, ...]) -> list[str]:
    """The contenders to run, or an error that names those there are."""
    from benchmarks.ppo.runs import names

    able = [
        name for name in names()
        if not (name.startswith("gymnasium") and any(TASKS[env_id].normalize for env_id in environments))
    ]  # fmt: skip
    if given is None:
        return [name for name in able if name != "sb3_subproc"]
    chosen = given.split(",")
    unknown = [name for name in chosen if name not in able]
    if unknown:
        raise click.BadParameter(
            f"no contender {', '.join(unknown)} for {', '.join(environments)}; there are {', '.join(able)}"
        )
    return chosen


def check_packages(names: list[str]) -> None:
    """Raise an error where Stable-Baselines3 is missing: before the first run, and not after some minutes."""
    if {"sb3", "sb3_subproc"} & {*names} and importlib.util.find_spec("stable_baselines3") is None:
        raise click.ClickException(f"sb3 needs Stable-Baselines3: {install_hint('sb3')}; or choose --contenders")


@click.command(context_settings={"show_default": True})
@click.option(
    "--env", "environments", multiple=True, default=["CartPole-v1", "Pendulum-v1"], type=click.Choice([*TASKS])
)
@click.option("--contenders", default=None, help="Names, with commas between them; all but sb3_subproc by default.")
@click.option("--seeds", default=3, help="How many.")
@click.option("--first-seed", default=0, help="The first of them.")
@click.option("--workers", default=2, help="Worker processes of this library.")
@click.option("--start-method", default=None, help="Of this library's workers; its own default if none is given.")
@click.option("--timesteps", default=None, type=int, help="How long to train; by default as the task says.")
@click.option("--out", default=str(RESULTS / "ppo.json"), help="The results; a chart goes next to it.")
@click.option("--run", "single", default=None, hidden=True, help="One run in this process.")
def main(
    environments: tuple[str, ...],
    contenders: str | None,
    seeds: int,
    first_seed: int,
    workers: int,
    start_method: str | None,
    timesteps: int | None,
    out: str,
    single: str | None,
) -> None:
    """Train with every contender, and compare."""
    if single is not None:
        one_run(single, environments[0], first_seed, workers, start_method, timesteps)
        return
    names = known_contenders(contenders, environments)
    check_packages(names)
    results: list[Result] = []
    targets = {env_id: TASKS[env_id].target for env_id in environments}
    path, described = Path(out), machine.describe()
    for seed in range(first_seed, first_seed + seeds):
        for env_id in environments:
            turn = seed % len(names)
            for name in names[turn:] + names[:turn]:
                results.append(result := run_in_process(name, env_id, seed, workers, start_method, timesteps))
                steps_to, seconds_to = reached(result, TASKS[env_id].target)
                click.echo(f"{env_id} {name} seed {seed}: {steps_to:,.0f} timesteps, {seconds_to:.1f} s", err=True)
                results.sort(key=lambda result: (result["env"], names.index(result["contender"]), result["seed"]))
                save(path, described, targets, results)  # each time: a run takes minutes
    click.echo(f"{summary(results, targets)}\n\n{finals(results)}")
    try:
        chart(results, path.with_suffix(".png"))
    except ImportError:
        click.echo(f"no chart: {install_hint('plot')}", err=True)


if __name__ == "__main__":
    main()
