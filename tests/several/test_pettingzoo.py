"""PettingZoo's own environments: each is sampled as a plain loop plays it, in both forms."""

import importlib
import pkgutil
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiAgentBatch, MultiprocessingSampler, SerialEnvManager, check
from streamsampler.data.trees import same
from streamsampler.workers.generators import seed_generators
from streamsampler.workers.vec.rows import row_of
from tests.scripted.games import Comings, played_in_parallel, played_in_turns
from tests.several.comparing import assert_as_played

pettingzoo = pytest.importorskip("pettingzoo")
# Its environments and what they need warn of much; an import of Box2D crashes where a warning is an error.
pytestmark = [pytest.mark.extras, pytest.mark.filterwarnings("ignore")]

N, LIMIT = 10, 25
FAMILIES = "butterfly", "classic", "sisl"
FORMS = "parallel_env", "env"


def modules_of(family):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = importlib.import_module(f"pettingzoo.{family}")
    return [f"pettingzoo.{family}.{each.name}" for each in pkgutil.iter_modules(package.__path__) if "_v" in each.name]


class Legal:
    """Draws a legal action from a generator of its own."""

    def __init__(self, space: Any = None) -> None:
        self.space, self.rng = space, np.random.default_rng(0)

    def set_spaces(self, observation_space, action_space):
        self.space = action_space

    def reset(self, seed):
        self.rng = np.random.default_rng(seed)

    def get_action(self, observation):
        if isinstance(observation, dict) and "action_mask" in observation:
            return int(self.rng.choice(np.flatnonzero(observation["action_mask"]))), {}
        self.space.seed(int(self.rng.integers(2**31)))
        return self.space.sample(), {}


class ZooComings(Comings, pettingzoo.ParallelEnv):  # type: ignore[name-defined]
    """The scripted game as PettingZoo has it."""

    metadata: ClassVar = {"name": "comings_v0"}

    @property
    def unwrapped(self):
        return self


class Mute(ZooComings):
    """Says nothing of infos at the reset, which samplers do without."""

    def reset(self, seed=None, options=None):
        return super().reset(seed, options)[0], {}


def turns_of_comings():
    """The same in the other form, as PettingZoo's own conversion makes it."""
    return pettingzoo.utils.conversions.parallel_to_aec(ZooComings())


def assert_all_as_played(batch, env):
    """Compare with what a plain loop does."""
    assert isinstance(batch, MultiAgentBatch)
    play = played_in_turns if hasattr(env, "agent_iter") else played_in_parallel
    for episode, seed in enumerate(batch.episodes.seeds):
        seed_generators(seed)
        assert_as_played(batch, episode, play(env, lambda agent: Legal(env.action_space(agent)), seed, LIMIT))


@pytest.mark.core
@pytest.mark.parametrize("make", [ZooComings, turns_of_comings], ids=FORMS)
@pytest.mark.parametrize("options", [{}, {"inference": "parent"}], ids=["", "parent"])
def test_what_its_classes_and_conversions_make_is_played_as_by_a_plain_loop(make, options):
    with MultiprocessingSampler(Legal(), make, seed=5, n_workers=2, max_episode_length=LIMIT, **options) as sampler:
        assert_all_as_played(sampler.obtain_trajectories(N), make())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        pytest.param(ZooComings, "parallel_api_test", marks=pytest.mark.core),
        (turns_of_comings, "api_test"),
        (Mute, "parallel_api_test finds: assert set(par_env.agents)"),
    ],
)
def test_a_check_runs_its_tests_whose_findings_are_warnings(make, words):
    found = check(make, seed=1, time_limit=600.0, step_timeout=120.0)
    assert found["runs"].verdict == found["seed"].verdict == found["processes"].verdict == "pass"
    assert words in found["PettingZoo"].what
    assert found["PettingZoo"].verdict == "warning" or make is not Mute
    assert found.ok


@pytest.mark.parametrize("module", [module for family in FAMILIES for module in modules_of(family)])
def test_each_environment_is_played_as_by_a_plain_loop(module):
    try:
        there = importlib.import_module(module)
    except ImportError as error:  # of an engine that PyPI does not have, such as Hanabi's
        pytest.skip(f"{module} needs what is not installed: {error}")
    forms = [form for form in FORMS if hasattr(there, form)]
    assert forms
    for form in forms:
        env = getattr(there, form)()
        several: dict[str, Any] = {agent: Legal() for agent in env.possible_agents}
        # `check` breaks trajectories off in the middle, which knights_archers_zombies does not survive: enemies stay.
        options: dict[str, Any] = {"seed": 3, "max_episode_length": LIMIT, "check": None}
        each_for_itself = dict(zip(several, several, strict=True))
        with LocalSampler(several, f"{module}:{form}", policy_of=each_for_itself, **options) as sampler:
            assert_all_as_played(sampler.obtain_trajectories(N), env)


class First:
    """Takes the first action that is legal, and else one that depends on what it sees."""

    def __init__(self) -> None:
        self.space: Any = None

    def set_spaces(self, observation_space, action_space):
        self.space = action_space

    def get_action(self, observation):
        if isinstance(observation, dict) and "action_mask" in observation:
            return int(np.argmax(observation["action_mask"])), {}
        self.space.seed(int(np.abs(observation).sum()) % 1000)
        return self.space.sample(), {}


@pytest.mark.parametrize("name", ["pettingzoo.classic.rps_v2", "pettingzoo.classic.tictactoe_v3"])
def test_managers_record_what_samplers_do(name):
    with SerialEnvManager(name, n_envs=2, seed=1) as manager:
        recorder, agents = manager.recorder(), {"player": First()}
        agents["player"].set_spaces(None, manager.action_space["player_0" if "rps" in name else "player_1"])
        steps = manager.reset()
        recorder.add(steps)
        while len(recorder) < 3:
            shown = {it: steps[it] for it in steps.policies}
            actions = {
                it: [agents[it].get_action(row_of(view.observations, row))[0] for row in range(len(view))]
                for it, view in shown.items()
            }
            steps = manager.step(actions)
            recorder.add(steps)
        batch: Any = recorder.take(3)
    with LocalSampler({"player": First()}, name, check=None) as sampler:
        expected: Any = sampler.obtain_trajectories(seeds=list(batch.seeds))
    for field in ("observations", "actions", "rewards", "lengths", "env_timesteps", "last_observations"):
        assert same(getattr(batch["player"], field), getattr(expected["player"], field)), field
