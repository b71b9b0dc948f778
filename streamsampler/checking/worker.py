"""Run a check in a worker process of a sampler, which is killed if it hangs, and may die."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic, perf_counter
from typing import Any

import cloudpickle
import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import VectorEnv

from streamsampler.agents.base import Agent, as_agent
from streamsampler.agents.policies import Policies
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.environments.updates import AnyEnv, AnyVectorEnv, EnvUpdate, ExistingEnvUpdate, apply_any_env_update
from streamsampler.errors import SamplerError
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.samplers.processes import MultiprocessingSampler
from streamsampler.samplers.progress import Snapshot
from streamsampler.workers.base import Outcome, Worker, WorkerContext
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.vec.worker import VecWorker

_RESULT = "result"
_NOTHING = spaces.Discrete(1)
_GRACE = 10.0
"""Seconds after the deadline at which a task is ended. It looks at its own limit between two timesteps, and ends
before, unless the machine is busy or its environment takes that long to make."""
_CONSTRUCTION = 3_600.0  # seconds, more than any time limit: the deadline ends what takes too long to make


class TimeIsUpError(SamplerError):
    """The time limit of the whole check is reached."""


@dataclass(frozen=True)
class Limits:
    """What bounds a check.

    Attributes:
        deadline: When all of it is to end, as `time.monotonic` says it.
        step_timeout: Seconds that a reset, an action or a timestep may take.
        seed: What all is derived from.
        max_episode_length: Timesteps after which a trajectory is truncated; None leaves that to the environment.
    """

    deadline: float
    step_timeout: float
    seed: int
    max_episode_length: int | None

    @property
    def seconds_left(self) -> float:
        """How many seconds are left."""
        return max(0.0, self.deadline - monotonic())

    def sampler_options(self) -> dict[str, Any]:
        """Return arguments of a sampler with one worker, which is not replaced where it fails.

        Raises:
            TimeIsUpError: No time is left.
        """
        if not self.seconds_left:
            raise TimeIsUpError("no time is left")
        return {
            "n_workers": 1,
            "seed": self.seed,
            "max_episode_length": self.max_episode_length,
            "check": None,
            "fingerprint": None,
            "max_restarts": 0,
            "step_timeout": self.step_timeout,
            "construction_timeout": max(self.step_timeout, self.seconds_left, _CONSTRUCTION),
        }

    def guard(self, watch: Callable[[int], Any]) -> Callable[[Snapshot], None]:
        """Return a `progress` argument that ends a call when the time is up, and calls `watch` with timesteps."""

        def look(snapshot: Snapshot) -> None:
            if not snapshot.complete and monotonic() > self.deadline + _GRACE:
                raise TimeIsUpError("the time limit is reached")
            watch(snapshot.timesteps)

        return look


class _Made(EnvUpdate):
    """Hands an environment over that was made already, here."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __call__(self, old_env: AnyEnv | None) -> AnyEnv:
        del old_env
        env: AnyEnv = self.env
        return env


