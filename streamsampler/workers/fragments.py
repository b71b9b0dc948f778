"""Run fragments: equally many timesteps in each environment, in episodes which resume from call to call.

A `FragmentEnv` holds an environment's suspended script between calls; `vec.fragments` steps groups together. Episodes
depend only on their seeds and on each call's parameters, since everything they draw from is their own.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, cast

import numpy as np

from streamsampler.agents.base import reset_agent_function
from streamsampler.agents.filters import FilterParameters
from streamsampler.agents.masks import MaskFinder
from streamsampler.agents.updates import updated_agent
from streamsampler.core.awaiting import Pendings, completed
from streamsampler.core.by_value import dumps_by_value
from streamsampler.core.errors import SerializationError
from streamsampler.core.seeding import SeedUse, TrajectorySeeds, derived_seed
from streamsampler.core.times import Times
from streamsampler.data.copying import Allocate
from streamsampler.data.recorder import RolloutRecorder, Rollouts
from streamsampler.environments.multi_agent import SpacesOfAgents
from streamsampler.environments.updates import AnyEnv, for_worker
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.rollouts.script import End
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.finishing import give_memory, is_restorable, memory_of, with_filters
from streamsampler.workers.fragment_rows import FragmentRow, fragment_summaries
from streamsampler.workers.generators import (
    drawn_states,
    generator_states,
    seed_constructors,
    seed_generators,
    set_states,
)
from streamsampler.workers.hooks import HookCaller
from streamsampler.workers.masks import finder_of
from streamsampler.workers.resets import EpisodeCheckpoint, FragmentOrder, Resets, reset_one
from streamsampler.workers.restoring import (
    AbandonedError,
    NotRestoredError,
    Rounding,
    are_one,
    claim,
    close_all,
    no_failure,
    release,
    rounding_for,
)
from streamsampler.workers.seams import OverridableSteps, ShownTrajectory, WorkerWithSeams
from streamsampler.workers.single import Part, SingleDriver


class InForce:
    """Applies a worker's updates to a further copy of its agent."""

    def __init__(self, worker: Worker, apply: Callable[[Any], None]) -> None:
        self._worker, self._apply = worker, apply
        self._payloads: tuple[Any, ...] = (None, None, None)  # of the agent, its parameters and filters

    def apply(self, load: Callable[[str], Any]) -> bool:
        """Apply the updates since the last call; return whether the agent is new."""
        worker, space = self._worker, self._worker.spaces[0]
        agent, parameters, filters = in_force = tuple(map(worker.in_force.get, ("agent", "parameters", "filters")))
        before = self._payloads
        is_new = agent is not before[0]
        if is_new:
            worker.phase = Phase.AGENT_CONSTRUCTION
            made = worker.load(agent)
            self._apply(made if filters is None else with_filters(made, load("filters"), space))
            before = agent, None, None if isinstance(space, SpacesOfAgents) else filters
        worker.phase = Phase.AGENT_UPDATE
        if parameters is not None and parameters is not before[1]:
            self._apply(load("parameters"))
        # A filter of rewards alone is not sent: the agent would load it as its own parameters.
        if filters is not before[2] and (given := load("filters").observation) is not None:
            self._apply(FilterParameters(given, space))
        self._payloads = in_force
        return is_new


class _Loaded(NamedTuple):
    payload: Any
    value: Any


