"""Run fragments: the same number of timesteps in each environment, of episodes that go on from call to call.

An episode's part in a call is what a trajectory is elsewhere, and the same loop runs it: a `Course` takes the
environment's place in that loop. An environment's episodes are a function of their seeds and of the parameters in each
call, whichever worker runs them, next to which others: everything that they draw from is their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple, cast

import cloudpickle

from streamsampler.agents.base import reset_agent_function
from streamsampler.agents.updates import updated_agent
from streamsampler.data.recorder import EnvFragment, EpisodeState, RolloutRecorder
from streamsampler.environments.updates import AnyEnv, apply_env_update, for_worker
from streamsampler.errors import SerializationError
from streamsampler.protocol.messages import Phase, Ticket, Times
from streamsampler.seeding import Stream, TrajectorySeeds, derived_seed
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.exact_actions import rounding_for
from streamsampler.workers.explain import begin_of
from streamsampler.workers.finishing import UNKNOWN, give_memory, is_restorable, memory_of, with_filters
from streamsampler.workers.generators import drawn_states, fresh_states, put_states, set_states
from streamsampler.workers.resets import FragmentOrder, Resets, Standing, reset_one
from streamsampler.workers.restoring import (
    AbandonedError,
    Compared,
    Digests,
    NotRestoredError,
    apply_actions,
    claim,
    close_all,
    compared_of,
    no_failure,
    release,
)

# ----------------------------------------------------------------------
# An environment of fragments, and the episode that goes on in it from call to call.
#
# In a worker's loop a `Course` takes the environment's place. Where an episode goes on, `Course.reset` returns the
# observation that the last call ended with. Everything that an episode draws from has its own state in each course:
# the agent is a copy for each, and the global generators are set to where the episode left them.


class Course:
    """One environment of fragments, with a copy of the agent, and the episode that goes on in it.

    Args:
        number: The environment's number, among those of all workers.
        env: The environment.
        n_envs: How many environments all workers have together.
        seeds: The seeds of trajectories, by index; see `index_of`.
        most: How many timesteps an episode may have; None for any number.

    Attributes:
        agent: The copy of the agent.
        reset_agent: Resets it, where an episode begins; None if it has no `reset`.
        step: The environment's.
        rounding: Gives actions the floats of their space.
        episode: The number of the episode that goes on, or comes next.
        n_episodes: How many episodes this call's timesteps are of, so far.
    """

    def __init__(self, number: int, env: AnyEnv, n_envs: int, seeds: TrajectorySeeds, most: int | None) -> None:
        self.number = number
        self.env = env
        self.step = env.step
        self.rounding = rounding_for(env.action_space)
        self.agent: Any = None
        self.reset_agent: Callable[[int], None] | None = None
        self.episode = 0
        self.n_episodes = self._first = 0  # of this call: how many, and the number of the first one
        self._continued, self._lost = False, ""  # that one
        self._n_envs, self._seeds, self._most = n_envs, seeds, most
        self._payloads: tuple[Any, ...] = (None, None, None)  # of the agent, its parameters and filters
        self._agent_function: Callable[[int], None] | None = None
        self._agent_is_new = self._restorable = False
        self._length = 0  # timesteps of the episode that goes on; 0 if none does
        self._observation: Any = None  # what it goes on from
        self._generators: Any = None
        self._fresh: tuple[int, Any] = -1, None  # by a seed: what seeding makes of them
        self._digests = Digests()
        self._remaining = 0
        self._resets = Resets()
        self._seed = 0

    def __getattr__(self, name: str) -> Any:
        if name == "env":  # not there yet
            raise AttributeError(name)
        return getattr(self.env, name)

    # ------------------------------------------------------------------ agents

    def update_agent(self, worker: Worker, load: Callable[[str], Any]) -> None:
        """Make the agent, or hand it the parameters and filters, that are in force.

        An agent that replaces another one in the middle of an episode is reset like at its start.
        """
        get, old, was = worker.in_force.get, self.agent, self._payloads
        in_force = get("agent"), get("parameters"), get("filters")
        if in_force[0] is was[0] and in_force[1] is was[1] and in_force[2] is was[2]:
            return
        if in_force[0] is not self._payloads[0]:
            worker.phase = Phase.AGENT_CONSTRUCTION
            self.agent = updated_agent(None, worker.load(in_force[0]), worker.spaces)
            self._agent_is_new, self._payloads = True, (in_force[0], None, None)
        if in_force[1] is not self._payloads[1]:
            worker.phase = Phase.AGENT_UPDATE
            self.agent = updated_agent(self.agent, load("parameters"), worker.spaces)
        if in_force[2] is not self._payloads[2]:
            self.agent = with_filters(self.agent, load("filters"), worker.spaces[0])
        self._payloads = in_force
        if self.agent is old:
            return
        self._agent_function, self._restorable = reset_agent_function(self.agent), is_restorable(self.agent)
        self.reset_agent = None if self._agent_function is None else self._reset_agent

    def _reset_agent(self, seed: int) -> None:
        if self._agent_is_new or not self._length:
            assert self._agent_function is not None
            self._agent_function(seed)
            self._agent_is_new = False

    # ------------------------------------------------------------------ what the loop asks for

    def index_of(self, episode: int) -> int:
        """Return the trajectory index of an episode."""
        return self.number + episode * self._n_envs

    def indices(self) -> Iterator[int]:
        """Yield the trajectory index of each episode, until there are as many timesteps as are wanted."""
        while self._remaining:
            index = self.index_of(self.episode)
            if not self._length:
                self._seed = self._seeds[index]
            yield index

    def recorded(self) -> range:
        """Return the trajectory indices of the episodes in this call's fragment."""
        return range(self.index_of(self._first), self.index_of(self._first + self.n_episodes), self._n_envs)

    def seeds(self) -> Iterator[int]:
        """Yield the seeds of these episodes."""
        while True:
            yield self._seed

    def lengths(self) -> Iterator[int]:
        """Yield how many timesteps each may have in this fragment."""
        while True:
            yield self._remaining if self._most is None else min(self._remaining, self._most - self._length)

    def reset(self, *, seed: int) -> tuple[Any, dict[str, Any]]:
        """Reset the environment, or return what the episode that goes on was left with."""
        if not self._length:
            return begin_of(reset_one(self.env, self._resets, 0, seed))
        if self._generators is not None:
            put_states(self._generators)  # the loop has seeded the others
        return self._observation, {}

    def end_episode(self, observation: Any, length: int, terminated: bool, truncated: bool, *, limited: bool) -> bool:
        """Take in the end of an episode, or of the fragment; return whether the episode is truncated."""
        self._length += length
        self._remaining -= length
        truncated = truncated or (limited and self._length == self._most)
        self.n_episodes += 1
        if terminated or truncated:
            self.episode, self._length, self._observation, self._generators = self.episode + 1, 0, None, None
            self._digests = Digests()
        else:
            self._observation = observation
        return truncated

    # ------------------------------------------------------------------ fragments

    def begin(self, n_timesteps: int, resets: Resets, lost: str = "") -> None:
        """Begin a fragment.

        Args:
            n_timesteps: How many timesteps it has.
            resets: The options that episodes are reset with which begin in it.
            lost: Why the episode that went on before could not be restored; empty if none was lost.
        """
        self._remaining, self._resets = n_timesteps, resets
        self.n_episodes, self._first, self._continued, self._lost = 0, self.episode, self._length > 0, lost

    def suspend(self) -> None:
        """Note where the episode that goes on stands: the next one to run seeds the global generators."""
        if self._length:
            if self._fresh[0] != self._seed:
                self._fresh = self._seed, fresh_states(self._seed)
            self._generators = drawn_states(self._fresh[1])

    def memory(self) -> Any:
        """Return what the episode that goes on remembers besides its environment; None for nothing."""
        if not self._length:
            return None
        memory = memory_of(self.agent) if self._restorable else None
        return None if memory is None and self._generators is None else (memory, self._generators)

    def close_fragment(
        self, compared: Compared, position: int, start: int, stop: int, memory: tuple[bytes, int] | None
    ) -> EnvFragment:
        """Return what the fragment consists of.

        Args:
            compared: All that was recorded; see `restoring.compared_of`.
            position: The position of this environment's last episode in it.
            start: The first timestep of that episode in it.
            stop: The one after the last.
            memory: See `EpisodeState`.
        """
        state = None
        if self._length:
            self._digests.add(compared, start, stop)
            digests = self._digests.values(compared, position)
            state = EpisodeState(self._length, memory, digests, self._restorable)
        number = self.number
        return EnvFragment(number, self.n_episodes, self._first, self._continued, state, self._lost, number)

    def take_over(self, worker: Worker, standing: Standing, version: int) -> tuple[str, int]:
        """Go on where another worker was lost.

        Args:
            worker: The worker.
            standing: Where the environment stood.
            version: The agent version in hand.

        Returns:
            Why that cannot be; empty if it can. And how many timesteps the environment was run for it.

        Raises:
            AbandonedError: The version may not run any more.
        """
        self.episode = standing.episode
        state = standing.state
        if state is None:
            return "", 0
        ran, lost = 0, UNKNOWN
        if state.restorable and standing.actions is None:
            lost = "the episode is longer than can be restored"
        elif state.restorable:
            worker.take_in_hand(index := self.index_of(self.episode))
            seed = self._seeds[index]
            try:
                set_states(seed, None)
                observation, digests, ran = apply_actions(self.env, seed, standing, worker.row, worker.spaces, version)
                with no_failure("its agent"):
                    generators = self._restore_agent(seed, standing)
            except NotRestoredError as error:
                lost, ran = str(error), ran + error.ran
            else:
                self._length, self._seed, self._generators = state.length, seed, generators
                self._observation, self._digests = observation, digests
                return "", ran
        self.episode += 1
        return lost, ran

    def _restore_agent(self, seed: int, standing: Standing) -> Any:
        """Give the agent its memory, unless it was replaced; return the states of the global generators."""
        assert standing.state is not None
        packed = standing.state.memory
        memory, generators = (None, None) if packed is None else _unpacked(*packed)
        if not standing.agent_is_replaced:
            if self._agent_function is not None:
                self._agent_function(derived_seed(seed, Stream.AGENT))
            give_memory(self.agent, memory)
            self._agent_is_new = False
        return generators


