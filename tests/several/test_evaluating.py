"""Evaluate and compare policies of several agents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import streamsampler
from streamsampler import compare, evaluate
from streamsampler.cli.app import cli
from streamsampler.errors import DataError, UsageError
from streamsampler.evaluation.evaluation import Evaluation
from tests.scripted.games import IDS, Chooser, Comings, Turns

LocalSampler: Any = streamsampler.LocalSampler
POLICIES = {"red": Chooser(0), "blue": Chooser(1)}


def batch_of(n: int, agents: Any = POLICIES, game: Any = Comings, **options: Any) -> Any:
    with LocalSampler(agents, game, seed=5, **options) as sampler:
        return sampler.obtain_trajectories(n)


@pytest.mark.parametrize("game", [Comings, Turns])
@pytest.mark.parametrize(
    ("return_of", "team"),
    [
        ("red_1", ["red_1"]),
        (["red_1", "blue_1"], ["red_1", "blue_1"]),
        ("blue", None),
        ("all", None),
        (("red_0", "red"), None),
    ],
)
def test_returns_are_those_of_an_agent_a_team_or_a_policy(return_of: Any, team: Any, game: Any) -> None:
    found = evaluate(POLICIES, game, num_trajectories=12, seed=5, n_workers=0, return_of=return_of)
    batch = batch_of(12, game=game)
    if team is None:
        team = {"blue": ["blue_0", "blue_1"], "all": list(IDS)}.get(str(return_of), ["red_0", "red_1"])
    team = [agent for agent in team if agent in batch.episodes.agent_ids]
    assert found.returns.tolist() == batch.episodes.return_of(team).tolist()
    assert found.lengths.tolist() == batch.episodes.lengths.tolist()
    assert found.settings["return_of"] == ([return_of] if isinstance(return_of, str) else list(return_of))
    assert "return of " in str(found)


def test_it_must_be_said_whose_return_counts() -> None:
    with pytest.raises(UsageError, match=r"whose return counts.*red_0, red_1, blue_0, blue_1.*return_of="):
        evaluate(POLICIES, Comings, num_trajectories=3, n_workers=0)
    for return_of, words in (("green", "return_of names 'green'"), (3, "return_of is a name"), ([], "return_of is")):
        with pytest.raises(UsageError, match=words):
            evaluate(POLICIES, Comings, num_trajectories=3, n_workers=0, return_of=return_of)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="return_of is for environments of several agents"):
        evaluate("random", "CartPole-v1", num_trajectories=3, n_workers=0, return_of="red_0")


def test_an_evaluation_is_saved_with_it(tmp_path: Path) -> None:
    found = evaluate(POLICIES, Comings, num_trajectories=12, seed=5, n_workers=0, return_of=["red", "blue_1"])
    found.save(tmp_path / "x.json")
    again = Evaluation.load(tmp_path / "x.json")
    assert again == found
    assert again.agent["name"].startswith("red=")


def test_evaluations_in_parts(tmp_path: Path) -> None:
    def run(**options: Any) -> Any:
        return evaluate(POLICIES, Comings, num_trajectories=10, seed=5, n_workers=0, return_of="red", **options)

    for part in (1, 2):
        run(part=(part, 2)).save(tmp_path / f"{part}.json")
    streamsampler.merge([tmp_path / "1.json", tmp_path / "2.json"], tmp_path / "all.json")
    assert Evaluation.load(tmp_path / "all.json") == run()


def test_policies_swapped_among_agents_on_the_same_seeds() -> None:
    bold, shy = Chooser(3), Chooser(0)
    agents = {"bold is red": {"red": bold, "blue": shy}, "bold is blue": {"red": shy, "blue": bold}}
    found = compare(agents, Comings, num_trajectories=15, seed=5, n_workers=0, return_of=["red_0", "red_1"])
    first, second = found.evaluations
    assert first.seeds == second.seeds
    for evaluation, given in zip(found.evaluations, agents.values(), strict=True):
        batch = batch_of(15, given)
        assert evaluation.returns.tolist() == batch.episodes.return_of(["red_0", "red_1"]).tolist()
    assert "bold is red" in str(found)
    decided = compare(
        agents, Comings, until_decided=0.05, bounds=(0, 60), seed=5, n_workers=0, return_of="red", max_trajectories=200
    )
    assert decided.evaluations[0].settings["return_of"] == ["red"]


def test_a_policy_that_changes_places_is_followed() -> None:
    def policy_of(agent: str, index: int) -> str:
        return "new" if (agent == "red_1") == (index % 2 == 0) and agent in ("red_1", "blue_1") else "old"

    agents = {"new": Chooser(3), "old": Chooser(0)}
    found = evaluate(agents, Comings, num_trajectories=6, seed=5, n_workers=0, return_of="new", policy_of=policy_of)
    returns = batch_of(6, agents, policy_of=policy_of).episodes.returns
    expected = [returns[("red_1", "blue_1")[index % 2]][index] for index in range(6)]
    assert found.returns.tolist() == expected


def test_successes_are_those_of_the_team() -> None:
    class Won(Comings):
        def step(self, actions: Any) -> Any:
            *parts, infos = super().step(actions)
            won = {"red_1": self.total % 2 == 0, "blue_1": self.total % 2 == 1}
            last = self.t == 7
            return (
                *parts,
                {agent: {**info, "success": won.get(agent, False)} if last else info for agent, info in infos.items()},
            )

    rates = [
        evaluate(POLICIES, Won, num_trajectories=20, seed=5, n_workers=0, return_of=return_of).success_rate
        for return_of in ("red_1", "blue_1", "all")
    ]
    assert rates[0] is not None
    assert rates[1] is not None
    assert 0 < rates[0] < 1
    assert rates[0] + rates[1] == pytest.approx(1)
    assert rates[2] == 1


def test_filters_of_an_evaluation_do_not_learn() -> None:
    from streamsampler.filters import RunningNorm

    with LocalSampler(POLICIES, Comings, seed=5, observation_filter={"red": RunningNorm()}) as sampler:
        sampler.obtain_trajectories(3)
        before = repr(sampler.filters)
        evaluate(sampler=sampler, num_trajectories=5, return_of="red")
        assert repr(sampler.filters) == before


# --- The command


def parallel_env() -> Comings:
    return Comings()


def env() -> Turns:
    return Turns()


def make(observation_space: Any, action_space: Any) -> Chooser:
    assert observation_space.shape == (3,)
    assert action_space.n == 4
    return Chooser(2)


HERE = "tests.several.test_evaluating"


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, [*arguments], prog_name="streamsampler")


def run(*arguments: str) -> Result:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize("form", ["parallel_env", "env"])
def test_sample_with_policies(tmp_path: Path, form: str) -> None:
    out = tmp_path / "x.npz"
    arguments = ("--agent", "red=random", "--agent", f"blue={HERE}:make", "--num-trajectories", "3", "--seed", "1")
    how = ("--workers", "0", "--quiet")
    text = run(
        "sample", f"{HERE}:parallel_env", *(["--aec"] if form == "env" else []), *arguments, "--out", str(out), *how
    ).stdout
    assert "agent         red=random, blue=" in text
    batch: Any = streamsampler.load(out)
    with LocalSampler(
        {"red": "random", "blue": Chooser(2)}, {"parallel_env": Comings, "env": Turns}[form], seed=1
    ) as sampler:
        assert batch == sampler.obtain_trajectories(3)
    assert f"red           {len(batch['red'])} trajectories" in text
    shown = run("info", str(out)).stdout
    assert f"red            {len(batch['red'])} trajectories, {batch['red'].n_timesteps} timesteps, return " in shown
    assert "observations" not in shown
    facts = json.loads(run("info", str(out), "--json").stdout)
    assert facts["of_policies"]["blue"]["timesteps"] == batch["blue"].n_timesteps
    facts = json.loads(run("sample", f"{HERE}:{form}", *arguments, "--json", *how).stdout)
    assert facts["of_policies"]["blue"]["timesteps"] == batch["blue"].n_timesteps
    assert facts["policies"] == {"red": "random", "blue": f"{HERE}:make"}


def test_sample_into_a_folder(tmp_path: Path) -> None:
    arguments = ("--num-trajectories", "9", "--seed", "1", "--workers", "0", "--quiet", "--shard-size", "20")
    run("sample", f"{HERE}:env", *arguments, "--out", str(tmp_path / "x"))
    folder: Any = streamsampler.load(tmp_path / "x")
    shared = folder.to_batch()["shared"]
    shown = run("info", str(tmp_path / "x")).stdout
    assert f"shared         {len(shared)} trajectories, {shared.n_timesteps} timesteps" in shown


def test_evaluate_with_policies() -> None:
    arguments = ("--agent", "x=random", "--agent", f"y={HERE}:make", "--num-trajectories", "8", "--seed", "5")
    who = [item for agent, name in zip(IDS, "xyyx", strict=True) for item in ("--policy-of", f"{agent}={name}")]
    text = run(
        "evaluate", f"{HERE}:parallel_env", *arguments, *who, "--return-of", "red_1", "--workers", "0", "--json"
    ).stdout
    found = json.loads(text)
    given = dict(zip(IDS, "xyyx", strict=True))
    batch = batch_of(8, {"x": "random", "y": Chooser(2)}, policy_of=given)
    assert found["returns"] == batch.episodes.returns["red_1"].tolist()
    assert np.isfinite(found["returns"]).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--agent", "random", "--agent", "random"], "'random' has no name"),
        (["--agent", "red=random", "--agent", "red=random"], "'red' is given twice"),
        (["--agent", "red=random", "--agent", "random"], "'random' has no name"),
        (["--agent", "red=random", "--agent", "green=random"], "no policy plays agent 'blue_0'"),
        (["--agent", "red=random", "--agent", "blue=random", "--agent", "x=random"], "no agent is played by it"),
        (["--policy-of", "red_0"], "'red_0' is not of the form AGENT=POLICY"),
        (["--policy-of", "red_0=x"], "--policy-of names the policy 'x'"),
        (["--agent", "red=randm"], "unknown agent 'randm'"),
        (["--vec", "2"], "of several agents"),
    ],
)
def test_wrong_policies(arguments: list[str], words: str) -> None:
    result = invoke("sample", f"{HERE}:parallel_env", "-n", "10", "--workers", "0", *arguments)
    assert result.exit_code in (1, 2)
    assert words in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("CartPole-v1", "environments of several agents, and this one has one"),
        (f"{HERE}:nothing", "unknown environment"),
        ("tests.several:parallel_env", "has no function parallel_env"),
        ("tests.nowhere:parallel_env", "there is no such module"),
        ("pettingzoo.butterfly.no_such_v0", "pettingzoo"),
    ],
)
def test_wrong_environments(env_id: str, words: str) -> None:
    how = ["-n", "10", "--workers", "0", "--agent", "red=random"]
    result = invoke("sample", env_id, *how)
    assert result.exit_code in (1, 2)
    assert words in " ".join(result.stderr.split())


def test_pettingzoo_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs PettingZoo: pip install pettingzoo.*Or wrap it in a gymnasium\.Env"):
        streamsampler.LocalSampler("random", "pettingzoo.butterfly.pistonball_v6")


def at_times() -> Any:
    """`blue_1` plays in some trajectories only."""

    class AtTimes(Comings):
        def begin(self, seed: Any) -> None:
            super().begin(seed)
            if seed % 2:
                self.agents.remove("blue_1")

    return AtTimes


def test_who_took_no_part_adds_nothing() -> None:
    options: Any = {"num_trajectories": 8, "seed": 5, "check": None}
    batch = batch_of(8, game=at_times(), check=None)
    assert not batch.episodes.took_part["blue_1"].all()
    team = evaluate(POLICIES, at_times(), return_of=["blue_1", "red_1"], **options)
    assert team.returns.tolist() == batch.episodes.return_of(["blue_1", "red_1"]).tolist()
    with pytest.raises(DataError, match=r"none of blue_1 took part in trajectory \d"):
        evaluate(POLICIES, at_times(), return_of="blue_1", **options)
    with pytest.raises(UsageError, match=r"return_of names 'blu'.*the policies, blue, red"):
        evaluate(POLICIES, at_times(), return_of=["red_1", "blu"], **options)
