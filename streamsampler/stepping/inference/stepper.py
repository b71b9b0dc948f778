"""Run environments for a sampler whose agent stays in its own process: exactly what a worker there would do."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from streamsampler.core.errors import (
    NotReproducibleError,
    RemoteTraceback,
    RolloutError,
    UsageError,
    WorkerDiedError,
    WorkerError,
    WorkerHungError,
)
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.serialization import Payload, loads
from streamsampler.data.infos import InfoRecorder
from streamsampler.data.spaces import FLAGS, flag_of, number_of
from streamsampler.engines.linked import STUCK_SECONDS
from streamsampler.environments.updates import apply_any_env_update, for_worker
from streamsampler.protocol.messages import Phase
from streamsampler.stepping.links import EnvLink
from streamsampler.stepping.processes import ProcessTransport
from streamsampler.stepping.rows import KINDS
from streamsampler.stepping.stepper import MAKING, RESETTING, STEPPING, Stepper
from streamsampler.stepping.transport import Setbacks, UnansweredError, pickle_frame, request_frame
from streamsampler.workers.board import WorkerRow
from streamsampler.workers.explain import begin_of, raised_in
from streamsampler.workers.generators import generator_states, seed_generators
from streamsampler.workers.known_wrappers import EnvFacts
from streamsampler.workers.resets import ResetOrder, carry_out

# ----------------------------------------------------------------------
# The errors of environments in other processes.


HIDDEN = (
    "environment {} was lost with its process, and did something else when it was reset with its seed and its actions "
    "were applied again: it draws from something that its reset does not seed. Let it draw from self.np_random after "
    "super().reset(seed=seed)"
)
RAISED = "environment {} was lost with its process, and raised when its actions were applied again"
TOO_LONG = "environment {} was lost with its process, in an episode that is longer than can be restored"


class EnvironmentRaisedError(Exception):
    """Stands for an exception of an environment that cannot be brought from its process; says which one."""


def own(error: Any) -> BaseException:
    """Return what an environment raised; the error that tells of it where that did not cross the processes."""
    if not isinstance(error, RolloutError) or error.original is None:
        assert isinstance(error, BaseException)
        return error
    error.original.__cause__ = error.__cause__ if isinstance(error.__cause__, RemoteTraceback) else None
    return error.original


def not_restored(env_id: int, index: int | None, why: str) -> NotReproducibleError:
    """Return the error of an environment that cannot be restored.

    Args:
        env_id: The environment.
        index: Its trajectory.
        why: `HIDDEN`, `RAISED` or `TOO_LONG`.
    """
    return NotReproducibleError(why.format(env_id), worker_number=0, phase=Phase.STEP, trajectory=index)


# ----------------------------------------------------------------------


_DRAWS = (
    "something drew from a global generator (random, numpy.random or torch) in an environment: several share "
    "a process, so that trajectories would depend on one another. Draw from its np_random, or leave out "
    'inference="parent"'
)

_VECTOR = (
    'inference="parent" takes no vector environment: pass one that is not vectorised, of which as many are made as '
    'n_envs says, or leave out inference="parent"'
)


class RolloutStepper(Stepper):
    """Runs the environments of one process, each of them made and asked as in a worker of a sampler.

    Args:
        updates: What makes each environment, pickled, by its number.
        worker_number: The number of the process.
        row: Where it shows what it does.
        seed: The sampler's seed.
        max_episode_length: After how many timesteps the sampler truncates trajectories; None for never.
    """

    def __init__(
        self,
        updates: Mapping[int, Payload],
        worker_number: int,
        row: WorkerRow,
        *,
        seed: int,
        max_episode_length: int | None = None,
    ) -> None:
        super().__init__(dict.fromkeys(updates, None), worker_number, row, "disabled")  # type: ignore[arg-type]
        self._payloads = dict(updates)
        self._construction_seed = TrajectorySeeds(seed, 0)[0]
        self._orders: dict[int, ResetOrder] = {}
        self._given: dict[int, Any] = {}  # actions of another dtype than the rows'
        self._undrawn: tuple[Any, ...] = ()
        self._limit = math.inf if max_episode_length is None else max_episode_length
        self._lengths = dict.fromkeys(updates, 0)

    def make(self) -> list[tuple[Any, Any]]:
        """Make the environments, or change them; return the observation space and the action space of each."""
        old, self.envs = self.envs, {}
        try:
            for env_id, payload in self._payloads.items():
                self.making = env_id
                seed_generators(self._construction_seed)
                with for_worker(self._worker_number):
                    self.show(env_id, MAKING)
                    env = apply_any_env_update(loads(payload), old.pop(env_id, None))
                if isinstance(env, VectorEnv):
                    env.close()
                    raise UsageError(_VECTOR)
                self.envs[env_id] = env
        finally:
            self.envs = {**old, **self.envs}
        seed_generators(self._construction_seed)
        self._undrawn = generator_states()
        return [(env.observation_space, env.action_space) for env in self.envs.values()]

    def take_actions(self, actions: Mapping[int, Any]) -> None:
        """Keep actions that are of another dtype than the rows': the next steps are taken with them."""
        self._given.update(actions)

    def set_options(self, env_id: int, options: Any) -> None:
        """Remember how an environment's next trajectory begins."""
        self._orders[env_id] = options

    def _begin(self, env_id: int) -> dict[str, Any]:
        self.show(env_id, RESETTING)
        self._lengths[env_id] = 0
        observation, info = begin_of(carry_out(self.envs[env_id], self._orders[env_id]))
        self._refuse_draws()
        self._observe(env_id, observation)
        if info.__class__ is not dict:
            InfoRecorder("episode_infos").record(0, info)
        return info  # type: ignore[no-any-return]

    def _refuse_draws(self) -> None:
        if generator_states()[: len(self._undrawn)] != self._undrawn:
            seed_generators(self._construction_seed)
            self._undrawn = generator_states()
            raise UsageError(_DRAWS)

    def step(self, env_id: int) -> dict[str, Any]:
        """Take a step with the environment's action; return the info."""
        rows = self.rows
        self.show(env_id, STEPPING)
        length = self._lengths[env_id] = self._lengths[env_id] + 1
        action = self._given.pop(env_id, None) if self._given else None
        if action is None:
            action = rows.action(env_id)
        try:
            observation, reward, terminated, truncated, info = self.envs[env_id].step(action)
        except (TypeError, ValueError) as error:
            if raised_in(error, RolloutStepper.step):
                raise UsageError("step must return (observation, reward, terminated, truncated, info)") from error
            raise
        kind = reward.__class__
        rows.rewards[env_id] = reward if kind is float or kind is np.float64 else number_of(reward)
        if terminated.__class__ not in FLAGS or truncated.__class__ not in FLAGS:
            terminated, truncated = flag_of("terminated", terminated), flag_of("truncated", truncated)
        rows.terminated[env_id] = terminated
        rows.truncated[env_id] = truncated
        self._observe(env_id, observation)
        if terminated or truncated or length >= self._limit:
            self._refuse_draws()  # wherever a trajectory ends, since what the call returns are whole ones
        if info.__class__ is not dict:
            InfoRecorder("env_infos").record(0, info)
        return info

    def request(self, env_id: int, kind: str, name: str, arguments: Any) -> Any:
        """Carry out what is no step; "update" changes an environment, "facts" tells what is known of it."""
        env = self.envs.get(env_id)
        if kind == "update":
            self._payloads = {env_id: arguments}
            self.make()
            env = self.envs[env_id]
            return env.observation_space, env.action_space
        if kind == "facts":
            return EnvFacts.of(env)
        if kind == "close":
            self.close()
            return None
        return super().request(env_id, kind, name, arguments)


