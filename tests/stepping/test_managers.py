"""The calls of managers of environments: the same for those in this process and in worker processes."""

import functools
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.errors import ClosedError, RolloutError, UsageError
from streamsampler.stepping.ledger import EnvState
from tests.stepping.environments import Counting, Graded


def counting(**arguments):
    return functools.partial(Counting, **arguments)


def test_episodes_have_the_seeds_of_the_samplers(new_manager):
    manager = new_manager(Counting, n_envs=3, seed=7)
    seeds = TrajectorySeeds(7, 0)
    begins = {0: [], 1: [], 2: []}
    steps = manager.reset()
    for _ in range(9):
        for row in np.flatnonzero(steps.timesteps == 0):
            begins[int(steps.env_ids[row])].append(steps.observations[row, 0])
        steps = manager.step(np.zeros(3, np.int64))
    assert begins == {e: [seeds[e], seeds[e + 3], seeds[e + 6]] for e in range(3)}


def test_next_step_ignores_the_action_after_an_end(new_manager):
    manager = new_manager(Counting, n_envs=2, seed=0)
    manager.reset()
    seen = [manager.step(np.array([1, 2])) for _ in range(5)]
    assert [steps.timesteps[0] for steps in seen] == [1, 2, 3, 0, 1]
    assert [steps.episodes[0] for steps in seen] == [0, 0, 0, 1, 1]
    assert [steps.rewards.tolist() for steps in seen] == [[1, 2], [1, 2], [1, 2], [0, 0], [1, 2]]
    assert [steps.terminated[1] for steps in seen] == [False, False, True, False, False]
    assert seen[2].last_observations[:, 1].tolist() == [3, 3]


def test_same_step_keeps_the_last_observation_and_info(new_manager):
    manager = new_manager(counting(info_at=3), n_envs=2, seed=0, autoreset="same_step")
    manager.reset()
    seen = [manager.step(np.array([1, 2])) for _ in range(4)]
    assert [steps.timesteps[0] for steps in seen] == [1, 2, 3, 1]
    assert seen[2].observations[:, 1].tolist() == [0, 0]
    assert seen[2].last_observations[:, 1].tolist() == [3, 3]
    assert seen[2].previous_observations[:, 1].tolist() == [2, 2]
    assert seen[2].observations[0, 0] != seen[2].last_observations[0, 0]
    assert seen[3].previous_observations[:, 1].tolist() == [0, 0]
    assert seen[2].infos["final_info"]["note"].tolist() == [3, 3]


def test_disabled_leaves_the_reset_to_the_caller(new_manager):
    manager = new_manager(counting(length=1), n_envs=2, seed=0, autoreset="disabled")
    manager.reset()
    manager.step(np.array([1]), [1])
    with pytest.raises(
        UsageError, match=r"environment 1 .* NEEDS_RESET: its episode has ended: call reset\(env_ids=\[1"
    ):
        manager.step(np.array([1, 1]))
    assert manager.reset([1]).episodes.tolist() == [1]
    assert manager.step(np.array([1, 1])).terminated.all()


@pytest.mark.parametrize(
    ("seed", "first"),
    [
        ([5, 6], [5, 6]),
        ({1: 9}, [TrajectorySeeds(1, 0)[0], 9]),
        (4, [TrajectorySeeds(4, 0)[0], TrajectorySeeds(4, 0)[1]]),
    ],
)
def test_seeds_of_a_reset(new_manager, seed, first):
    manager = new_manager(counting(length=1), n_envs=2, seed=1)
    assert manager.reset(seed=seed).observations[:, 0].tolist() == first
    manager.step(np.array([0, 0]))
    later = manager.step(np.array([0, 0])).observations[:, 0]
    assert manager.reset(seed=seed).observations[:, 0].tolist()[1] == first[1]
    manager.step(np.array([0, 0]))
    assert later[1] not in first
    assert manager.step(np.array([0, 0])).observations[1, 0] == later[1]


def test_options_are_remembered(new_manager):
    manager = new_manager(counting(length=1), n_envs=2, seed=0)
    manager.reset(options={"hard": True})
    for _ in range(2):
        manager.step(np.array([0, 0]))
    assert manager.get_attr("options") == [{"hard": True}] * 2
    manager.reset([1], options={"hard": False})
    assert manager.get_attr("options") == [{"hard": True}, {"hard": False}]


