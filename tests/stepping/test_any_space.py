"""Managers of environments with any space of Gymnasium, and custom ones: data, faces, restores, and errors."""

import functools
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.data.trees import leaves, same
from streamsampler.errors import ActionError, RolloutError
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from streamsampler.testing import Fault, Faults
from tests.patience import closing_patiently
from tests.scripted.kinds import KINDS, PAIRS, Kinds, RowsAsked
from tests.stepping.conftest import MODES
from tests.stepping.environments import following
from tests.tiers import mostly_slow

pairs = pytest.mark.parametrize(("shown", "sent"), mostly_slow(PAIRS, 2))


@pytest.mark.parametrize(("shown", "sent"), mostly_slow([it for it in PAIRS if "things" not in it], 2))
@pytest.mark.parametrize("autoreset", mostly_slow(MODES, 2))
def test_vector_environments_are_gymnasiums(new_manager, shown, sent, autoreset):
    """Gymnasium takes custom spaces only if they have an `==` of their own."""
    env, mode = functools.partial(Kinds, shown, sent), AutoresetMode[autoreset.upper()]
    ours = new_manager(env, n_envs=3, seed=0, autoreset=autoreset).vector_env()
    theirs = SyncVectorEnv(following(env, 3), autoreset_mode=mode)
    assert (ours.observation_space, ours.action_space) == (theirs.observation_space, theirs.action_space)
    theirs.action_space.seed(5)
    assert data_equivalence(ours.reset(seed=3), theirs.reset(seed=3), exact=True)
    for _ in range(15):
        actions = theirs.action_space.sample()
        one, other = ours.step(actions), theirs.step(actions)
        assert data_equivalence(one[:4], other[:4], exact=True)
        if autoreset == "disabled" and (ended := one[2] | one[3]).any():
            first, second = (each.reset(options={"reset_mask": ended.copy()}) for each in (ours, theirs))
            assert data_equivalence(first, second, exact=True)
        assert same(one[4].get("final_obs"), other[4].get("final_obs"))


def recorded(manager, sent):
    agent, recorder = RowsAsked(sent), manager.recorder()
    steps = manager.reset()
    recorder.add(steps)
    while len(recorder) < 12:
        steps = manager.step(agent.get_actions(steps.observations)[0])
        recorder.add(steps)
    return recorder.take(12)


@pairs
@pytest.mark.parametrize("verify", mostly_slow(["steps", "last"]))
def test_batches_are_those_of_samplers_whatever_fails(new_manager, shown, sent, verify, tmp_path, caplog):
    env = functools.partial(Kinds, shown, sent)
    faults = Faults(tmp_path, Fault("raise", "step", step=2), Fault("raise", "step", step=3))
    manager = new_manager(faults.env(env), n_envs=3, seed=3, verify=verify, autoreset="same_step")
    batch = recorded(manager, sent)
    assert (faults.fired(), manager.stats.restored, manager.stats.not_restored) == (2, 2, 0)
    with LocalSampler(RowsAsked(sent), env) as sampler:
        expected = sampler.obtain_trajectories(seeds=list(batch.seeds))
    for field in ("observations", "last_observations", "actions", "rewards", "lengths", "terminated"):
        assert same(getattr(batch, field), getattr(expected, field)), field


@pairs
@pytest.mark.parametrize("verify", mostly_slow(["steps", "last"]))
def test_killed_processes_are_restored(shown, sent, verify, tmp_path):
    batches = []
    env = functools.partial(Kinds, shown, sent)
    faults = Faults(tmp_path, *(Fault("kill", "step", step=step) for step in (1, 2, 3)))
    for made in (env, faults.env(env)):
        with EnvManager(made, n_envs=3, n_workers=2, seed=3, verify=verify, **closing_patiently({})) as manager:
            batches.append(recorded(manager, sent))
            assert manager.stats.not_restored == 0
    assert faults.fired() == 3
    for field in ("observations", "last_observations", "actions", "rewards", "lengths"):
        assert same(*(getattr(batch, field) for batch in batches)), field


