"""Hooks and `drop_if` where trajectories run side by side: as with `DefaultWorker`, to the last bit."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest

from streamsampler import LocalSampler, VecWorker, replay
from streamsampler.errors import RolloutError
from streamsampler.testing.scripted import ScriptedEnv
from tests.contracts.test_hooks import Env, Metrics, Stuck, crashed

SEED = 4


class Apart:
    """Decides for each observation by itself, alone or together with others."""

    row_independent = True

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def get_action(self, observation: Any) -> Any:
        return int(observation[0] * 100 + self.offset) % 2, {"seen": float(observation[0])}

    def get_actions(self, observations: Any) -> Any:
        return (observations[:, 0] * 100 + self.offset).astype(np.int64) % 2, {
            "seen": observations[:, 0].astype(np.float64)
        }

    def set_param_values(self, values: tuple[int]) -> None:
        (self.offset,) = values


class InBlocks(Apart):
    row_independent = False


class OneByOne:
    row_independent = True

    def __init__(self) -> None:
        self.inner = Apart()

    def reset(self, seed: int) -> None:
        self.n_actions = seed % 2

    def get_action(self, observation: Any) -> Any:
        self.n_actions += 1
        return self.n_actions % 2, self.inner.get_action(observation)[1]

    def set_param_values(self, values: tuple[int]) -> None:
        self.inner.set_param_values(values)


class Watching(Metrics):
    """Looks at all that a context shows, and keeps it among the metrics."""

    def on_trajectory_start(self, context: Any) -> None:
        super().on_trajectory_start(context)
        assert len(context.rewards) == len(context.observations) == len(context.actions) == 0
        assert context.reset_info == context.info
        assert isinstance(context.agent, type(context.agent))
        context.metrics["begun"] = float(context.reset_info["begins"])

    def on_timestep(self, context: Any) -> None:
        super().on_timestep(context)
        assert len(context.rewards) == len(context.actions) == len(context.observations) == context.timestep
        assert context.agent_info["seen"] == context.observations[-1][0]
        context.memory.setdefault("seen", []).append((int(context.action), float(context.reward), dict(context.info)))
        context.metrics["crashes"] = sum(info["crashed"] for _, _, info in context.memory["seen"])
        context.metrics["limited"] = (bool(context.terminated), bool(context.truncated))

    def on_trajectory_end(self, context: Any) -> None:
        seen = context.memory["seen"]
        assert context.actions.tolist() == [action for action, _, _ in seen]
        assert context.rewards.tolist() == [reward for _, reward, _ in seen]
        if not context.truncated:
            super().on_trajectory_end(context)
        assert context.terminated or context.timestep == 6
        context.metrics["ends"] = bool(context.truncated)


VEC: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
FORMS = [
    pytest.param(Apart, VEC, id="lanes"),
    pytest.param(OneByOne, VEC, id="lanes, one by one"),
    pytest.param(InBlocks, {**VEC, "worker_args": {"n_envs": 2, "block_size": 4}}, id="blocks"),
]


def outcomes(agent: Any, **options: Any) -> Any:
    given = {"hooks": Watching(), "seed": SEED, "max_episode_length": 6, "drop_if": crashed, "check": None, **options}
    with LocalSampler(agent(), Env((2, 9)), n_workers=1, **given) as sampler:
        return [sampler.obtain_trajectories(13), sampler.obtain_samples(70, (3,)), sampler.obtain_exact_trajectories(4)]


@pytest.mark.parametrize(("agent", "form"), FORMS)
def test_they_see_and_give_what_they_do_in_the_default_worker(agent, form):
    found, expected = outcomes(agent, **form), outcomes(agent)
    assert found == expected
    assert found[0].stats.lost_timesteps > 0
    for batch, same in zip(found, expected, strict=True):
        assert batch.stats.metrics == same.stats.metrics
        left_out = [[(each.index, each.phase, each.error) for each in one.stats.dropped] for one in (batch, same)]
        assert left_out[0] == left_out[1]
        assert batch.stats.kept_timesteps == same.stats.kept_timesteps
        assert batch.stats.lost_timesteps >= same.stats.lost_timesteps
        stats = batch.stats
        parts = stats.kept_timesteps, stats.lost_timesteps, stats.surplus_timesteps, stats.abandoned_timesteps
        assert sum(stats.worker_timesteps) == sum(parts)


@pytest.mark.parametrize(("agent", "form"), [*FORMS, (Apart, {})])
def test_replays_have_the_metrics(agent, form):
    options = {"hooks": Watching(), "drop_if": crashed, "max_episode_length": 6, **form}
    with LocalSampler(agent(), Env((2, 9)), seed=SEED, n_workers=1, **options) as sampler:
        batch = sampler.obtain_trajectories(13)
        last, index = batch[-1], int(batch.indices[-1])
        found = (
            sampler.replay(1, index, recorded=batch),
            replay(batch, index, agent=agent(), env=Env((2, 9)), **options),
        )
    for each in found:
        assert each.same
        for name in ("steps", "begun", "ends", "largest"):
            assert each.trajectory.episode_infos[name].tolist() == last.episode_infos[name].tolist()


@pytest.mark.parametrize("hook", ["on_trajectory_start", "on_timestep", "on_trajectory_end"])
def test_an_error_names_the_hook_and_the_trajectory(hook):
    class Bad:
        pass

    def fail(self: Any, context: Any) -> None:
        if context.index == 4:
            raise LookupError("no such table")

    setattr(Bad, hook, fail)
    with LocalSampler(Apart(), ScriptedEnv((2, 5)), n_workers=2, seed=SEED, hooks=Bad(), **VEC) as sampler:
        with pytest.raises(RolloutError, match=f"calling the hook {hook} in trajectory 4 .*no such table") as caught:
            sampler.obtain_trajectories(9)
        assert isinstance(caught.value.original, LookupError)


class Losses:
    lost: ClassVar[list[tuple[int, int, str]]] = []

    def on_trajectory_lost(self, context: Any, error: BaseException) -> None:
        n_recorded = {len(context.rewards), len(context.observations), len(context.actions)}
        assert n_recorded == {context.timestep}
        self.lost.append((context.index, context.timestep, type(error).__name__))


@pytest.mark.parametrize("base", [Apart, InBlocks])
def test_the_hook_of_lost_trajectories_sees_what_was_left_out_and_what_raised(base):
    class Refusing(base):  # type: ignore[misc,valid-type]
        """Raises where a number is large, which it is in one trajectory after some timesteps."""

        def get_actions(self, observations: Any) -> Any:
            if (observations[:, 1] > 0.99).any():
                raise ValueError("too large")
            return super().get_actions(observations)

    def losses(agent: Any, env: Any, n: int, words: str, **options: Any) -> Any:
        """Return what was lost, and the batch or the trajectory that the error names."""
        Losses.lost.clear()
        options = {"seed": SEED, "n_workers": 1, "hooks": Losses(), "check": None, **VEC, **options}
        with LocalSampler(agent, env, **options) as sampler:
            if not words:
                return Losses.lost, sampler.obtain_trajectories(n)
            with pytest.raises(RolloutError, match=words) as caught:
                sampler.obtain_trajectories(n)
        return Losses.lost, caught.value.trajectory

    lost, batch = losses(base(), Env((2, 9)), 13, "", drop_if=crashed)
    left_out = [each.index for each in batch.stats.dropped]
    assert len(left_out) > 1
    assert [index for index in left_out if index in {index for index, *_ in lost}] == left_out
    assert {kind for *_, kind in lost} == {"AbnormalTrajectoryError"}
    assert losses(base(), Stuck(5), 3, "the arm is stuck") == ([(0, 3, "OSError")], 0)
    ((index, timestep, kind),), trajectory = losses(Refusing(), Env(30), 8, "too large")
    assert (index, kind) == (trajectory, "ValueError")
    assert timestep > 0


def test_rows_have_hooks_of_their_own():
    class Alone:
        def on_trajectory_start(self, context: Any) -> None:
            assert getattr(self, "index", None) is None
            self.index = context.index

        def on_timestep(self, context: Any) -> None:
            assert self.index == context.index

        def on_trajectory_end(self, context: Any) -> None:
            self.index = None
            context.metrics["hooks"] = id(self)

    with LocalSampler(Apart(), Env((2, 9)), n_workers=1, seed=SEED, hooks=Alone(), check=None, **VEC) as sampler:
        of_row = sampler.obtain_trajectories(12).episode_infos["hooks"].reshape(4, 3)
    assert len(set(of_row[0].tolist())) == 3
    assert (of_row == of_row[0]).all()