class FragmentEnvs:
    """Holds a worker's environments of fragments. The first are the worker's own."""

    def __init__(self, worker: Worker, base_version: int) -> None:
        self.base_version = base_version
        self._worker = worker
        self._seeds = TrajectorySeeds(worker.context.seed, base_version)
        self._envs: list[AnyEnv] = []
        self._loaded: dict[str, _Loaded] = {}

    def close(self) -> None:
        """Close all environments except the worker's own; raise errors after all are closed."""
        envs = self._envs
        self.forget()
        close_all(envs, self._worker.environments(), self._worker.close_env)

    def forget(self) -> None:
        """Discard the episodes and leave their environments open for others."""
        release(self)
        self._envs = []

    def has(self, envs: Iterable[Any]) -> bool:
        """Whether fragments run in any of these environments, regardless of wrappers."""
        return any(are_one(env, its) for env in envs for its in self._envs)

    def _claimed(self, n: int) -> list[tuple[AnyEnv, HookCaller | None]]:
        """Claim n environments, the worker's own first, with the callers of their hooks."""
        worker = self._worker
        worker.enter(Phase.ENV_CONSTRUCTION)
        if self._envs:
            return list(map(self._made, range(n)))
        worker.need_environments(n)
        own = cast("list[AnyEnv]", [*worker.environments()])[:n]
        for env in own:
            self._claim(env)
        return list(zip(own, worker.hook_callers or repeat(None), strict=False))

    def _made(self, slot: int) -> tuple[AnyEnv, HookCaller | None]:
        """Make a further environment in the same way as the worker's own."""
        worker, hooks = self._worker, self._worker.context.hooks
        seed_constructors(worker.context.seed)
        with for_worker(worker.context.worker_number):
            update = worker.load(worker.in_force["env"]).of_slot(slot)
            env = worker.make_env(update)
        self._claim(env)
        if hooks is None:
            return env, None
        caller = HookCaller(worker, hooks)
        caller.created(env)
        return env, caller

    def _claim(self, env: AnyEnv) -> None:
        claim(env, self, lambda: self._worker.load(self._worker.in_force["env"]))
        self._envs.append(env)

    def _load(self, kind: str) -> Any:
        payload = self._worker.in_force[kind]
        if kind not in self._loaded or self._loaded[kind].payload is not payload:
            self._loaded[kind] = _Loaded(payload, self._worker.load(payload))
        return self._loaded[kind].value


def whose_memory(worker: Worker) -> str:
    return "its agent, or an object in the hooks' context.memory," if worker.hook_callers else "its agent"


def packed_memory(worker: Worker, remembered: Any) -> bytes:
    """Pickle the memory of agent and hooks in several environments at once: each pickle costs 10 µs to start.

    Raises:
        SerializationError: It cannot be pickled.
    """
    try:
        return dumps_by_value(remembered)
    except Exception as error:
        or_hooks = ", or the hooks' context.memory or context.metrics," if worker.hook_callers else ""
        raise SerializationError(
            f"the result of the agent's get_state{or_hooks} cannot be pickled: {type(error).__name__}: {error}"
        ) from error