class Drifting(Kinds):
    """Shows something else when it has been made anew: what it keeps is in the world, and no seed sets it back."""

    def __init__(self, path):
        super().__init__("list", "number")
        self.path = path

    def drawn(self):
        return (np.full(2, len(list(self.path.iterdir())) / 9, np.float32),)


@pytest.mark.parametrize("verify", ["steps", "last"])
def test_objects_that_differ_are_found(tmp_path, verify, caplog):
    seen = tmp_path / "seen"
    seen.mkdir()
    faults = Faults(tmp_path / "faults", Fault("kill", "step", step=2))
    with EnvManager(faults.env(functools.partial(Drifting, seen)), n_envs=1, seed=0, verify=verify) as manager:
        manager.reset()
        manager.step([1])
        (seen / "one").touch()
        assert manager.step([1]).failed.tolist() == [True]
        assert manager.stats.not_restored == 1
    assert "observation of timestep 0 differs" in caplog.text or "last observation" in caplog.text


@pytest.mark.parametrize("kills", [False, True])
@pytest.mark.parametrize("verify", mostly_slow(["steps", "last"]))
def test_each_environment_may_have_a_layout_of_its_own(verify, kills, tmp_path):
    envs = [functools.partial(Kinds, *PAIRS[place]) for place in (3, 0, 8)]
    streams = []
    faults = Faults(tmp_path, *[Fault("kill", "step", step=2)] * kills)
    processes: Any = functools.partial(EnvManager, n_workers=3, verify=verify, **closing_patiently({}))
    for new, made in ((SerialEnvManager, envs), (processes, [faults.env(env) for env in envs])):
        with new(made, n_envs=3, seed=3) as manager:
            rows = [manager.reset(), *(manager.step(manager.random_actions()) for _ in range(14))]
            streams.append([(it.observations, it.actions, it.rewards, it.previous_observations) for it in rows])
            assert same(list(rows[-1].observations), list(manager.observations()))
            assert manager.ready.keys() == {0, 1, 2}
    assert same(*streams)
    assert faults.fired() == kills


class Reusing(Kinds):
    """Shows the same list each time, which gets longer; changes its actions."""

    def __init__(self):
        super().__init__("things", "things")
        self.list = []

    def drawn(self):
        self.list.append(len(self.list))
        return self.list

    def step(self, action):
        result = super().step(None)
        action.append("changed")
        return result


def test_what_is_returned_is_a_copy(new_manager):
    manager = new_manager(Reusing, n_envs=2, seed=0)
    first, actions = manager.reset(), [["a"], ["b"]]
    steps = manager.step(actions)
    assert first.observations.tolist() == steps.previous_observations.tolist() == [[0], [0]]
    assert steps.observations.tolist() == [[0, 1], [0, 1]]
    assert actions == steps.actions.tolist() == [["a"], ["b"]]
    steps.observations[0].append("mine")
    assert manager.observations().tolist() == [[0, 1], [0, 1]]
    assert manager.ready[0] == [0, 1]


class Nesting(Kinds):
    """Changes a part of its actions."""

    def __init__(self):
        super().__init__("number", "number")
        self.action_space = spaces.Dict(a=KINDS["things"](), b=spaces.Discrete(3))

    def step(self, action):
        result = super().step(action["b"])
        action["a"].append("changed")
        return result


def test_an_environment_may_change_its_actions(new_manager, tmp_path):
    """Also while it is restored: what is kept of them, to restore it once more, stays as it was."""
    # In two steps: where one environment met both in the same one, it would have failed for good.
    faults = Faults(tmp_path, *[Fault("raise", "step", step=step) for step in (1, 2)])
    manager = new_manager(faults.env(Nesting), n_envs=2, seed=0)
    manager.reset()
    for t in range(4):
        actions = [{"a": [t, env_id], "b": 1} for env_id in range(2)]
        steps = manager.step(actions)
        running = np.flatnonzero(steps.timesteps)
        assert [actions[row]["a"] for row in running] == [steps.actions["a"][row] for row in running]
        assert [steps.actions["a"][row] for row in running] == [[t, row] for row in running]
    assert (faults.fired(), manager.stats.restored, manager.stats.not_restored) == (2, 2, 0)


