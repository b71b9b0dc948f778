"""Check an environment of several agents: run it with random actions, and run PettingZoo's own tests of it.

What these tests find are warnings here: what samplers need is seen where trajectories are run.
"""

from __future__ import annotations

import contextlib
import io
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import numpy as np

from streamsampler.checking.findings import (
    Finding,
    finding_of_endless,
    finding_of_ends,
    finding_of_observations,
    finding_of_rewards,
    not_checked,
    worst,
)
from streamsampler.checking.values import SpaceWatch
from streamsampler.checking.worker import TaskWorker
from streamsampler.data.spaces import number_of
from streamsampler.data.words import count
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.extras import install_hint
from streamsampler.protocol.messages import Phase
from streamsampler.seeding import TrajectorySeeds
from streamsampler.workers.explain import summary_of, traceback_of
from streamsampler.workers.purity import BrokenOff, Limits, Trace, run_traced

_NAME = "PettingZoo"
_CYCLES = 100  # steps of each of its tests
_ADVICE = "PettingZoo's documentation says what it expects: help(pettingzoo.ParallelEnv), help(pettingzoo.AECEnv)"
_NO_FAULT = (
    "possible_agents", "render() method", "all zeros", "more than 3 dimensions", "different classes",
    "different shapes", "different number of dimensions", "different observation space", "different action space",
    "class of observation spaces", "class of action spaces", "minimum value is -infinity", "maximum value is infinity",
)  # fmt: skip
"""What they warn of, and is a matter of taste, or of what samplers do not use."""


@dataclass
class RolloutOfSeveral:
    """Trajectories of all agents together, run as samplers run them; what is seen of them.

    Attributes:
        worker: Has the environment and the policies, and shows progress.
        seconds: After so long no further timestep begins.
        most_timesteps: After so many timesteps a trajectory is taken not to end.
        lengths: The lengths of the trajectories that ended.
        timesteps: How many timesteps were run.
        step_seconds: What they took.
        refused: Empty: what samplers refuse they raise.
        bad_action: The first action outside its space; empty where there is none.
    """

    worker: TaskWorker
    seconds: float
    most_timesteps: int
    lengths: list[int] = field(default_factory=list)
    timesteps: int = 0
    step_seconds: float = 0.0
    refused: str = ""

    def __post_init__(self) -> None:
        self._endless: int | None = None
        env: Any = self.worker.env
        self._watches = {
            agent: SpaceWatch(space, "observation") for agent, space in env.observation_space.spaces.items()
        }
        self._action_spaces = env.action_space
        self._bad_reward = self.bad_action = ""

    @property
    def steps(self) -> int:
        """How often `step` was called."""
        return self.timesteps

    def run(self, n_trajectories: int) -> None:
        """Run so many trajectories.

        Raises:
            BaseException: What the environment or a policy raises, and what samplers refuse.
        """
        seeds, began = TrajectorySeeds(self.worker.context.seed, self.worker.version), perf_counter()
        try:
            for number in range(n_trajectories):
                limits = Limits(lambda: True, began + self.seconds, self.most_timesteps)
                try:
                    self._run_one(number, seeds[number], limits)
                finally:
                    self.timesteps += limits.timesteps
                    self.worker.progress(self.timesteps)
                if limits.timesteps >= self.most_timesteps:
                    self._endless = limits.timesteps
                    return
                self.lengths.append(limits.timesteps)
        except BrokenOff:
            if not self.lengths:
                self._endless = limits.timesteps
        finally:
            self.step_seconds = perf_counter() - began

    def _run_one(self, number: int, seed: int, limits: Limits) -> None:
        trace = _Watched(f"trajectory {number}", watch=self._look)
        with self.worker.by_inner() as inner:
            run_traced(inner, self.worker.version, range(number, number + 1), [seed], [trace], limits)

    def _look(self, what: str, of_agents: Any) -> None:
        """Look at what the environment returned of each agent: observations, rewards, and what is of no interest."""
        if not isinstance(of_agents, Mapping):
            return
        timestep = int(what.rpartition(" ")[2]) + 1 if "after timestep" in what else 0
        for agent, value in of_agents.items():
            if "observation" in what and agent in self._watches:
                self._watches[agent].take(value, timestep)
            elif what.startswith("reward") and not self._bad_reward and not np.isfinite(number_of(value)):
                self._bad_reward = f"agent {agent!r} has the reward {value} after timestep {timestep} of a trajectory"
            elif what.startswith("action") and not self.bad_action and value not in self._action_spaces[agent]:
                self.bad_action = f"{value!r:.80} for agent {agent!r} is outside {self._action_spaces[agent]!r:.80}"

    def findings(self, failure: Finding | None) -> Iterator[Finding]:
        """Yield what was found.

        Args:
            failure: What was raised; None where nothing was.
        """
        ended = f"{count(len(self.lengths), 'trajectory')} of all agents ended"
        yield failure or Finding("runs", "pass", f"{ended}, {count(self.timesteps, 'timestep')}")
        for watch in self._watches.values():
            watch.look()
        of_agents = [_of(agent, finding_of_observations(watch)) for agent, watch in self._watches.items()]
        yield next(each for each in of_agents if each.verdict == worst(of_agents))
        yield finding_of_rewards(self._bad_reward)
        if self._endless is not None:
            yield finding_of_endless(self._endless, self.most_timesteps, self.seconds, None)
        elif failure is None:
            yield finding_of_ends({"ended": len(self.lengths)}, self.lengths, None)


