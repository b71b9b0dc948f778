"""A block by hand: from which seeds it runs, when it is abandoned, what it tells of its progress and of errors."""

import random
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler import VecWorker
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.environments.updates import NewEnvUpdate, as_env_update
from streamsampler.errors import ActionError
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.workers.board import StatusBoard
from streamsampler.workers.generators import preserved_generators, seed_generators
from streamsampler.workers.hooks import pickled_hooks
from streamsampler.workers.resets import FragmentOrder, Resets
from tests.scripted.envs import Steps
from tests.workers.contexts import context_of, new_board

KINDS = ["slots", "NEXT_STEP", "SAME_STEP", "DISABLED"]
N_ENVS = 3


class Calling(gymnasium.Env[Any, Any]):
    """Lasts as long as its seed says, or as the trajectory before; calls a function first, in resets and steps."""

    observation_space = spaces.Box(-99, 99, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, tell: Any = None) -> None:
        self.tell = tell or (lambda what: None)
        self.length = self.t = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.tell("reset")
        self.length = self.length if seed is None else seed
        self.t = 0
        return np.array([self.length], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.tell("step")
        self.t += 1
        return np.array([self.length], np.float32), 1.0, self.t == self.length, False, {}


class OneByOne:
    def __init__(self, tell: Any = None) -> None:
        self.tell = tell or (lambda what: None)
        self.begun: list[tuple[int, float]] = []

    def get_action(self, observation: Any) -> Any:
        self.tell("action")
        return 0, {}


class Batched(OneByOne):
    def reset(self, seed: int) -> None:
        self.begun.append((seed, random.random()))

    def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
        self.tell("actions")
        n = len(observations)
        return np.zeros(n, np.int64), {"rows": np.full(n, n)}


def worker_of(
    agent: Any, tell: Any = None, kind: str = "slots", board: StatusBoard | None = None, hooks: Any = None
) -> VecWorker:
    """Return a worker with three environments, single ones or those of a vector environment."""
    worker = VecWorker(context_of(board, hooks=hooks), n_envs=N_ENVS, block_size=6)
    single = partial(Calling, tell)
    mode = None if kind == "slots" else AutoresetMode[kind]
    make = single if mode is None else partial(SyncVectorEnv, [single] * N_ENVS, autoreset_mode=mode)
    worker.update_env(as_env_update(make))
    worker.update_agent(agent)
    return worker


class Counting:
    """A hook."""

    def on_timestep(self, context: Any) -> None:
        context.metrics["n"] = float(context.timestep)


def run(worker: VecWorker, lengths: list[int], block: int = 6) -> Any:
    return worker.rollout(Ticket(1, range(len(lengths)), block), lengths)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_of_an_old_version_is_abandoned_at_the_next_step(kind):
    board, steps = new_board(), []

    def tell(what: str) -> None:
        steps.extend([what] * (what == "step"))
        if len(steps) == 4 * N_ENVS:
            board.abandon_older(2)

    outcome = run(worker_of(Batched(), tell, kind, board), [50] * 6)
    assert outcome.rollouts is None
    assert len(steps) == outcome.abandoned_timesteps == 4 * N_ENVS
    assert outcome.n_abandoned == N_ENVS


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_seeded_from_its_first_trajectory(kind):
    agent = Batched()
    with preserved_generators():
        run(worker_of(agent, kind=kind), [4, 5, 6, 7, 8, 9, 3, 4, 5, 6, 7, 8])
        expected = []
        for seed in (4, 3):
            seed_generators(seed)
            expected.append((derived_seed(seed, SeedUse.AGENT), random.random()))
    assert agent.begun == expected


def test_a_row_that_is_free_takes_the_next_trajectory_of_its_block():
    steps: list[str] = []
    rollouts = run(worker_of(Batched(steps.append)), [2, 5, 6, 3, 4, 1]).rollouts
    assert rollouts.lengths.tolist() == [2, 5, 6, 3, 4, 1]
    # Row 0 runs those of 2, 3 and 1 timesteps, the others run into the 9th step.
    assert len(steps) == 9
    (rows,) = rollouts.agent_infos.columns.values()
    assert rows.values.tolist() == [N_ENVS] * 21


class Boxed(Calling):
    """Shows a little more than its length after two timesteps."""

    action_space: Any = spaces.Box(-1, 1, (2,), np.float32)

    def step(self, action: Any) -> Any:
        observation, *rest = super().step(action)
        return observation + np.float32(0.25 * (self.t == 2)), *rest


@pytest.mark.parametrize("odd", range(6))
def test_the_trajectory_that_cannot_be_recorded_is_named(odd):
    lengths = [4, 9, 5, 8, 6, 7]

    class Leaving(Batched):
        """Leaves the action space where an observation shows one of the lengths."""

        def get_actions(self, observations: Any) -> tuple[Any, dict[str, Any]]:
            return np.repeat(np.where(observations == lengths[odd] + 0.25, 7.0, 0.5), 2, axis=1), {}

    worker = worker_of(Leaving())
    worker.update_env(as_env_update(Boxed))
    with pytest.raises(ActionError, match=r"outside its space.*, at timestep 2 of its trajectory; clip it"):
        run(worker, lengths)
    assert worker.trajectory == odd


@pytest.mark.parametrize("agent_class", [OneByOne, Batched])
@pytest.mark.parametrize("watched", [False, True])
def test_progress_shows_the_phase_and_to_who_watches_each_call(agent_class, watched):
    board, seen = new_board(), []

    def tell(what: str) -> None:
        seen.append((what, board.progress(0)))

    worker = worker_of(agent_class(tell), tell, board=board)
    seen.clear()
    board.abandon_older(1)
    board.lower_flag(0)
    if watched:
        board.request_progress(0)
    assert run(worker, [10] * 6).n_timesteps == 60
    phases = {"reset": Phase.RESET, "action": Phase.ACTION, "actions": Phase.ACTION, "step": Phase.STEP}
    assert all(progress.phase == phases[what] for what, progress in seen)
    assert len(seen) > 66
    assert not watched or all(before != after for (_, before), (_, after) in pairwise(seen))


@pytest.mark.parametrize("agent_class", [OneByOne, Batched])
@pytest.mark.parametrize("hooks", [None, Counting()])
def test_progress_of_fragments_shows_each_call(agent_class: Any, hooks: Any) -> None:
    """The limit on a step is of each environment's, and not of all together."""
    board, seen = new_board(), []

    def tell(what: str) -> None:
        seen.append(board.progress(0))

    worker = worker_of(agent_class(tell), tell, board=board, hooks=pickled_hooks(hooks, None))
    worker.in_force, worker.load = {"agent": agent_class(tell)}, lambda payload: payload
    worker.resets = Resets(fragments=FragmentOrder(5, N_ENVS, base_version=1))
    board.request_progress(0)
    seen.clear()
    outcome = worker.rollout(Ticket(1, range(1)), [10])
    assert outcome.n_timesteps == worker.ran_timesteps == 5 * N_ENVS
    assert len(seen) > 20
    assert all(before != after for before, after in pairwise(seen))


def test_the_time_of_every_reset_step_and_action_is_told(monkeypatch):
    """The first resets of a block included."""
    now = 0.0

    def tell(what: str) -> None:
        nonlocal now
        now += {"reset": 100.0, "step": 1.0, "actions": 0.25}[what]

    for module in ("driver", "lanes"):
        monkeypatch.setattr(f"streamsampler.workers.vec.{module}.perf_counter", lambda: now)
    outcome = run(worker_of(Batched(tell), tell), [10] * 12)
    assert outcome.seconds[:3] == (12 * 100.0, 40 * 0.25, 120 * 1.0)


def test_all_environments_are_closed():
    closed: set[Any] = set()

    class Closing(Steps):
        def close(self) -> None:
            closed.add(self)

    worker = VecWorker(context_of(), n_envs=4)
    worker.update_env(NewEnvUpdate(Closing))
    worker.need_environments(9)
    worker.update_env(NewEnvUpdate(Closing))
    assert len(closed) == 4
    with pytest.raises(ZeroDivisionError):
        worker.update_env(NewEnvUpdate(lambda: 1 / 0))  # type: ignore[arg-type, return-value]
    assert len(closed) == 8
    worker.update_env(NewEnvUpdate(Closing))
    worker.need_environments(9)
    worker.shutdown()
    assert len(closed) == 12
