"""What users mix up: each error says what is wrong, and what to do."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import (
    DataError,
    EnvManager,
    LocalSampler,
    MultiprocessingSampler,
    RandomAgent,
    RolloutError,
    UsageError,
    check,
    compare,
    evaluate,
    load,
    replay,
)
from streamsampler.workers.explain import step_error
from tests.cli.harness import invoke

FIRST = "take the agent first, then the environment"


@pytest.mark.extras
def test_an_action_of_another_kind_is_not_said_to_be_outside() -> None:
    torch = pytest.importorskip("torch")
    with LocalSampler(lambda _: torch.tensor(1), "CartPole-v1") as sampler, pytest.raises(RolloutError) as caught:
        sampler.obtain_samples(3)
    assert "tensor(1) is a Tensor, and Discrete(2) contains no values of this type: return int" in str(caught.value)
    one = str(step_error(RuntimeError(), torch.ones(1), gymnasium.spaces.Discrete(2), len))
    assert "is a Tensor of shape (1,), which is not in Discrete(2)" in one
    box = gymnasium.spaces.Box(-1, 1, (2,))
    assert "return a NumPy array" in str(step_error(RuntimeError(), torch.zeros(2), box, len))
    assert "is outside Box" in str(step_error(RuntimeError(), np.full(2, 9.0), box, len))


ANY: Any = LocalSampler
PROCESSES: Any = MultiprocessingSampler
MANAGER: Any = EnvManager


@pytest.mark.parametrize(
    "make",
    [
        lambda: ANY("CartPole-v1", "random"),
        lambda: PROCESSES("CartPole-v1", RandomAgent()),
        lambda: ANY("random", RandomAgent()),
        lambda: ANY(gymnasium.make("CartPole-v1"), RandomAgent()),
        lambda: evaluate("CartPole-v1", "random", num_trajectories=3),
        lambda: check("random", "CartPole-v1"),
        lambda: MANAGER(RandomAgent(), n_envs=2),
    ],
)
def test_a_swapped_agent_and_environment_are_named(make: Any) -> None:
    with pytest.raises((UsageError, TypeError), match=FIRST):
        make()


def test_no_grid_is_made_of_whole_trajectories() -> None:
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_trajectories(4)
    with pytest.raises(DataError, match=r"4 whole trajectories.*obtain_fragments.*batch\.padded\('rewards'\)"):
        batch.as_grid("rewards")


def test_a_saved_evaluation_is_not_replayed_but_says_how_its_trajectories_are_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = evaluate("random", "CartPole-v1", num_trajectories=5, seed=1, n_workers=0)
    found.save("A.json")
    sources: list[Any] = ["A.json", found]
    for source in sources:
        with pytest.raises(UsageError, match="no timesteps to compare with") as caught:
            replay(source, 3)
    sample, again = re.findall(r"'streamsampler ([^']*)'", str(caught.value))
    assert invoke(*sample.split()).exit_code == 0
    said = invoke(*again.split())
    assert said.exit_code == 0, said.stderr
    assert load("it.npz").returns.tolist()[:4] == found.returns.tolist()[:4], "they are the same trajectories"
    assert invoke("replay", "A.json", "--index", "3").exit_code == 2
    assert "streamsampler sample CartPole-v1" in invoke("replay", "A", "--index", "3", "--agent", "random").stderr
    with pytest.raises(UsageError, match="the evaluation has no trajectory 9; there are 0 to 4"):
        replay("A.json", 9)
    seeded: Any = evaluate("random", "CartPole-v1", seeds=[7, 8], n_workers=0)
    with pytest.raises(UsageError, match=r"obtain_trajectories\(seeds=\[8\]\)"):
        replay(seeded, 1)
    compared = compare(["random", lambda _: 0], "CartPole-v1", num_trajectories=3, n_workers=0)
    compared.save("both.json")
    with pytest.raises(UsageError, match="this is a comparison of random, "):
        replay("both.json", 1)


def test_a_saved_evaluation_is_no_agent(tmp_path: Path) -> None:
    found = evaluate("random", "CartPole-v1", num_trajectories=3, seed=1, n_workers=0)
    found.save(tmp_path / "A.json")
    wrong: Any
    for wrong in ([found, found], {"a": found, "b": "random"}, [tmp_path / "A.json", str(tmp_path / "A.json")]):
        with pytest.raises(UsageError, match="is a saved evaluation, not an agent: give the"):
            compare(wrong, "CartPole-v1", num_trajectories=3, n_workers=0)


class Bare:
    """An environment of several agents without PettingZoo's base class, and without what that would add."""

    possible_agents = ["a"]  # noqa: RUF012
    agents: list[str] = []  # noqa: RUF012

    def observation_space(self, _agent: str) -> Any:
        return gymnasium.spaces.Discrete(2)

    action_space = observation_space

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        del seed, options
        return {"a": np.int64(0)}, {"a": {}}

    def step(self, _actions: Any) -> Any:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("parallel_env", "has no attribute 'close'. Define close in its class, or derive it from pettingzoo.Par"),
        (
            "Bare",
            "Bare of the module bare_zoo is not registered. Register it with gymnasium.register; or for several agents",
        ),
    ],
)
def test_a_class_of_several_agents_without_a_base_class_is_said_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, name: str, words: str
) -> None:
    module: Any = types.ModuleType("bare_zoo")
    module.Bare = module.parallel_env = Bare
    monkeypatch.setitem(sys.modules, "bare_zoo", module)
    result = invoke("sample", f"bare_zoo:{name}", "--num-samples", "5", "--workers", "0")
    assert words in " ".join(result.stderr.split()), result.stderr