def _of(agent: str, finding: Finding) -> Finding:
    return finding if finding.verdict == "pass" else replace(finding, what=f"agent {agent!r}: {finding.what}")


@dataclass
class _Watched(Trace):
    """A trace that shows what passes, and keeps nothing."""

    watch: Callable[[str, Any], None] = field(kw_only=True)

    def take(self, what: str, value: Any) -> None:
        """Show a value."""
        self.watch(what, value)

    def take_info(self, whose: str, when: str, info: Any, path: str = "") -> None:
        """Let an info pass."""


@dataclass(frozen=True)
class PlayTogether:
    """A task: let the policies that were given play their environment.

    Attributes:
        seconds: After so long no further timestep begins.
        timesteps: How many timesteps of a trajectory are run.
    """

    seconds: float
    timesteps: int

    def __call__(self, worker: TaskWorker) -> list[Finding]:
        """Run the task."""
        rollout = RolloutOfSeveral(worker, self.seconds, self.timesteps)
        try:
            rollout.run(1)
        except (Exception, SystemExit) as error:
            what = f"{worker.phase} raised {summary_of(error)}"
            return [Finding("agent", "failure", what, "", traceback_of(error))]
        if rollout.bad_action:
            return [
                Finding("actions", "failure", rollout.bad_action, "Samplers refuse actions outside the action space")
            ]
        return [Finding("agent", "pass", f"it acted in {count(rollout.timesteps, 'timestep')} of the environment")]


@dataclass(frozen=True)
class RunPettingZooTests:
    """A task: run PettingZoo's `parallel_api_test` or `api_test`: a few resets, and some hundred steps."""

    def __call__(self, worker: TaskWorker) -> list[Finding]:
        """Run the task."""
        try:
            from pettingzoo.test import api_test, parallel_api_test
        except ImportError:
            return [not_checked(_NAME, "it is not installed, and has tests of its own", install_hint("pettingzoo"))]
        worker.enter(Phase.RESET)
        face: Any = worker.env
        assert isinstance(face, MultiAgentEnv)
        test: Any = api_test if face.takes_turns else parallel_api_test
        name, found = test.__name__, []
        shown = _Shown(face.env, worker)
        with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("always")
            try:
                with shown:
                    test(face.env, _CYCLES)
            except AssertionError as error:
                found.append(Finding(_NAME, "warning", f"{name} finds: {_why(error)}", _ADVICE, traceback_of(error)))
            except (Exception, SystemExit) as error:
                what = f"{name} ended with {summary_of(error)}"
                found.append(Finding(_NAME, "warning", what, _ADVICE, traceback_of(error)))
        texts = dict.fromkeys(" ".join(str(each.message).split()) for each in warned)
        said = [text for text in texts if not any(part in text for part in _NO_FAULT)]
        found += [Finding(_NAME, "warning", f"{name} warns: {text}", _ADVICE) for text in said]
        return found or [Finding(_NAME, "pass", f"{name} finds nothing")]


class _Shown:
    """Shows each step of an environment as progress, so that a test of many steps is not taken to hang."""

    def __init__(self, env: Any, worker: TaskWorker) -> None:
        self._env, self._worker, self._calls = env, worker, 0

    def __enter__(self) -> None:
        self._step = step = self._env.step

        def shown(*arguments: Any) -> Any:
            self._calls += 1
            self._worker.progress(self._calls)
            return step(*arguments)

        self._env.step = shown

    def __exit__(self, *_: object) -> None:
        self._env.step = self._step


def _why(error: AssertionError) -> str:
    """Return what an assertion says, or else its own text."""
    return " ".join(str(error).split()) or traceback.extract_tb(error.__traceback__)[-1].line or "an assertion"