class TaskWorker(Worker):
    """Runs a task in the place of each trajectory, and returns its result as an info.

    Args:
        context: What the worker is made with.
        task: The task.

    Attributes:
        agent: The agent, or several policies.
        inner: A worker of the kind that suits the environment, with the same agent and environment.
        construction_seconds: What it took to make the environment.
        version: The agent version in hand.
        seeds_of: Gives the seeds of trajectories.
    """

    can_play_several = True

    def __init__(self, context: WorkerContext, *, task: Task) -> None:
        super().__init__(context)
        self._task = task
        self.inner: Worker = DefaultWorker(context)
        self.agent: Agent | Policies | None = None
        self.construction_seconds = 0.0
        self.version = 0
        self._is_closed = False

    @property
    def env(self) -> AnyEnv | AnyVectorEnv:
        """The environment."""
        return self.inner.environments()[0]

    @property
    def is_vector(self) -> bool:
        """Whether it is a vector environment."""
        return isinstance(self.env, VectorEnv)

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """The spaces of what is returned, which holds nothing."""
        return _NOTHING, _NOTHING

    def environments(self) -> Sequence[AnyEnv | AnyVectorEnv]:
        """Return the environment."""
        return self.inner.environments()

    def update_env(self, env_update: EnvUpdate) -> None:
        """Make the environment, and a worker that suits it."""
        self.phase = Phase.ENV_CONSTRUCTION
        began = perf_counter()
        env = apply_any_env_update(env_update, None, several=True)
        self.construction_seconds = perf_counter() - began
        context = replace(self.context, check=None)
        if not isinstance(env, VectorEnv):
            self.inner = DefaultWorker(context)
            self.inner.update_env(_Made(env))
            return
        # Some are made again for each block, by the update itself.
        if not isinstance(env_update, ExistingEnvUpdate):
            env.close()
        self.inner = VecWorker(context, n_envs=env.num_envs)
        self.inner.update_env(env_update)

    def update_agent(self, agent_update: Any) -> None:
        """Take the agent."""
        self.phase = Phase.AGENT_CONSTRUCTION
        self.agent = agent_update if isinstance(agent_update, Policies) else as_agent(agent_update)
        self.inner.update_agent(self.agent)

    def rollout(self, ticket: Ticket, seeds: list[int]) -> Outcome:
        """Run the task."""
        del seeds
        self.version = ticket.version
        result = self._task(self)
        self.enter(Phase.RECORDING, None)
        recorder = RolloutRecorder(*self.spaces)
        # As bytes in an array: nothing is made of what is in it.
        recorder.begin({_RESULT: np.frombuffer(cloudpickle.dumps(result), np.uint8)})
        recorder.record_observation(0)
        recorder.record_action(0)
        recorder.record_reward(0.0)
        recorder.end(0, True, False)
        return Outcome(recorder.finish(), 1, 1)

    def enter(self, phase: Phase, trajectory: int | None = 0) -> None:
        """Show what is done now."""
        self.phase, self.trajectory = phase, trajectory
        self.row.set_phase(phase)

    def progress(self, timesteps: int) -> None:
        """Show that the task makes progress."""
        self.row.words[self.row.timesteps_word] = timesteps

    @contextlib.contextmanager
    def by_inner(self) -> Iterator[Worker]:
        """Let the inner worker run; what it raises was raised in its phase."""
        try:
            yield self.inner
        except BaseException:
            self.phase, self.trajectory = self.inner.phase, self.inner.trajectory
            raise

    def renewed(self) -> Worker:
        """Make a new agent and a new environment, and return the inner worker with them."""
        self.context.rebuild()
        return self.inner

    def close_env(self) -> None:
        """Close the environment, for good."""
        self.enter(Phase.CLOSE, None)
        self._is_closed = True
        self.env.close()

    def shutdown(self) -> None:
        """Close the environment, if it was not closed for a check; what that raises was found before."""
        self.phase = Phase.CLOSE
        if not self._is_closed:
            with contextlib.suppress(Exception, SystemExit):
                self.inner.shutdown()


Task = Callable[[TaskWorker], Any]


def run_task(
    task: Task,
    agent: Any,
    env: EnvUpdate,
    limits: Limits,
    watch: Callable[[int], Any],
    start_method: StartMethod | None = None,
) -> Any:
    """Run a task in a process of its own, and return its result.

    Args:
        task: What to do with the worker; it can be pickled, and looks at its own limits between two timesteps.
        agent: The agent, as samplers take it.
        env: The environment.
        limits: What bounds it.
        watch: Called now and then with the timesteps so far.
        start_method: How the process is started; see `MultiprocessingSampler`.

    Raises:
        TimeIsUpError: The time limit of the check is reached.
        WorkerError: The task raised, or its process died or hung.
        SerializationError: The environment or the agent cannot be pickled.
    """
    options = limits.sampler_options()
    with MultiprocessingSampler(
        agent, env, worker_class=TaskWorker, worker_args={"task": task}, start_method=start_method, **options
    ) as sampler:
        batch = sampler.obtain_trajectories(1, progress=limits.guard(watch))
    return cloudpickle.loads(batch.episode_infos[_RESULT][0].tobytes())