def test_observation_action_and_next_observation_belong_together(new_manager):
    manager = new_manager(counting(length=5), n_envs=3, seed=0)
    manager.async_reset()
    latest, rng, received = {}, np.random.default_rng(0), 0
    while received < 60:
        steps = manager.recv(min_envs=1)
        assert len(set(steps.env_ids.tolist())) == len(steps) > 0
        for env_id, step in steps.by_env().items():
            if step.timesteps[0]:
                observation, action = latest[env_id]
                assert step.previous_observations[0].tolist() == observation
                assert step.actions[0] == action == step.rewards[0]
            latest[env_id] = step.observations[0].tolist(), int(rng.integers(9))
        received += len(steps)
        manager.send({env_id: latest[env_id][1] for env_id in steps.env_ids.tolist()})


def test_infos_follow_the_vector_convention(new_manager):
    manager = new_manager([counting(info_at=1), Counting], n_envs=2, seed=0)
    manager.reset()
    infos = manager.step(np.array([0, 0])).infos
    assert infos["note"].tolist() == [1, 0]
    assert infos["_note"].tolist() == [True, False]
    assert manager.step(np.array([0, 0])).infos == {}


class Posed(Counting):
    def step(self, action):
        return *super().step(action)[:4], {"pose": {"x": 1.5}, "empty": {}, "t": self._t}


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_each_info_has_its_mask_as_in_gymnasium(new_manager, autoreset):
    """Also those that all environments have, and those of nested dicts."""
    theirs = SyncVectorEnv([Posed, Posed], autoreset_mode=AutoresetMode[autoreset.upper()])
    manager = new_manager(Posed, n_envs=2, seed=0, autoreset=autoreset)
    theirs.reset(seed=0)
    manager.reset()
    for _ in range(4):
        expected = theirs.step(np.array([0, 0]))[4]
        for key in ("final_obs", "_final_obs", "_final_info"):  # `Steps` has those as `last_observations` and `ended`
            expected.pop(key, None)
        found = manager.step(np.array([0, 0])).infos
        found.pop("_final_info", None)
        assert flat(found) == flat(expected)


def flat(infos):
    return {
        key: flat(value) if isinstance(value, dict) else (value.dtype.kind, value.tolist())
        for key, value in infos.items()
    }


def test_a_reset_takes_out_steps_that_are_open(new_manager):
    manager = new_manager(Counting, n_envs=2, seed=0)
    manager.reset()
    manager.send(np.array([1, 1]))
    assert manager.reset([0]).timesteps.tolist() == [0]
    assert manager.recv().env_ids.tolist() == [1]
    assert sorted(manager.ready) == [0, 1]
    assert manager.ready[1][1] == 1
    assert manager.wait()


def test_calls_and_attributes(new_manager):
    manager = new_manager(Counting, n_envs=2, seed=0)
    manager.reset()
    assert manager.call("set_level", 3, factor=2) == [6, 6]
    manager.set_attr("level", [1, 2])
    assert manager.get_attr("level") == [1, 2]
    assert manager.render([1]) == ["frame 0"]
    with pytest.raises(AttributeError, match=r"environment 1 \(Counting\) has no attribute 'levle'"):
        manager.get_attr("levle", [1])
    manager.set_attr("levle", 3)  # as Gymnasium's vector environments do
    assert manager.get_attr("levle") == [3, 3]
    assert manager.random_actions().shape == (2,)


def test_an_environment_that_raises(new_manager):
    manager = new_manager(Counting, n_envs=3, seed=0, on_failure="raise")
    manager.reset()
    with pytest.raises(RolloutError, match=r"environment 1 raised in step.*the gearbox is stuck") as caught:
        manager.step(np.array([1, 9, 1]))
    assert "gearbox" in str(caught.value.__cause__)
    assert manager.states[1] is EnvState.FAILED
    assert sorted(manager.recv(min_envs=2).env_ids.tolist()) == [0, 2]
    with pytest.raises(UsageError, match=r"environment 1 .* FAILED"):
        manager.send(np.array([1, 1, 1]))
    manager.reset([1])
    assert manager.step(np.array([1, 1, 1])).rewards.tolist() == [1, 1, 1]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
def test_an_episode_that_fails_is_ended_and_marked(new_manager, autoreset):
    manager = new_manager(Counting, n_envs=3, seed=0, on_failure="reset", autoreset=autoreset)
    manager.reset()
    manager.step(np.array([1, 1, 1]))
    steps = manager.step(np.array([1, 9, 1]))
    assert steps.failed.tolist() == [False, True, False] == steps.truncated.tolist()
    assert steps.last_observations[:, 1].tolist() == [2, 1, 2]
    assert steps.previous_observations[:, 1].tolist() == [1, 1, 1]
    assert steps.rewards.tolist() == [1, 0, 1]
    if autoreset == "disabled":
        assert manager.states[1] is EnvState.NEEDS_RESET
        manager.reset([1])
    elif autoreset == "same_step":
        assert steps.observations[:, 1].tolist() == [2, 0, 2]
    else:
        assert manager.step(np.array([1]), [1]).timesteps.tolist() == [0]
    assert manager.step(np.array([1]), [1]).episodes.tolist() == [1]
    assert manager.failures == 1


