"""Let an agent act, and look at what it does; probe whether the rows of its batches depend on one another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from streamsampler.agents.base import Agent, is_row_independent, reset_agent_function
from streamsampler.checking.findings import Finding
from streamsampler.checking.values import DrawWatch, dtype_problems
from streamsampler.checking.worker import TaskWorker
from streamsampler.data.copying import make_recorder
from streamsampler.data.spaces import check_actions
from streamsampler.data.words import count
from streamsampler.errors import ActionError, DataError, UsageError
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.seeding import Stream, TrajectorySeeds, derived_seed
from streamsampler.workers.explain import begin_of, summary_of, traceback_of
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.logs import quiet
from streamsampler.workers.vec.agents import AgentPool

_ROWS = 8, 32
_OUTSIDE = (
    "Clip it in the agent, or wrap the environment with gymnasium.wrappers.ClipAction: samplers refuse actions outside "
    "the action space"
)
_GET_ACTION = "get_action must return (action, agent_info), with agent_info a dict"


@dataclass(frozen=True)
class InspectAgent:
    """A task: let the agent act in its environment, look at its actions, and probe its batches.

    Attributes:
        seconds: After so long no further timestep begins.
        timesteps: How many timesteps it acts at most.
    """

    seconds: float
    timesteps: int

    def __call__(self, worker: TaskWorker) -> list[Finding]:
        """Run the task."""
        if worker.is_vector:
            return [*_in_vector(worker), *_of_rows(worker)]
        acting = _Acting(worker, self)
        try:
            acting.run()
        except (Exception, SystemExit) as error:
            return [*acting.findings(_failure(worker, error))]
        return [*acting.findings(None), *_of_rows(worker)]


def _failure(worker: TaskWorker, error: BaseException) -> Finding:
    return Finding("agent", "failure", f"{worker.phase} raised {summary_of(error)}", "", traceback_of(error))


def _in_vector(worker: TaskWorker) -> Iterator[Finding]:
    """Let the agent act in a vector environment, for one block of trajectories."""
    seeds = TrajectorySeeds(worker.context.seed, worker.version)
    n = worker.inner.layout({"n_envs": worker.env.num_envs}).block  # type: ignore[union-attr]
    try:
        with worker.by_inner() as inner:
            outcome = inner.rollout(Ticket(worker.version, range(n), n), seeds.of(range(n)))
    except (Exception, SystemExit) as error:
        yield _failure(worker, error)
        return
    yield Finding("agent", "pass", f"it acted in {count(outcome.n_timesteps, 'timestep')}")


class _Acting:
    """An agent that acts in its environment, and what is seen of it."""

    def __init__(self, worker: TaskWorker, task: InspectAgent) -> None:
        env: Any = worker.env
        assert worker.agent is not None
        self._worker, self._task, self._agent = worker, task, worker.agent
        self._space = env.action_space
        self._recorder = make_recorder(self._space, "action", ActionError)
        self._draws = DrawWatch()
        self._refused = self._mistyped = ""
        self._n = 0

    def run(self) -> None:
        """Let the agent act.

        Raises:
            BaseException: What agent and environment raise.
        """
        worker, agent, env = self._worker, self._agent, self._worker.env
        until = perf_counter() + self._task.seconds
        seeds = TrajectorySeeds(worker.context.seed, worker.version)
        reset_agent = reset_agent_function(agent)
        number = 0
        while self._n < self._task.timesteps and perf_counter() < until:
            worker.enter(Phase.RESET, number)
            seed_generators(seeds[number])
            observation, _ = begin_of(env.reset(seed=seeds[number]))
            worker.enter(Phase.AGENT_RESET, number)
            if reset_agent is not None:
                reset_agent(derived_seed(seeds[number], Stream.AGENT))
            ended = False
            while not ended and self._n < self._task.timesteps and perf_counter() < until:
                action = self._act(agent, observation)
                if not self._takes(action):
                    return
                worker.enter(Phase.STEP, number)
                observation, _, terminated, truncated, _ = env.step(action)
                ended = bool(terminated or truncated)
                self._n += 1
                worker.progress(self._n)
            number += 1

    def _act(self, agent: Agent, observation: Any) -> Any:
        self._worker.enter(Phase.ACTION, self._worker.trajectory)
        self._draws.begin()
        chosen = agent.get_action(observation)
        self._draws.end("get_action")
        if not isinstance(chosen, tuple | list) or len(chosen) != 2 or not isinstance(chosen[1], dict):
            raise UsageError(_GET_ACTION)
        return chosen[0]

    def _takes(self, action: Any) -> bool:
        """Look at an action, and return whether samplers take it."""
        self._mistyped = self._mistyped or next(dtype_problems(self._space, action, "action"), "")
        try:
            self._recorder.record(action)
            outside = check_actions(self._space, self._recorder.view(0, 1))
        except DataError as error:
            self._refused = f"{error}, at timestep {self._n}"
        else:
            self._refused = "" if outside is None else f"{outside[1]}, at timestep {self._n}"
        self._recorder.truncate(0)
        self._recorder.renew()
        return not self._refused

    def findings(self, failure: Finding | None) -> Iterator[Finding]:
        """Yield what was found.

        Args:
            failure: What raised; None for nothing.
        """
        yield failure or Finding("agent", "pass", f"it acted in {count(self._n, 'timestep')}")
        if self._refused:
            yield Finding("actions", "failure", self._refused, _OUTSIDE)
        elif self._mistyped:
            yield Finding(
                "actions", "warning", self._mistyped,
                "Return arrays of the space's dtype: samplers record them converted, but the environment gets them as "
                "they are",
            )  # fmt: skip
        elif self._n:
            yield Finding("actions", "pass", "all are in the action space")
        if self._draws.draws:
            yield Finding(
                "agent's draws", "warning", str(self._draws),
                "Samplers seed these for each trajectory, but VecWorker then runs trajectories in blocks: draw from a "
                "generator that reset(seed=…) seeds, and in get_actions from the keyword draws",
            )  # fmt: skip
        elif self._n:
            yield Finding("agent's draws", "pass", "nothing is drawn from global generators")


def _of_rows(worker: TaskWorker) -> Iterator[Finding]:
    """Probe whether the rows of the agent's batches depend on one another."""
    agent: Any = worker.agent
    if not callable(getattr(agent, "get_actions", None)):
        yield Finding(
            "rows", "pass", "the agent has no get_actions: VecWorker asks it for one action at a time",
        )  # fmt: skip
        return
    worker.enter(Phase.ACTION, None)
    spaces = worker.inner.spaces
    try:
        says = is_row_independent(agent)
        conclusive = True
        for n_rows in _ROWS:
            pool = AgentPool(hint=False)
            pool.update(agent, n_rows, None)
            with quiet():
                conclusive = pool.probe(spaces[0], n_rows) and conclusive
    except UsageError as error:
        yield _of_dependence(error, says=bool(getattr(agent, "row_independent", False)))
        return
    rows = " and ".join(map(str, _ROWS))
    if says:
        yield Finding("rows", "pass", f"each row of batches of {rows} is computed from that row alone, as it says")
    elif conclusive:
        yield Finding(
            "rows", "pass",
            f"each row of batches of {rows} is computed from that row alone, but the agent does not say so",
            "With row_independent = True VecWorker runs trajectories in lanes, which is faster, if that holds for all "
            "parameters",
        )  # fmt: skip
    else:
        yield Finding("rows", "pass", "VecWorker runs trajectories in blocks")


def _of_dependence(error: UsageError, *, says: bool) -> Finding:
    text = str(error)
    if says or "row_independent of the agent" in text:
        what, _, advice = text.partition(". ")
        return Finding("rows", "failure", what, advice)
    return Finding("rows", "pass", "rows of batches depend on one another, or on draws: VecWorker runs in blocks")
