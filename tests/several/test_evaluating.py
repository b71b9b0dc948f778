"""Evaluate and compare policies of several agents, by calls and by the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import streamsampler
from streamsampler import compare, evaluate
from streamsampler.cli.app import cli
from streamsampler.errors import DataError, UsageError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.filters import RunningNorm
from tests.scripted.games import IDS, Chooser, Comings, Turns
from tests.several.comparing import POLICIES, LocalSampler, sampled

HOW: dict[str, Any] = {"seed": 5, "n_workers": 0}


@pytest.mark.parametrize("game", [Comings, Turns])
@pytest.mark.slow
def test_returns_are_those_of_an_agent_a_team_or_a_policy(game: Any, tmp_path: Path) -> None:
    episodes = sampled(env=game, n=12, seed=5).episodes
    for return_of, team in (
        ("red_1", ["red_1"]),
        (["red_1", "blue_1"], ["red_1", "blue_1"]),
        ("blue", ["blue_0", "blue_1"]),
        ("all", IDS),
        (("red_0", "red"), ["red_0", "red_1"]),
    ):
        found = evaluate(POLICIES, game, num_trajectories=12, return_of=return_of, **HOW)
        team = [agent for agent in team if agent in episodes.agent_ids]
        assert found.returns.tolist() == episodes.return_of(team).tolist()
        assert found.lengths.tolist() == episodes.lengths.tolist()
        assert found.settings["return_of"] == ([return_of] if isinstance(return_of, str) else list(return_of))
        assert "return of " in str(found)
    found.save(tmp_path / "x.json")
    assert Evaluation.load(tmp_path / "x.json") == found
    assert found.agent["name"].startswith("red=")


@pytest.mark.parametrize(
    ("return_of", "words"),
    [
        (None, r"for which agents do returns count.*red_0, red_1, blue_0, blue_1.*return_of"),
        ("green", "return_of names 'green'"),
        (3, "return_of must be a name"),
        ([], "return_of must be"),
    ],
)
def test_it_must_be_said_whose_return_counts(return_of: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        evaluate(POLICIES, Comings, num_trajectories=3, return_of=return_of, **HOW)
    with pytest.raises(UsageError, match="return_of is for environments of several agents"):
        evaluate("random", "CartPole-v1", num_trajectories=3, return_of="red_0", **HOW)
    with pytest.raises(UsageError, match=r"'green'.*The keys 'red' and 'green' are the names of the agents to compare"):
        compare({"red": "random", "green": "random"}, Comings, num_trajectories=3, return_of="green", **HOW)


@pytest.mark.slow
def test_policies_swapped_among_agents_on_the_same_seeds() -> None:
    bold, shy = Chooser(3), Chooser(0)
    agents = {"bold is red": {"red": bold, "blue": shy}, "bold is blue": {"red": shy, "blue": bold}}
    found = compare(agents, Comings, num_trajectories=15, return_of=["red_0", "red_1"], **HOW)
    assert found.evaluations[0].seeds == found.evaluations[1].seeds
    for evaluation, given in zip(found.evaluations, agents.values(), strict=True):
        expected = sampled(given, n=15, seed=5).episodes.return_of(["red_0", "red_1"])
        assert evaluation.returns.tolist() == expected.tolist()
    assert "bold is red" in str(found)
    how: dict[str, Any] = {"until_decided": 0.05, "bounds": (0, 60), "max_trajectories": 40, **HOW}
    assert compare(agents, Comings, return_of="red", **how).evaluations[0].settings["return_of"] == ["red"]


def test_a_policy_that_changes_places_is_followed() -> None:
    def policy_of(agent: str, index: int) -> str:
        return "new" if (agent == "red_1") == (index % 2 == 0) and agent in ("red_1", "blue_1") else "old"

    agents = {"new": Chooser(3), "old": Chooser(0)}
    found = evaluate(agents, Comings, num_trajectories=6, return_of="new", policy_of=policy_of, **HOW)
    returns = sampled(agents, n=6, seed=5, policy_of=policy_of).episodes.returns
    assert found.returns.tolist() == [returns[("red_1", "blue_1")[index % 2]][index] for index in range(6)]


class Won(Comings):
    def info(self, agent: str) -> Any:
        return {"success": agent[-1] == "1" and self.total % 2 == (agent == "blue_1")} if self.t == 7 else {}


def test_successes_are_those_of_the_team() -> None:
    rates = [
        evaluate(POLICIES, Won, num_trajectories=20, return_of=return_of, **HOW).success_rate
        for return_of in ("red_1", "blue_1", "all")
    ]
    assert 0 < (rates[0] or 0) < 1
    assert (rates[0] or 0) + (rates[1] or 0) == pytest.approx(1)
    assert rates[2] == 1


def test_filters_of_an_evaluation_do_not_learn() -> None:
    with LocalSampler(POLICIES, Comings, seed=5, observation_filter={"red": RunningNorm()}) as sampler:
        sampler.obtain_trajectories(3)
        before = repr(sampler.filters)
        evaluate(sampler=sampler, num_trajectories=5, return_of="red")
        assert repr(sampler.filters) == before


class AtTimes(Comings):
    """`blue_1` plays in some trajectories only."""

    def begin(self, seed: Any) -> None:
        super().begin(seed)
        if seed % 2:
            self.agents.remove("blue_1")


def test_who_took_no_part_adds_nothing() -> None:
    options: Any = {"num_trajectories": 8, "check": None, **HOW}
    episodes = sampled(env=AtTimes, n=8, seed=5, check=None).episodes
    assert not episodes.took_part["blue_1"].all()
    team = evaluate(POLICIES, AtTimes, return_of=["blue_1", "red_1"], **options)
    assert team.returns.tolist() == episodes.return_of(["blue_1", "red_1"]).tolist()
    with pytest.raises(DataError, match=r"none of blue_1 took part in trajectory \d"):
        evaluate(POLICIES, AtTimes, return_of="blue_1", **options)
    with pytest.raises(UsageError, match=r"return_of names 'blu'.*the policies, blue, red"):
        evaluate(POLICIES, AtTimes, return_of=["red_1", "blu"], **options)


# --- The command


def make(observation_space: Any, action_space: Any) -> Chooser:
    assert (observation_space.shape, action_space.n) == ((3,), 4)
    return Chooser(2)


HERE, ZOO = "tests.several.test_evaluating", "tests.scripted.zoo"
QUIETLY = ("--workers", "0", "--quiet")


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(cli, [str(each) for each in arguments], prog_name="streamsampler")


def run(*arguments: Any) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.parametrize(
    ("env", "game"),
    [((f"{ZOO}:parallel_env",), Comings), ((f"{ZOO}:env",), Turns), ((f"{ZOO}:parallel_env", "--aec"), Turns)],
)
def test_sample_with_policies(tmp_path: Path, env: Any, game: Any) -> None:
    out = tmp_path / "x.npz"
    arguments = ("--agent", "red=random", "--agent", f"blue={HERE}:make", "--num-trajectories", 3, "--seed", 1)
    text = run("sample", *env, *arguments, "--out", out, *QUIETLY)
    batch = sampled({"red": "random", "blue": Chooser(2)}, game)
    assert streamsampler.load(out) == batch
    assert "agent         red=random, blue=" in text
    assert f"red           {len(batch['red'])} trajectories" in text
    shown = run("info", out)
    assert f"red            {len(batch['red'])} trajectories, {batch['red'].n_timesteps} timesteps, return " in shown
    assert "observations" not in shown
    facts = json.loads(run("info", out, "--json"))
    assert facts["of_policies"]["blue"]["timesteps"] == batch["blue"].n_timesteps
    facts = json.loads(run("sample", *env, *arguments, "--json", *QUIETLY))
    assert facts["of_policies"]["blue"]["timesteps"] == batch["blue"].n_timesteps
    assert facts["policies"] == {"red": "random", "blue": f"{HERE}:make"}


def test_evaluate_with_policies() -> None:
    arguments = ("--agent", "x=random", "--agent", f"y={HERE}:make", "--num-trajectories", 8, "--seed", 5)
    given = dict(zip(IDS, "xyyx", strict=True))
    who = [item for agent, name in given.items() for item in ("--policy-of", f"{agent}={name}")]
    text = run("evaluate", f"{ZOO}:parallel_env", *arguments, *who, "--return-of", "red_1", "--workers", 0, "--json")
    batch = sampled({"x": "random", "y": Chooser(2)}, n=8, seed=5, policy_of=given)
    assert json.loads(text)["returns"] == batch.episodes.returns["red_1"].tolist()


SAMPLE = ("sample", f"{ZOO}:parallel_env", "--num-samples", "10", "--workers", "0")
NUMBER = ("--num-trajectories", "10")
ONE_AGENT = (*NUMBER, "--workers", "0", "--agent", "red=random")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*SAMPLE, "--agent", "red=random", "--agent", "random"], "'random' has no policy's name"),
        ([*SAMPLE, "--agent", "red=random", "--agent", "red=random"], "'red' is given twice"),
        ([*SAMPLE, "--agent", "red=random", "--agent", "green=random"], "no policy plays agent 'blue_0'"),
        ([*SAMPLE, "--agent", "red=randm"], "unknown agent 'randm'"),
        ([*SAMPLE, *("--agent", "red=random", "--agent", "blue=random", "--agent", "x=random")], "plays no agent"),
        ([*SAMPLE, "--policy-of", "red_0"], "'red_0' is not of the form AGENT=POLICY"),
        ([*SAMPLE, "--policy-of", "red_0=x"], "--policy-of names the policy 'x'"),
        (["sample", "CartPole-v1", *ONE_AGENT], "but this environment has a single agent"),
        (["sample", "CartPole-v1", "--aec", "--num-samples", "1"], "no module of PettingZoo"),
        (["sample", f"{ZOO}:nothing", *ONE_AGENT], "unknown environment"),
        (["sample", "tests.several:parallel_env", *ONE_AGENT], "has no function parallel_env"),
        (["sample", "tests.nowhere:parallel_env", *ONE_AGENT], "there is no such module"),
        (["sample", "pettingzoo.butterfly.no_such_v0", *ONE_AGENT], "pettingzoo"),
        (["compare", f"{ZOO}:env", *("--agent", "random") * 2, *NUMBER], "in environments of a single agent"),
    ],
)  # fmt: skip
def test_what_the_command_refuses(arguments: list[Any], words: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code in (1, 2)
    assert words in " ".join(result.stderr.split())


def test_pettingzoo_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs PettingZoo: pip install pettingzoo.*Or wrap it in a gymnasium\.Env"):
        LocalSampler("random", "pettingzoo.butterfly.pistonball_v6")
