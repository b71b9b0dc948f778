"""The example of PPO solves CartPole-v1, on each of ten seeds. Needs the extra `torch`."""

from __future__ import annotations

import time

from click.testing import CliRunner


def prove(scale: str) -> None:
    """Learn from each seed, and evaluate what was learned on 100 trajectories."""
    from streamsampler.examples.ppo import main

    for seed in range(1 if scale == "short" else 10):
        began = time.perf_counter()
        outcome = CliRunner().invoke(main, ["CartPole-v1", "--seed", str(seed)], catch_exceptions=False)
        assert outcome.exit_code == 0, outcome.output
        found = float(outcome.stdout.splitlines()[-1].split()[3])
        print(f"seed {seed}: mean return {found:.2f}, {time.perf_counter() - began:.0f} s", flush=True)
        assert found >= 475, seed