def test_an_abnormal_environment_fails_until_it_is_reset(new_manager):
    manager = new_manager([counting(info_at=1, key="abnormal"), Counting], n_envs=2, seed=0)
    manager.reset()
    steps = manager.step(np.array([1, 1]))
    assert steps.failed.tolist() == [True, False]
    assert manager.states == (EnvState.FAILED, EnvState.READY)
    manager.reset([0])
    assert manager.states[0] is EnvState.READY


def test_closing_and_launching_again(new_manager):
    manager = new_manager(Counting, n_envs=2, seed=3)
    first = manager.reset().observations
    manager.close()
    manager.close()
    with pytest.raises(ClosedError, match=r"call launch\(\)"):
        manager.step(np.array([0, 0]))
    manager.launch()
    with pytest.raises(UsageError, match="there already"):
        manager.launch()
    assert manager.reset().observations.tolist() == first.tolist()


def test_a_list_says_how_many_environments_there_are(new_manager):
    manager = new_manager([Counting, functools.partial(Counting, 5)], seed=0)
    assert (manager.n_envs, len(manager.reset())) == (2, 2)
    for envs in (Counting, "CartPole-v1", []):
        with pytest.raises(UsageError, match="how many environments"):
            new_manager(envs)


def test_spaces_may_differ_in_their_bounds(new_manager):
    manager = new_manager([functools.partial(Graded, n) for n in (1, 2, 50)], n_envs=3, seed=0)
    manager.reset()
    assert [space.n for space in manager.action_spaces] == [1, 2, 50]
    assert [space.high.item() for space in manager.observation_spaces] == [1, 2, 50]
    for name in ("observation_space", "action_space"):
        with pytest.raises(UsageError, match=f"the {name.replace('_', ' ')} of environment 1 .*{name}s of a manager"):
            getattr(manager, name)
    actions = np.array([manager.random_actions() for _ in range(30)])
    assert actions[:, 0].max() == 0
    assert actions[:, 1].max() == 1
    assert actions[:, 2].max() > 1
    steps = manager.step(np.array([0, 1, 49]))
    assert steps.observations.tolist() == [[0], [1], [49]]
    strict = new_manager([functools.partial(Graded, n) for n in (9, 3)], n_envs=2, on_failure="raise")
    strict.reset()
    with pytest.raises(RolloutError, match=r"environment 1 .*action .*5.* is outside Discrete\(3\)"):
        strict.step(np.array([5, 5]))


def test_nested_spaces(new_manager):
    manager = new_manager(Nested, n_envs=2, seed=0)
    manager.reset()
    actions = manager.random_actions()
    steps = manager.step(actions)
    assert steps.observations["position"].shape == (2, 3)
    assert steps.observations["parts"][1].tolist() == actions["choice"].tolist()


class Nested(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        position=gymnasium.spaces.Box(0, 1, (3,)),
        parts=gymnasium.spaces.Tuple([gymnasium.spaces.MultiBinary(2), gymnasium.spaces.Discrete(5)]),
    )
    action_space = gymnasium.spaces.Dict(
        choice=gymnasium.spaces.Discrete(5), force=gymnasium.spaces.Box(-1, 1, (2,), np.float64)
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        observation = self.observation_space.sample()
        observation["parts"] = observation["parts"][0], action["choice"]
        return observation, 0.0, False, False, {}


def test_results_come_in_the_order_of_the_environments_that_were_named(new_manager):
    manager = new_manager(Counting, n_envs=3, seed=0)
    assert manager.reset([2, 0, 1]).env_ids.tolist() == [2, 0, 1]
    steps = manager.step(np.array([5, 3]), [2, 0])
    assert steps.env_ids.tolist() == [2, 0]
    assert steps.rewards.tolist() == [5, 3] == steps.actions.tolist()


def test_options_are_forgotten(new_manager):
    manager = new_manager(counting(length=1), n_envs=2, seed=0)
    manager.reset(options={"hard": True})
    manager.forget_options([1])
    manager.step(np.array([0, 0]))
    manager.step(np.array([0, 0]))
    assert manager.get_attr("options") == [{"hard": True}, None]


def test_without_stable_baselines3_the_error_says_how_to_install_it():
    code = (
        "import sys; sys.modules['stable_baselines3'] = None\n"
        "from streamsampler import SerialEnvManager\n"
        "manager = SerialEnvManager('CartPole-v1', n_envs=1, autoreset='same_step')\n"
        "try:\n    manager.sb3_env()\nexcept ImportError as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("sb3_env() needs Stable-Baselines3: pip install stable-baselines3 (in a clone")