@pytest.mark.parametrize("in_parent", [False, True])
def test_classes_of_the_callers_script(in_parent):
    """They are known by no name where the environments are."""

    class Word:
        def __init__(self, letters):
            self.letters = letters

    class Words(Kinds):
        def __init__(self):
            super().__init__("things", "things")
            self.t = -1

        def drawn(self):
            return Word("ab")

        def step(self, action):
            assert type(action) is Word
            return super().step(action.letters)

    if not in_parent:
        with EnvManager(Words, n_envs=2, n_workers=2, seed=0) as manager:
            assert [type(each) for each in manager.reset().observations] == [Word, Word]
            assert [each.letters for each in manager.step([Word("a"), Word("b")]).actions] == ["a", "b"]
        return

    class Writing:
        row_independent = True

        def get_actions(self, observations):
            return [Word(getattr(each, "letters", "") + "c") for each in observations], {}

    options: Any = {"inference": "parent", "worker_args": {"n_envs": 2}, "check": None}
    with MultiprocessingSampler(Writing(), Words, n_workers=2, seed=0, **options) as sampler:
        batch = sampler.obtain_trajectories(3)
    assert {(type(each), each.letters) for each in batch.observations} == {(Word, "ab")}
    assert {each.letters for each in batch.actions} == {"abc"}


def test_the_form_of_values_is_that_of_batches(new_manager):
    """Arrays with a row for each environment; objects, where values are no arrays of one size."""
    manager = new_manager(functools.partial(Kinds, "grid", "nested"), n_envs=2, seed=0)
    manager.reset()
    steps = manager.step(manager.random_actions())
    forms = [
        {path: (leaf.dtype.name, leaf.shape) for path, leaf in leaves(it)} for it in (steps.observations, steps.actions)
    ]
    assert forms[0] == {
        "['image']": ("uint8", (2, 7, 7, 3)),
        "['mission']": ("object", (2,)),
        "['way']": ("int64", (2,)),
    }
    assert forms[1] == {"['a'][0]": ("float32", (2, 2)), "['a'][1]": ("object", (2,)), "['b']['c']": ("object", (2,))}
    assert all(space == KINDS["grid"]() for space in manager.observation_spaces)
    one = manager.step({1: manager.action_space.sample()})
    assert one.observations["mission"].shape == (1,)
    assert len(one.by_env()[1].actions["b"]["c"]) == 1


class Wordless(Kinds):
    def __init__(self):
        super().__init__("text", "text")

    def drawn(self):
        return super().drawn() if not getattr(self, "t", 0) else 5


class Locked(Wordless):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Sequence(spaces.Discrete(3))

    def drawn(self):
        return super().drawn() if not self.t else (each for each in ())


def test_what_cannot_be(new_manager):
    manager = new_manager(Wordless, n_envs=2, seed=0, on_failure="raise")
    manager.reset()
    with pytest.raises(ActionError, match=r"environment 1: action should be a str, .*int 3"):
        manager.step(["a", 3])
    with pytest.raises(ActionError, match="a batch for action should be a sequence of 2 values, got str 'ab'"):
        manager.step("ab")
    with pytest.raises(RolloutError, match=r"environment \d raised in step.*observation should be a str, .*int 5"):
        manager.step(["a", "b"])
    with EnvManager(Locked, n_envs=1, seed=0, on_failure="raise") as one:
        one.reset()
        with pytest.raises(RolloutError, match="its observation or info cannot be pickled: TypeError: cannot"):
            one.step(["a"])


@pytest.mark.parametrize(("shown", "sent"), mostly_slow([("text", "list"), ("text", "pair"), ("list", "grid")]))
def test_a_vector_environment_goes_on_after_a_failure(new_manager, shown, sent, tmp_path):
    faults = Faults(tmp_path, Fault("raise", "step", step=1))
    manager = new_manager(faults.env(functools.partial(Kinds, shown, sent)), n_envs=2, seed=0, on_failure="raise")
    env = manager.vector_env()
    env.action_space.seed(1)
    env.reset()
    actions = env.action_space.sample()
    with pytest.raises(RolloutError, match="injected"):
        env.step(actions)
    observations, rewards, *_ = env.step(actions)
    assert env.observation_space.contains(observations)
    assert (rewards == 0).any(), "what failed was reset"