def _unpacked(packed: bytes, position: int) -> Any:
    return cloudpickle.loads(packed)[position]


# ----------------------------------------------------------------------


RunCourse = Callable[[int, Course, RolloutRecorder], tuple[int, Times]]


class _FragmentRecorder(RolloutRecorder):
    """Records the episodes of one course after the other.

    Attributes:
        course: The one in hand.
    """

    course: Course

    def end(self, last_observation: Any, terminated: bool, truncated: bool, *, limited: bool = False) -> None:
        """End the part of the episode in hand that is in this fragment."""
        length = len(self.float_rewards) - self.n_timesteps
        truncated = self.course.end_episode(last_observation, length, terminated, truncated, limited=limited)
        super().end(last_observation, terminated, truncated)


class _Loaded(NamedTuple):
    """Parameters, loaded once for all environments of a worker."""

    payload: Any
    value: Any


class RunningEnvs:
    """The environments of fragments that a worker has.

    The first one is the worker's own.

    Args:
        worker: The worker.
        base_version: The agent version in which these environments began.
    """

    def __init__(self, worker: Worker, base_version: int) -> None:
        self.base_version = base_version
        self._worker = worker
        self._seeds = TrajectorySeeds(worker.context.seed, base_version)
        self._recorder = _FragmentRecorder(*worker.spaces, worker.context.allocate)
        self._courses: dict[int, Course] = {}
        self._loaded: dict[str, _Loaded] = {}

    def close(self) -> None:
        """Close the environments but the worker's own; whatever they raise comes after all are closed."""
        release(self)
        courses, self._courses = self._courses, {}
        close_all([course.env for course in courses.values()], self._worker.environments())

    def run(self, ticket: Ticket, run_course: RunCourse) -> Outcome:
        """Run the fragments of a ticket: its indices are the numbers of environments."""
        worker = self._worker
        resets, order = _order_of(worker)
        recorder = self._recorder
        recorder.clear()
        seconds, courses, restored = Times(), [], 0
        for number in ticket.indices:
            try:
                course, lost, ran = self._course(number, order, ticket.version)
            except AbandonedError as error:
                worker.ran_timesteps += restored + error.ran
                return Outcome(None, recorder.n_trajectories, recorder.n_timesteps, seconds=seconds)
            restored += ran
            course.begin(order.n_timesteps, resets, lost)
            recorder.course = course
            abandoned, more = run_course(ticket.version, course, recorder)
            seconds = seconds.plus(more)
            if abandoned >= 0:
                return Outcome(None, recorder.n_trajectories, recorder.n_timesteps, 1, abandoned, seconds)
            course.suspend()
            courses.append(course)
        worker.ran_timesteps += restored
        owners = [index for course in courses for index in course.recorded()]
        rollouts = worker.finished(recorder.finish, owners, worker.environments()[0])
        ends, last, fragments = [0, *accumulate(rollouts.lengths.tolist())], 0, []
        compared, memories = compared_of(rollouts), [course.memory() for course in courses]
        packed = _packed(memories)
        for position, course in enumerate(courses):
            last += course.n_episodes
            memory = None if memories[position] is None else (packed, position)
            fragments.append(course.close_fragment(compared, last - 1, ends[last - 1], ends[last], memory))
        rollouts.fragments = tuple(fragments)
        return Outcome(rollouts, recorder.n_trajectories, recorder.n_timesteps, seconds=seconds)

    def _course(self, number: int, order: FragmentOrder, version: int) -> tuple[Course, str, int]:
        """Return an environment with the agent in force; and, where it was lost, see `Course.take_over`."""
        worker, course = self._worker, self._courses.get(number)
        worker.trajectory = None  # what is made and updated here is of none
        is_new = course is None
        if course is None:
            worker.enter(Phase.ENV_CONSTRUCTION)
            env = cast("AnyEnv", worker.environments()[0]) if not self._courses else self._made()
            claim(env, self, lambda: worker.load(worker.in_force["env"]))
            course = Course(number, env, order.n_envs, self._seeds, worker.context.max_episode_length)
            self._courses[number] = course
        course.update_agent(worker, self._load)
        if not is_new or number not in order.standings:
            return course, "", 0
        worker.enter(Phase.RESET)
        return course, *course.take_over(worker, order.standings[number], version)

    def _made(self) -> AnyEnv:
        worker = self._worker
        set_states(TrajectorySeeds(worker.context.seed, 0)[0], None)  # as for the worker's own
        with for_worker(worker.context.worker_number):
            return apply_env_update(worker.load(worker.in_force["env"]), None)

    def _load(self, kind: str) -> Any:
        payload = self._worker.in_force[kind]
        if kind not in self._loaded or self._loaded[kind].payload is not payload:
            self._loaded[kind] = _Loaded(payload, self._worker.load(payload))
        return self._loaded[kind].value


def _order_of(worker: Worker) -> tuple[Resets, FragmentOrder]:
    assert worker.resets is not None
    assert worker.resets.fragments is not None
    return worker.resets, worker.resets.fragments


def running_envs(worker: Worker, order: FragmentOrder, running: RunningEnvs | None) -> RunningEnvs:
    """Return the environments that go on, or new ones where those that run began in another version."""
    if running is not None and running.base_version == order.base_version:
        return running
    if running is not None:
        worker.phase = Phase.CLOSE
        running.close()
    return RunningEnvs(worker, order.base_version)


def _packed(memories: list[Any]) -> bytes:
    """Pickle what is remembered in all environments at once: it takes 10 µs to begin."""
    if all(memory is None for memory in memories):
        return b""
    try:
        packed: bytes = cloudpickle.dumps(memories)
    except Exception as error:
        raise SerializationError(
            f"what get_state of the agent returned cannot be pickled: {type(error).__name__}: {error}"
        ) from error
    return packed