# ----------------------------------------------------------------------
# The processes of a sampler's environments: started, changed, started again where one is lost, and ended.


# ----------------------------------------------------------------------
# Carry what a sampler asks of environments in other processes, besides steps and resets.


class RolloutTransport(ProcessTransport):
    """Carries requests to processes whose environments are replaced and closed while the processes stay."""

    def _original(self, summary: str, pickled: bytes | None) -> BaseException | None:
        original = super()._original(summary, pickled)
        # The sampler would take a `KeyboardInterrupt` for its user's.
        is_known = original is not None and not isinstance(original, KeyboardInterrupt)
        return original if is_known else EnvironmentRaisedError(summary)

    def sleep(self, seconds: float) -> None:
        """Sleep until something can be collected, for at most so many seconds: also for less than a poll can."""
        if not self._pending:
            self._pool.nap(seconds)

    def renew(self, updates: Mapping[int, Any]) -> None:
        """Let workers that are started from now on make their environments of other updates.

        All workers have read what they were started with: those that were asked for something have answered.
        """
        self._pool.files.set_up(self._setup(updates))

    def give(self, actions: Mapping[int, Any]) -> None:
        """Give environments actions before their next step; see `Stepper.take_actions`."""
        for number, ids in self._by_worker(list(actions)):
            self._link(number).write(pickle_frame(("actions", {env_id: actions[env_id] for env_id in ids})))

    def close_environments(self, close_timeout: float) -> list[BaseException]:
        """Let all workers close their environments, and go on; kill those that do not in time.

        Open requests are carried out before, and their results are thrown away. A worker that is still at one of them
        after a second is killed, too.

        Args:
            close_timeout: Seconds that all of them together may take.

        Returns:
            What environments raised.
        """
        running = [link for link in self._pool if not link.ended]
        for link in running:
            ids = self._envs_of[link.number][:1]
            self._ask(link.number, ids, request_frame(ids, "close", "close", [None]))
        begin_within = min(close_timeout, STUCK_SECONDS)
        self._await_closed(running, begin_within)
        for link in running:
            if link.answer is None and self._pool.board.progress(link.number).phase is not Phase.CLOSE:
                self._pool.give_up(link)
        self._await_closed(running, close_timeout - begin_within)
        raised: list[BaseException] = []
        for link in running:
            if link.answer is None:
                self._pool.give_up(link)
                link.is_told = True  # nothing is lost with it
            elif link.answer[0] == "raised":
                raised.append(self._raised(link.number, self._envs_of[link.number][0], "close", *link.answer[2:]))
            link.waiting.clear()
        self._tell(self._pending)
        self._pending = []
        return raised

    def _await_closed(self, links: Sequence[EnvLink], seconds: float) -> None:
        self._await(lambda: not any(link.asked for link in links), seconds)


