"""Random environments, each recorded by hand in a bare loop as well: what is in a batch is what was said, or an error.

Observations, actions, rewards and infos come in every form that is taken: arrays of their space's dtype and of others,
lists, views, arrays that are used again, numbers too large for floats. Half of the programs say something wrong in one
timestep: then the error names that trajectory and that timestep, and a call that does not need it succeeds.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as S

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.trees import map_trees
from streamsampler.errors import RolloutError

PROGRAMS = {"short": 60, "long": 2_000}
N = 7  # trajectories
FLOATS = S.Box(-np.inf, np.inf, (3,), np.float32)
OBSERVATIONS: list[Any] = [
    FLOATS,
    S.Box(-np.inf, np.inf, (2, 2), np.float64),
    S.Box(-np.inf, np.inf, (), np.float32),
    S.Box(-np.inf, np.inf, (40, 30), np.float32),
    S.Box(0, 255, (5, 2), np.uint8),
    S.Discrete(5, start=-2),
    S.Dict(a=FLOATS, b=S.Tuple([S.MultiBinary(3), S.Box(-(2**20), 2**20, (2,), np.int32)]), c=S.MultiDiscrete([3, 4])),
]
ACTIONS: list[Any] = [
    S.Discrete(3),
    S.Box(-1, 1, (2,), np.float32),
    S.Tuple([S.MultiDiscrete([2, 3]), S.Box(-1, 1, (1,), np.float64)]),
]
INFOS = [1, 2**53 + 1, -(2**62) - 1, np.uint64(2**63 + 1), 0.5, np.float32(0.1), True, "word", None, np.int8(3), 2**70]
# What may be wrong, and for some of that the forms of it.
WRONG: dict[str, list[Any]] = {
    "shape": [],
    "number": [],
    "terminated": [(None, False), (False, "no"), (2, False)],
    "info": [None, (), 0],
    "reward": [None, "much", np.zeros(1), 2**53 + 1, 1j],
    "nan": [],
}


def said(rng: np.random.Generator, leaf: Any, buffers: dict[int, Any], wrong: str | None) -> tuple[Any, Any]:
    """Return a form of a random value of a leaf, or something wrong, and what is to be recorded of it."""
    floats = leaf.dtype.kind == "f"
    leaf.seed(int(rng.integers(2**31)))
    array = np.asarray(rng.uniform(-1, 1, leaf.shape) if floats else leaf.sample(), leaf.dtype)
    if wrong == "shape":
        return np.zeros((*array.shape, 1), array.dtype), None
    if wrong in ("number", "nan") and floats:
        wide = array.astype(np.float64 if array.dtype == np.float32 else np.longdouble)
        wide[...] = np.nan if wrong == "nan" else np.longdouble(2) ** (24 if array.dtype == np.float32 else 53) + 1
        return wide, None
    form = rng.integers(7)
    if form == 1 and floats:
        wide = np.asarray(np.clip(rng.normal(size=array.shape).astype(["f8", "f2", ">f8"][rng.integers(3)]), -1, 1))
        return wide, wide.astype(array.dtype)
    if form == 2:
        return array.tolist(), array
    if form == 3 and not isinstance(leaf, S.Discrete):
        buffer = buffers.setdefault(id(leaf), np.empty(array.shape, array.dtype))
        buffer[...] = array
        return buffer, array
    if form == 4 and array.ndim:
        return np.repeat(array[None], 2, axis=0)[::-1][1].copy(order="F"), array
    return (array.astype(array.dtype.newbyteorder(">")) if form == 5 else array), array


def tree_of(rng: np.random.Generator, space: Any, buffers: dict[int, Any], wrong: str | None = None) -> tuple[Any, Any]:
    """Return a form of a random value of a space, and what is to be recorded of it."""
    if isinstance(space, S.Dict):
        parts = {key: tree_of(rng, child, buffers, wrong) for key, child in space.spaces.items()}
        return {key: part[0] for key, part in parts.items()}, {key: part[1] for key, part in parts.items()}
    if isinstance(space, S.Tuple):
        form, meant = zip(*(tree_of(rng, child, buffers, wrong) for child in space.spaces), strict=True)
        return form, meant
    return said(rng, space, buffers, wrong)


class Told(gymnasium.Env[Any, Any]):
    """Says what its program and the seed decide; keeps what it meant for the bare loop."""

    def __init__(self, program: int, wrong: tuple[int, int, str] | None = None) -> None:
        rng = np.random.default_rng(program)
        self.observation_space = OBSERVATIONS[rng.integers(len(OBSERVATIONS))]
        self.action_space = ACTIONS[rng.integers(len(ACTIONS))]
        self.program, self.wrong = program, wrong
        self.buffers: dict[int, Any] = {}

    def _observe(self, wrong: str | None) -> Any:
        form, self.meant = tree_of(self.rng, self.observation_space, self.buffers, wrong)
        return form

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {}
        for key in "abcd"[: self.rng.integers(5)]:
            value: Any = INFOS[self.rng.integers(len(INFOS))]
            if key == "d":
                info[key] = {"in": value} if self.rng.random() < 0.5 else {}
            elif key == "c":
                info[key] = np.array([value, value]) if isinstance(value, int) and value < 2**63 else np.zeros(2)
            else:
                info[key] = value
        return info

    def _is_wrong(self) -> str | None:
        return self.wrong[2] if self.wrong and self.wrong[:2] == (self.seed, self.t) else None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self.seed, self.t = seed, 0
        self.rng = np.random.default_rng([self.program, seed])
        self.length = int(self.rng.integers(2, 7))
        return self._observe(self._is_wrong()), self._info()

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        odd = self._is_wrong()  # of what leads on from the timestep, and then of the observation that is led to
        self.t += 1
        reward: Any = [0.5, 3, np.float32(0.25), np.int16(2), np.array(1.5), True, 2**53][self.rng.integers(7)]
        ends: Any = [True, np.True_, 1, np.array(True)][self.rng.integers(4)] if self.t == self.length else False
        flags: Any = (ends, np.False_) if self.rng.random() < 0.5 else (False, ends)
        info: Any = self._info()
        if odd and WRONG[odd]:
            form = WRONG[odd][self.rng.integers(len(WRONG[odd]))]
            flags = form if odd == "terminated" else flags
            info = form if odd == "info" else info
            reward = form if odd == "reward" else reward
        return self._observe(self._is_wrong()), reward, *flags, info


class Chooses:
    """Chooses what its seed decides, in every form; uses its arrays again."""

    def __init__(self, program: int) -> None:
        self.space = Told(program).action_space
        self.buffers: dict[int, Any] = {}

    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        action, self.meant = tree_of(self.rng, self.space, self.buffers)
        info = {"p": self.rng.random(dtype=np.float32), "n": INFOS[self.rng.integers(len(INFOS))]}
        return action, info if self.rng.random() < 0.8 else {}


def check_same(tree: Any, row: int, meant: Any) -> None:
    """Check that a row of a tree is what was meant, bit for bit."""
    map_trees(lambda rows, one: np.testing.assert_array_equal(np.asarray(rows[row]), one, strict=True), tree, meant)


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def check_info(columns: Any, row: int, info: dict[str, Any]) -> int:
    """Check that a row of infos is what was said; returns how many values it has."""
    n = 0
    for key, column in columns.items():
        if isinstance(column, dict):
            n += check_info(column, row, info.get(key, {}))
        elif not (key[:1] == "_" and key[1:] in columns):
            there = f"_{key}" not in columns or bool(columns[f"_{key}"][row])
            assert there == (key in info and not isinstance(info[key], dict)), key
            assert not there or plain(column[row]) == plain(info[key]), (key, column[row], info[key])
            n += there
    return n


def check_by_hand(batch: TrajectoryBatch[Any, Any], program: int) -> int:
    """Run each trajectory in a bare loop, and compare; returns how many values of infos were compared."""
    n_infos = 0
    for trajectory in batch:
        env, agent = Told(program), Chooses(program)
        seed = trajectory.seeds[0]
        observation, info = env.reset(seed=seed)
        agent.reset(derived_seed(seed, SeedUse.AGENT))
        n_infos += check_info(trajectory.episode_infos, 0, info)
        for t in range(trajectory.n_timesteps):
            check_same(trajectory.observations, t, env.meant)
            action, agent_info = agent.get_action(observation)
            check_same(trajectory.actions, t, agent.meant)
            n_infos += check_info(trajectory.agent_infos, t, agent_info)
            observation, reward, terminated, truncated, info = env.step(action)
            assert trajectory.rewards[t] == reward
            n_infos += check_info(trajectory.env_infos, t, info)
        check_same(trajectory.last_observations, 0, env.meant)
        assert (trajectory.terminated[0], trajectory.truncated[0]) == (bool(terminated), bool(truncated))
        assert t + 1 == env.length
    return n_infos


def samplers(program: int, wrong: tuple[int, int, str] | None = None) -> list[Any]:
    """Return one sampler of each kind."""
    vec: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 4}, "n_workers": 2}
    kinds: list[Any] = [(LocalSampler, {}), (LocalSampler, vec), (MultiprocessingSampler, {"n_workers": 2})]
    options: dict[str, Any] = {"seed": program, "check": "error" if wrong else None}
    return [
        make(Chooses(program), lambda: Told(program, wrong), **how, **options)
        for make, how in kinds[: 3 if program % 20 == 0 else 2]
    ]


def prove_right(program: int, counts: Counter[str]) -> TrajectoryBatch[Any, Any]:
    """Compare what all samplers give with a bare loop."""
    batches = []
    for sampler in samplers(program):
        with sampler:
            batches.append(sampler.obtain_trajectories(N))
    assert all(batch == batches[0] for batch in batches), program
    parts = batches[0].split()
    assert TrajectoryBatch.concatenate(parts[:3], TrajectoryBatch.concatenate(parts[3:])) == batches[0], program
    counts["values of infos"] += check_by_hand(batches[0], program)
    counts.update({"timesteps": batches[0].n_timesteps, "batches": len(batches)})
    return batches[0]


def prove_wrong(program: int, batch: TrajectoryBatch[Any, Any], counts: Counter[str]) -> None:
    """Say something wrong in one timestep; all samplers must name it, if they need it."""
    rng = np.random.default_rng([program, 1])
    position = int(rng.integers(N))
    what = list(WRONG)[program // 2 % len(WRONG)]
    if what in ("number", "nan") and "float" not in str(batch.observation_space):
        what = "shape"
    timestep = int(rng.integers(0, int(batch.lengths[position]) + (not WRONG[what])))
    for sampler in samplers(program, (batch.seeds[position], timestep, what)):
        with sampler:
            with pytest.raises(RolloutError, match=f"Told: .*at timestep {timestep} of its trajectory") as caught:
                sampler.obtain_trajectories(N)
            assert caught.value.trajectory == position, (program, what, caught.value)
            if position:
                assert sampler.obtain_trajectories(position).n_trajectories == position
        counts[f"wrong: {what}"] += 1


def prove(scale: str) -> None:
    """Try as many programs as the scale says."""
    counts: Counter[str] = Counter()
    for program in range(PROGRAMS[scale]):
        batch = prove_right(program, counts)
        if program % 2 == 0:
            prove_wrong(program, batch, counts)
    print("\n".join(f"{name:18} {n:10,}" for name, n in sorted(counts.items())))
