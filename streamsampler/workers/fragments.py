"""Run fragments: the same number of timesteps in each environment, of episodes that go on from call to call.

An episode's part in a call is what a trajectory is elsewhere, and the same loop runs it: a `Course` takes the
environment's place in that loop. Where an episode goes on, its `reset` returns the observation that the last call ended
with. Everything that an episode draws from has its own state in each environment: the agent is a copy for each, and the
global generators are set to where the episode left them. So an environment's episodes are a function of their seeds and
of the parameters in each call, whichever worker runs them, next to which others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple, cast

import cloudpickle

from streamsampler.agents.base import reset_agent_function
from streamsampler.agents.updates import updated_agent
from streamsampler.data.fragments import EnvFragment, EpisodeState
from streamsampler.data.recorder import RolloutRecorder, Rollouts
from streamsampler.environments.updates import AnyEnv, apply_env_update
from streamsampler.environments.worker_numbers import for_worker
from streamsampler.protocol.messages import Phase, Ticket, Times
from streamsampler.seeding import Stream, TrajectorySeeds, derived_seed
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.finishing import with_filters
from streamsampler.workers.generators import drawn_states, fresh_states, set_states
from streamsampler.workers.resets import FragmentOrder, Standing
from streamsampler.workers.restoring import Digests, NotRestoredError, apply_actions

__all__ = ["Course", "RunningEnvs", "running_envs"]

RunCourse = Callable[[int, "Course", RolloutRecorder], tuple[int, Times]]


class Course:
    """One environment of fragments, with a copy of the agent, and the episode that goes on in it.

    Args:
        number: The environment's number, among those of all workers.
        env: The environment.
        seed_of: Returns the seed of an episode, by its number.
        most: How many timesteps an episode may have; None for any number.

    Attributes:
        agent: The copy of the agent.
        reset_agent: Resets it, where an episode begins; None if it has no `reset`.
        step: The environment's.
        episode: The number of the episode that goes on, or comes next.
        fragment: What this call's timesteps consist of, known at their end.
    """

    def __init__(self, number: int, env: AnyEnv, seed_of: Callable[[int], int], most: int | None) -> None:
        self.number = number
        self.env = env
        self.step = env.step
        self.agent: Any = None
        self.reset_agent: Callable[[int], None] | None = None
        self.episode = 0
        self.fragment = EnvFragment(number, 0, 0, False, None)
        self._seed_of, self._most = seed_of, most
        self._payloads: tuple[Any, ...] = (None, None, None)  # of the agent, its parameters and filters
        self._agent_function: Callable[[int], None] | None = None
        self._agent_is_new = False
        self._length = 0  # timesteps of the episode that goes on; 0 if none does
        self._observation: Any = None  # what it goes on from
        self._generators: Any = None
        self._fresh: tuple[int, Any] = (
            -1,
            None,
        )  # by a seed: what seeding makes of them
        self._digests = Digests()
        self._remaining = 0
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
        in_force = tuple(map(worker.in_force.get, ("agent", "parameters", "filters")))
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
        self._agent_function = reset_agent_function(self.agent)
        self.reset_agent = None if self._agent_function is None else self._reset_agent

    def _reset_agent(self, seed: int) -> None:
        if self._agent_is_new or not self._length:
            assert self._agent_function is not None
            self._agent_function(seed)
            self._agent_is_new = False

    # ------------------------------------------------------------------ what the loop asks for

    def numbers(self) -> Iterator[int]:
        """Yield the environment's number for each episode, until there are as many timesteps as are wanted."""
        while self._remaining:
            self._seed = self._seed_of(self.episode)
            yield self.number

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
            return self.env.reset(seed=seed)
        if self._generators is not None:
            set_states(seed, self._generators)
        return self._observation, {}

    def end_episode(self, observation: Any, length: int, terminated: bool, truncated: bool, *, limited: bool) -> bool:
        """Take in the end of an episode, or of the fragment; return whether the episode is truncated."""
        self._length += length
        self._remaining -= length
        truncated = truncated or (limited and self._length == self._most)
        self.fragment = self.fragment._replace(n_episodes=self.fragment.n_episodes + 1)
        if terminated or truncated:
            self.episode, self._length, self._observation, self._generators = self.episode + 1, 0, None, None
            self._digests = Digests()
        else:
            self._observation = observation
        return truncated

    # ------------------------------------------------------------------ fragments

    def begin(self, n_timesteps: int, lost: str = "") -> None:
        """Begin a fragment."""
        self._remaining = n_timesteps
        self.fragment = EnvFragment(self.number, 0, self.episode, self._length > 0, None, lost, self.number)

    def suspend(self) -> None:
        """Note where the episode that goes on stands: the next one to run seeds the global generators."""
        if self._length:
            if self._fresh[0] != self._seed:
                self._fresh = self._seed, fresh_states(self._seed)
            self._generators = drawn_states(self._fresh[1])

    def close_fragment(self, rollouts: Rollouts, timesteps: slice) -> EnvFragment:
        """Return what the fragment consists of.

        Args:
            rollouts: All that was recorded.
            timesteps: Which of it are of this environment's last episode.
        """
        if not self._length:
            return self.fragment
        self._digests.add(rollouts, timesteps)
        get_state = getattr(self.agent, "get_state", None)
        restorable = get_state is not None or self._agent_function is None
        state = None if get_state is None else cloudpickle.dumps(get_state())
        digests = self._digests.values()
        return self.fragment._replace(state=EpisodeState(self._length, state, self._generators, digests, restorable))

    def take_over(self, standing: Standing, row: Any, spaces: Any) -> tuple[str, int]:
        """Go on where another worker was lost.

        Returns:
            Why that cannot be; empty if it can. And how many timesteps the environment was run for it.
        """
        self.episode = standing.episode
        state = standing.state
        if state is None:
            return "", 0
        ran, lost = 0, "its agent has a reset, and no get_state and set_state"
        if state.restorable and standing.actions is None:
            lost = "the episode is longer than can be restored"
        elif state.restorable:
            seed = self._seed_of(self.episode)
            try:
                set_states(seed, None)
                self._observation, self._digests, ran = apply_actions(
                    self.env, seed, standing.actions, state, row, spaces
                )
            except NotRestoredError as error:
                lost, ran = str(error), state.length
            else:
                self._length, self._generators, self._seed = state.length, state.generators, seed
                if self._agent_function is not None:
                    self._agent_function(derived_seed(seed, Stream.AGENT))
                if state.agent is not None:
                    self.agent.set_state(cloudpickle.loads(state.agent))
                self._agent_is_new = False
                return "", ran
        self.episode += 1
        return lost, ran

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


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
        self._courses: dict[int, Course] = {}
        self._loaded: dict[str, _Loaded] = {}

    def close(self) -> None:
        """Close the environments but the worker's own; whatever they raise comes after all are closed."""
        own = self._worker.environments()
        with contextlib.ExitStack() as closing:
            for course in self._courses.values():
                if course.env not in own:
                    closing.callback(course.close)
            self._courses = {}

    def run(self, ticket: Ticket, run_course: RunCourse) -> Outcome:
        """Run the fragments of a ticket: its indices are the numbers of environments."""
        worker = self._worker
        order = _order_of(worker)
        recorder = _FragmentRecorder(*worker.spaces, worker.context.allocate)
        seconds, courses, restored = Times(), [], 0
        for number in ticket.indices:
            worker.trajectory = number
            course, lost, ran = self._course(number, order)
            restored += ran
            course.begin(order.n_timesteps, lost)
            recorder.course = course
            abandoned, more = run_course(ticket.version, course, recorder)
            seconds = seconds.plus(more)
            if abandoned >= 0:
                return Outcome(None, recorder.n_trajectories, recorder.n_timesteps, 1, abandoned, seconds)
            course.suspend()
            courses.append(course)
        worker.ran_timesteps += restored
        owners = [course.number for course in courses for _ in range(course.fragment.n_episodes)]
        rollouts = worker.finished(recorder.finish, owners, worker.environments()[0])
        ends, last, fragments = [0, *accumulate(rollouts.lengths.tolist())], 0, []
        for course in courses:
            last += course.fragment.n_episodes
            fragments.append(course.close_fragment(rollouts, slice(ends[last - 1], ends[last])))
        rollouts.fragments = tuple(fragments)
        return Outcome(rollouts, recorder.n_trajectories, recorder.n_timesteps, seconds=seconds)

    def _course(self, number: int, order: FragmentOrder) -> tuple[Course, str, int]:
        """Return an environment with the agent in force; and, where it was lost, see `Course.take_over`."""
        worker, course = self._worker, self._courses.get(number)
        is_new = course is None
        if course is None:
            env = cast("AnyEnv", worker.environments()[0]) if not self._courses else self._made()
            n_envs, seeds = order.n_envs, self._seeds
            course = Course(number, env, lambda episode: seeds[number + episode * n_envs], _most_of(worker))
            self._courses[number] = course
        course.update_agent(worker, self._load)
        if not is_new or number not in order.standings:
            return course, "", 0
        worker.phase = Phase.RESET
        worker.row.set_phase(Phase.RESET)
        return course, *course.take_over(order.standings[number], worker.row, worker.spaces)

    def _made(self) -> AnyEnv:
        worker = self._worker
        worker.phase = Phase.ENV_CONSTRUCTION
        worker.row.set_phase(Phase.ENV_CONSTRUCTION)
        set_states(TrajectorySeeds(worker.context.seed, 0)[0], None)  # as for the worker's own
        with for_worker(worker.context.worker_number):
            return apply_env_update(worker.load(worker.in_force["env"]), None)

    def _load(self, kind: str) -> Any:
        payload = self._worker.in_force[kind]
        if kind not in self._loaded or self._loaded[kind].payload is not payload:
            self._loaded[kind] = _Loaded(payload, self._worker.load(payload))
        return self._loaded[kind].value


def _order_of(worker: Worker) -> FragmentOrder:
    assert worker.resets is not None
    assert worker.resets.fragments is not None
    return worker.resets.fragments


def _most_of(worker: Worker) -> int | None:
    return worker.context.max_episode_length


def running_envs(worker: Worker, order: FragmentOrder, running: RunningEnvs | None) -> RunningEnvs:
    """Return the environments that go on, or new ones where those that run began in another version."""
    if running is not None and running.base_version == order.base_version:
        return running
    if running is not None:
        worker.phase = Phase.CLOSE
        running.close()
    return RunningEnvs(worker, order.base_version)