# ----------------------------------------------------------------------


Launch = Callable[[Mapping[int, Payload]], RolloutTransport]
"""Returns processes, not started, from what makes each environment."""


class EnvProcesses:
    """The processes that environments live in.

    Args:
        n_envs: How many environments there are.
        launch: Returns the processes.
        close_timeout: Seconds that all environments together may take to close.
        note_loss: Takes the error of a process that was lost, and is started again.
    """

    def __init__(
        self, n_envs: int, launch: Launch, close_timeout: float, note_loss: Callable[[WorkerError], None]
    ) -> None:
        self._n_envs, self._launch, self._close_timeout, self._note_loss = n_envs, launch, close_timeout, note_loss
        self._transport: RolloutTransport | None = None
        self._setbacks: Setbacks | None = None

    @property
    def transport(self) -> RolloutTransport:
        """What carries requests to them."""
        assert self._transport is not None
        return self._transport

    @property
    def running(self) -> bool:
        """Whether there are any."""
        return self._transport is not None

    def pids(self) -> list[int]:
        """Return the ids of the processes that there are."""
        return [] if self._transport is None else [pid for pid in self._transport.pids() if pid is not None]

    def update(self, payload: Payload) -> list[EnvFacts]:
        """Make the environments, or change those that are there, which have no open requests.

        Where a process is lost meanwhile, all of them are started again, as long as the quotas allow it.

        Args:
            payload: The pickled `EnvUpdate`.

        Returns:
            What is known of each.

        Raises:
            UsageError: The environments cannot be run from here.
            WorkerError: Too many processes were lost.
            Exception: What one of them raises. Then there are none.
        """
        updates = dict.fromkeys(range(self._n_envs), payload)
        while True:
            try:
                return self._updated(updates)
            except (WorkerDiedError, WorkerHungError, UnansweredError) as error:
                self.shut_down()
                loss = error.error if isinstance(error, UnansweredError) else error
                if loss.quota is not None:
                    raise loss from loss.__cause__
                self._note_loss(loss)
            except BaseException as error:
                self.shut_down()
                raise own(error) from error.__cause__

    def _updated(self, updates: Mapping[int, Payload]) -> list[EnvFacts]:
        if self._transport is None or not self._changed(self._transport, updates):
            self.shut_down()
            transport = self._transport = self._launch(updates)
            if self._setbacks is not None:
                transport.setbacks = self._setbacks  # what has counted the losses so far goes on to
            self._setbacks = transport.setbacks
            transport.start()
            for kind in KINDS:
                transport.spaces.common(kind)
        return self._transport.request(range(self._n_envs), "facts", "facts", [None] * self._n_envs)

    def _changed(self, transport: RolloutTransport, updates: Mapping[int, Payload]) -> bool:
        """Change the environments where they are; return whether their spaces are what they were."""
        transport.renew(updates)
        spaces = transport.request(range(self._n_envs), "update", "update", list(updates.values()))
        rows = transport.rows
        return all(pair == (rows.observation_space, rows.action_space) for pair in spaces)

    def close_environments(self) -> None:
        """Close the environments, and let the processes wait for others.

        Raises:
            Exception: What the first of them raised.
        """
        if self._transport is not None:
            for error in self._transport.close_environments(self._close_timeout):
                raise own(error) from error.__cause__

    def shut_down(self) -> None:
        """Close the environments, and end the processes; may be repeated."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None  # after an interrupt in there it is closed again
