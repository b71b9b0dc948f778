"""Draw the learning curves of the examples.

    python -m benchmarks examples                          # all of them, two seeds each
    python -m benchmarks examples --only ppo --seeds 5

Each example runs as a user runs it, in a process of its own, and the curve is what it prints: on CartPole-v1, but
`ppo_multiagent`, whose environment has several agents. The curves do not depend on the machine's speed or the number of
workers. They are kept in `results/examples.json`, to which each run is added, and drawn in `results/examples.png`.
Needs torch, mpe2 and matplotlib.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from benchmarks.harness.running import ROOT
from streamsampler.core.extras import install_hint

__all__ = ["curve_of", "draw", "main"]

RESULTS = ROOT / "benchmarks" / "results" / "examples.json"


@dataclass(frozen=True)
class Example:
    """Describe how an example is run and drawn.

    Attributes:
        title: Above its panel.
        environment: Its first argument.
        options: Its further ones.
        label: Of the y axis. Panels with the same label share it.
        limits: Of the y axis; None for those of the curves.
    """

    title: str
    environment: str = "CartPole-v1"
    options: str = ""
    label: str = "mean return on CartPole-v1"
    limits: tuple[float, float] | None = (0, 510)

    def arguments(self, iterations: int | None) -> list[str]:
        """Return its arguments, with so many iterations, or its own number."""
        # Of an option that is given twice, the last one counts.
        further = [] if iterations is None else [f"--iterations={iterations}"]
        return [self.environment, *self.options.split(), *further]


EXAMPLES = {
    "reinforce": Example("REINFORCE, NumPy"),
    "evolution_strategy": Example("evolution strategy, NumPy"),
    "trpo": Example("TRPO, torch"),
    "ppo": Example("PPO, torch"),
    "ppo_recurrent": Example("PPO with a GRU, velocities hidden"),
    "ppo_multiagent": Example(
        "independent PPO, mpe2's simple_spread",
        "mpe2.simple_spread_v3",
        "--timesteps 250 --n-envs 32 --minibatch 800 --learning-rate 1e-3 --gamma 0.95 --normalize-rewards "
        "--normalize-observations --iterations 100",
        "mean return of an agent",
        None,
    ),
}
_LINE = re.compile(r"iteration \d+: .*?return (-?[\d.]+)")


def curve_of(printed: str) -> list[float]:
    """Return the mean return of each iteration of what an example printed."""
    return [float(value) for value in _LINE.findall(printed)]


def draw(curves: dict[str, dict[str, list[float]]], path: Path) -> None:
    """Draw a panel for each example, with a line for each seed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, row = pyplot.subplots(1, len(curves), figsize=(3.2 * len(curves), 3), squeeze=False)
    first: dict[str, Any] = {}  # by label, the leftmost panel
    for axis, (name, by_seed) in zip(row[0], curves.items(), strict=True):
        example = EXAMPLES[name]
        for seed, curve in by_seed.items():
            axis.plot(range(len(curve)), curve, lw=1.2, label=f"seed {seed}")
        axis.set(title=example.title, xlabel="iteration", ylim=example.limits)
        axis.title.set_size(9)
        axis.grid(alpha=0.3)
        if example.label in first:
            axis.sharey(first[example.label])
            axis.tick_params(labelleft=False)
        else:
            first[example.label] = axis
            axis.set_ylabel(example.label)
    row[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=90)


@click.command(context_settings={"show_default": True})
@click.option("--only", multiple=True, type=click.Choice([*EXAMPLES]), help="Run these; all by default.")
@click.option("--seeds", default=2, help="How many.")
@click.option("--workers", default=2, help="Worker processes.")
@click.option("--iterations", type=int, help="How many; by default each example's own number.")
@click.option("--out", default=str(RESULTS), help="The curves; a picture goes next to it.")
def main(only: tuple[str, ...], seeds: int, workers: int, iterations: int | None, out: str) -> None:
    """Run the examples, and draw their learning curves."""
    path = Path(out)
    curves: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    for seed in range(seeds):
        for name in only or EXAMPLES:
            command = [sys.executable, "-m", f"streamsampler.examples.{name}", *EXAMPLES[name].arguments(iterations)]
            command += ["--seed", str(seed), "--workers", str(workers)]
            run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
            if not (curve := curve_of(run.stdout)):
                raise click.ClickException(f"{name} printed no curve, and ended with {run.returncode}:\n{run.stdout}")
            click.echo(f"{name} seed {seed}: {run.stdout.splitlines()[-1]}", err=True)
            curves.setdefault(name, {})[str(seed)] = curve
            ordered = {known: curves[known] for known in EXAMPLES if known in curves}
            path.parent.mkdir(parents=True, exist_ok=True)
            rows = ",\n".join(f"{json.dumps(known)}: {json.dumps(of_it)}" for known, of_it in ordered.items())
            path.write_text(f"{{\n{rows}\n}}\n")
            try:
                draw(ordered, path.with_suffix(".png"))
            except ImportError:
                click.echo(f"no picture: {install_hint('plot')}", err=True)


if __name__ == "__main__":
    main()