class FragmentEnv(FragmentRow):
    """Runs an environment's fragments in a worker which steps its environments in sequence.

    It holds a copy of the agent, the suspended script, and the states of the global generators.

    Attributes:
        has_generators: Whether its episodes may draw from the global generators, since no other runs at the same time.
    """

    has_generators = True

    def __init__(self, worker: Worker, *args: Any) -> None:
        super().__init__(*args)
        self._worker, self._limit = worker, worker.context.max_episode_length
        self.env = cast("AnyEnv", worker.stepped(self.env))
        self._rounding = rounding_for(self.env.action_space)
        self._in_force = InForce(worker, self._update)
        self._agent: Any = None
        self._reset_agent: Callable[[int], None] | None = None
        self._masks: MaskFinder | None = None
        self._agent_is_new = False
        self._generators: Any = None
        self._resets = Resets()
        self._shown: Any = None

    @staticmethod
    def new_recorder(worker: Worker, allocate: Allocate = np.empty) -> RolloutRecorder:
        return RolloutRecorder(*worker.spaces, allocate)

    def _update(self, update: Any) -> None:
        self._agent = updated_agent(self._agent, update, self._worker.spaces)

    def update_agent(self, load: Callable[[str], Any]) -> None:
        """Update the agent; a new agent in the middle of an episode is reset as at its start."""
        if self._in_force.apply(load):
            self._agent_is_new = True
            self._look_at_agent()

    def _look_at_agent(self) -> None:
        self._masks = finder_of(self._agent, self.env, self._worker.warn_once)
        self._reset_agent = reset_agent_function(self._agent)

    @property
    def restorable(self) -> bool:
        return is_restorable(self._agent)

    def run(self, version: int, n_timesteps: int, resets: Resets, recorder: RolloutRecorder) -> tuple[int, Times]:
        """Run a fragment; return the result of `SingleDriver.run` and the seconds."""
        seams = None
        if self.caller is not None:
            seams = OverridableSteps(
                cast("WorkerWithSeams", self._worker), self.caller, version, self._agent, self.env, recorder,
                self._reset_agent, self._rounding, self._masks, self.reset,
            )  # fmt: skip
        self.begin(resets, recorder, seams)
        driver = SingleDriver(
            self._worker, version, recorder, self.env, self.reset, self._agent, self._reset_agent, seams=seams,
            masks=self._masks, info=self.info, rounding=self._rounding,
        )  # fmt: skip
        abandoned = driver.run(self.parts(driver, n_timesteps), self.take_end)
        if abandoned < 0:
            self.keep_generators()
        return abandoned, driver.seconds

    @property
    def acting(self) -> tuple[Any, Callable[[int], None] | None, MaskFinder | None, Rounding]:
        return self._agent, self._reset_agent, self._masks, self._rounding

    def begin(
        self, resets: Resets, recorder: RolloutRecorder, shown: OverridableSteps | ShownTrajectory | None
    ) -> None:
        self._resets, self._recorder, self._shown = resets, recorder, shown
        self.begin_fragment()
        if callable(begin_part := getattr(self._agent, "begin_part", None)):
            begin_part()

    def keep_generators(self) -> None:
        """Save the states of the global generators, before the next episode seeds them."""
        if self.length and self.has_generators:
            self._generators = drawn_states(self._fresh)

    def reset(self, *, seed: int) -> Any:
        if self.has_generators:
            self._fresh = generator_states()  # the driver has seeded the global generators
        return reset_one(self.env, self._resets, 0, seed)

    def parts(self, driver: Any, n_timesteps: int) -> Iterator[Part]:
        """Yield each episode's part until the fragment has its timesteps."""
        while n_timesteps:
            before = len(self._recorder.float_rewards)
            if self.script is None:
                self._agent_is_new = False  # the script resets it
                index = self.index
                seed = self._seeds[index]
                script = self.script = driver.script(seed, self._limit)
                seeding = partial(seed_generators, seed) if self.has_generators else None
                yield index, seeding, script, None, n_timesteps
            else:
                self._go_on()
                yield self.index, None, self.script, driver.binding, n_timesteps
            n_timesteps -= len(self._recorder.float_rewards) - before

    def _go_on(self) -> None:
        worker, seed = self._worker, self.seed
        worker.trajectory = self.index
        worker.enter(Phase.RESET)
        if self.has_generators:
            set_states(seed, self._generators)
        if (shown := self._shown) is not None:
            shown.resume(shown.context_of(self.index, seed), self.length, self.kept, self.info)
        if self._agent_is_new and self._reset_agent is not None:
            worker.enter(Phase.AGENT_RESET)
            self._reset_agent(derived_seed(seed, SeedUse.AGENT))
        self._agent_is_new = False

    def _seed_generators(self, seed: int) -> None:
        if self.has_generators:
            super()._seed_generators(seed)

    def take_end(self, end: End) -> None:
        """Record the end of an episode or of the fragment."""
        recorder = self._recorder
        self.length, self.info = end.n_timesteps, end.info
        if end.ended:
            self._generators = None
        elif self._shown is not None:
            self.kept = self._shown.kept()
        self.end_part(end.observation, ended=end.ended)
        recorder.end(end.observation, end.terminated, end.truncated, limited=end.limited)

    def recorded(self) -> range:
        first = self.number + self.first * self._n_envs
        return range(first, first + self.n_episodes * self._n_envs, self._n_envs)

    def memory(self) -> Any:
        """Return the memory of agent, generators and hooks in the suspended episode; None without any."""
        if not self.length:
            return None
        remembered = self._memory_of_agent() if self.restorable else None, self._generators, self.kept
        return None if all(each is None for each in remembered) else remembered

    def _memory_of_agent(self) -> Any:
        return memory_of(self._agent)

    def _give_memory(self, memory: Any, *, is_replaced: bool) -> None:
        if not is_replaced:
            if self._reset_agent is not None:
                self._reset_agent(derived_seed(self.seed, SeedUse.AGENT))
            give_memory(self._agent, memory)
            self._agent_is_new = False

    def restore_lost(self, standing: EpisodeCheckpoint, version: int) -> Pendings[int]:
        """Restore the environment of a lost worker; see `FragmentRow.restore`."""
        known = standing.state is not None and standing.state.restorable
        ran = yield from self.restore(self._worker, standing, version, agent_is_known=known)
        if self.length:
            try:
                with no_failure(whose_memory(self._worker)):
                    self._generators = self._restore_agent(standing)
            except NotRestoredError as error:
                self.lose(str(error))
        return ran

    def _restore_agent(self, standing: EpisodeCheckpoint) -> Any:
        assert standing.state is not None
        packed = standing.state.memory
        memory, generators, self.kept = (None, None, None) if packed is None else _unpacked(*packed)
        self._give_memory(memory, is_replaced=standing.agent_is_replaced)
        return generators


