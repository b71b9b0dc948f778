"""Run fragments: the same number of timesteps in each environment, of episodes that go on from call to call.

An episode's part in a call is what a trajectory is elsewhere, and the same loop runs it: a `courses.Course` takes the
environment's place in that loop. An environment's episodes are a function of their seeds and of the parameters in each
call, whichever worker runs them, next to which others: everything that they draw from is their own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple, cast

import cloudpickle

from streamsampler.data.recorder import RolloutRecorder
from streamsampler.environments.updates import AnyEnv, apply_env_update
from streamsampler.environments.worker_numbers import for_worker
from streamsampler.errors import SerializationError
from streamsampler.protocol.messages import Phase, Ticket, Times
from streamsampler.seeding import TrajectorySeeds
from streamsampler.workers.base import Outcome, Worker
from streamsampler.workers.courses import Course
from streamsampler.workers.distinct_envs import claim, close_all, release
from streamsampler.workers.generators import set_states
from streamsampler.workers.resets import FragmentOrder, Resets
from streamsampler.workers.restoring import AbandonedError, compared_of

__all__ = ["RunningEnvs", "running_envs"]

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