def _unpacked(packed: bytes, position: int) -> Any:
    return pickle.loads(packed)[position]


class SequentialFragmentEnvs(FragmentEnvs):
    """Runs a worker's environments of fragments in sequence; see `FragmentEnvs`."""

    def __init__(self, worker: Worker, base_version: int, kind: type[FragmentEnv] = FragmentEnv) -> None:
        super().__init__(worker, base_version)
        self._kind, self._recorder = kind, kind.new_recorder(worker, worker.context.allocate)
        self._of_number: dict[int, FragmentEnv] = {}

    def run(self, ticket: Ticket, resets: Resets, order: FragmentOrder) -> Outcome:
        worker, recorder = self._worker, self._recorder
        recorder.clear()
        seconds, envs, restored = Times(), [], 0
        for number in ticket.indices:
            env, standing = self.env_of(number, order)
            try:
                restored += 0 if standing is None else completed(env.restore_lost(standing, ticket.version))
            except AbandonedError as error:
                worker.ran_timesteps += restored + error.ran
                return Outcome(None, recorder.n_trajectories, recorder.n_timesteps, seconds=seconds)
            abandoned, more = env.run(ticket.version, order.n_timesteps, resets, recorder)
            seconds = seconds.plus(more)
            if abandoned >= 0:
                return Outcome(None, recorder.n_trajectories, recorder.n_timesteps, 1, abandoned, seconds)
            envs.append(env)
        worker.ran_timesteps += restored
        owners = [index for env in envs for index in env.recorded()]
        rollouts = worker.finished(recorder.finish, owners, worker.environments()[0])
        self.tell(envs, rollouts)
        metrics = tuple(recorder.metrics.items())
        return Outcome(rollouts, recorder.n_trajectories, recorder.n_timesteps, seconds=seconds, metrics=metrics)

    def tell(self, envs: Sequence[FragmentEnv], rollouts: Rollouts) -> None:
        memories = [env.memory() for env in envs]
        packed = b"" if all(memory is None for memory in memories) else packed_memory(self._worker, memories)
        places = [None if memory is None else (packed, place) for place, memory in enumerate(memories)]
        rollouts.fragments = tuple(fragment_summaries(envs, rollouts, [env.restorable for env in envs], places))

    def env_of(self, number: int, order: FragmentOrder) -> tuple[FragmentEnv, EpisodeCheckpoint | None]:
        """Return an environment with an updated agent, and its last state if it must be restored."""
        worker, env = self._worker, self._of_number.get(number)
        worker.trajectory = None  # construction and updates belong to no trajectory
        is_new = env is None
        if env is None:
            (claimed,) = self._claimed(1)
            env = self._of_number[number] = self._kind(worker, number, *claimed, order.n_envs, self._seeds)
        env.update_agent(self._load)
        if not is_new or number not in order.standings:
            return env, None
        worker.enter(Phase.RESET)
        return env, order.standings[number]
