"""The commands that examine agents and environments: `evaluate`, `compare`, `merge`, `check` and `bench`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from streamsampler import evaluate
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.replay import VideoError, Videos
from tests.cli.harness import invoke, run, told
from tests.evaluation.envs import Better

EVALUATE = ("evaluate", "CartPole-v1", "--seed", 1, "--workers", 0)
SCRIPTED = ("scripted:Scripted-v0", "--seed", 5)
TWO = ("--agent", "random", "--agent", "scripted:always_two")


def found_by(*arguments: object) -> Evaluation:
    result = invoke(*EVALUATE, *arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return Evaluation.from_json(result.stdout)


def test_the_command_finds_what_the_library_finds(tmp_path: Path) -> None:
    kwargs = ("--env-kwarg", "sutton_barto_reward=true")
    result = invoke(*EVALUATE, *kwargs, "--num-trajectories", 20, "--out", tmp_path / "found.json")
    assert (result.exit_code, "20 trajectories" in result.stderr) == (0, True), result.stderr
    library = evaluate(
        "random", "CartPole-v1", num_trajectories=20, seed=1, n_workers=0, env_kwargs={"sutton_barto_reward": True}
    )
    assert (tmp_path / "found.json").read_text() == library.to_json()
    assert result.stdout == f"{library}\nwritten to: {tmp_path / 'found.json'}\n"


def test_options_reach_the_library(tmp_path: Path) -> None:
    scenarios = [{"name": "left", "seed": 3, "options": {"low": -0.2, "high": -0.1}}, {"name": "right", "seed": 4}]
    (tmp_path / "some.json").write_text(json.dumps(scenarios))
    common: dict[str, Any] = {"agent": "random", "env": "CartPole-v1", "seed": 1, "n_workers": 0}
    assert found_by("--scenarios", tmp_path / "some.json") == evaluate(scenarios=scenarios, **common)
    until = ("--until-halfwidth", 3, "--seeds", "0-199", "--min-trajectories", 40)
    assert found_by(*until) == evaluate(seeds=range(200), until_halfwidth=3, min_trajectories=40, **common)
    found = found_by("--until-halfwidth", 100, "--guarantee", "--bounds", 0, 500)
    assert (found.guaranteed, found.bounds) == ("return", (0.0, 500.0))


predicting = Better()


def test_an_object_with_predict_is_deterministic_unless_it_is_not_to_be() -> None:
    for option, action in (((), 1), (("--deterministic",), 1), (("--stochastic",), 0)):
        found = found_by("--agent", f"{__name__}:predicting", "--num-trajectories", 10, *option)
        assert found.agent["deterministic"] is bool(action)
        library = evaluate(lambda _, action=action: action, "CartPole-v1", num_trajectories=10, seed=1, n_workers=0)
        assert found.returns.tolist() == library.returns.tolist()


@pytest.mark.parametrize("error", [VideoError, EvaluationInterruptedError])
def test_the_numbers_are_printed_although_a_video_fails(
    error: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def film(*_: Any) -> None:
        raise OSError(28, "no space left") if error is VideoError else KeyboardInterrupt

    monkeypatch.setattr(Videos, "asked", lambda *_: Videos(tmp_path, ("best",)))
    monkeypatch.setattr(Videos, "check", lambda *_: None)
    monkeypatch.setattr(Videos, "film", film)
    result = invoke(*EVALUATE, "--num-trajectories", 5, "--out", tmp_path / "e.json", "--video", tmp_path)
    assert "mean return" in result.stdout
    assert len(Evaluation.load(tmp_path / "e.json")) == 5
    if error is VideoError:
        assert (result.exit_code, "no space left" in result.stderr) == (1, True)


def test_the_json_of_a_comparison_is_what_its_file_gets(at_home: Path) -> None:
    result = invoke("compare", *SCRIPTED, *TWO, "--seeds", "3,10-30", "--out", "both", "--json", "--workers", 0)
    assert result.exit_code == 0, result.stderr
    assert "44 trajectories" in result.stderr
    assert result.stdout == (at_home / "both.json").read_text()
    comparison = Comparison.load("both.json")
    assert comparison.names == ("random", "scripted:always_two")
    assert comparison["random"].seeds == (3, *range(10, 31))

    until = ("--until-decided", 0.05, "--bounds", 0, 20, "--workers", 0, "--out", "found")
    result = invoke("compare", *SCRIPTED, *TWO, *until)
    assert "decided: scripted:always_two is better (betting on the differences)" in result.stdout
    found = Comparison.load("found.json")
    assert (found.until_decided, found.bounds, found.pairs[0].verdict) == (0.05, (0.0, 20.0), "second")


@pytest.mark.extras
def test_models_with_and_without_statistics_are_compared(tmp_path: Path) -> None:
    import stable_baselines3
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    normalized = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    model = stable_baselines3.PPO("MlpPolicy", normalized, n_steps=64, device="cpu", seed=1).learn(64)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        model.save(tmp_path / name / "model.zip")
        normalized.save(str(tmp_path / name / "vecnormalize.pkl"))
    agents = [argument for name in ("old", "new") for argument in ("--agent", tmp_path / name / "model.zip")]
    statistics = ("--vec-normalize", tmp_path / "old" / "vecnormalize.pkl", "--vec-normalize", "none")
    result = invoke("compare", *EVALUATE[1:], *agents, *statistics, "--num-trajectories", 12, "--json")
    assert result.exit_code == 0, result.stderr
    for found, vec_normalize in zip(
        Comparison.from_json(result.stdout).evaluations, (statistics[1], False), strict=True
    ):
        library = evaluate(
            tmp_path / "old" / "model.zip", "CartPole-v1", num_trajectories=12, seed=1, n_workers=0,
            vec_normalize=vec_normalize,
        )  # fmt: skip
        assert (found.returns.tolist(), found.agent) == (library.returns.tolist(), library.agent)


@pytest.mark.parametrize(
    ("command", "amount", "printed"),
    [
        (EVALUATE, ("--num-trajectories", 23), "RandomAgent in CartPole-v1: 23 trajectories\n"),
        (EVALUATE[:2], ("--seeds", "0-22", "--workers", 0), "RandomAgent in CartPole-v1: 23 trajectories\n"),
        (("compare", *EVALUATE[1:], *["--agent", "random"] * 2), ("--num-trajectories", 23), "random, random #2 in"),
    ],
)
def test_parts_are_merged_to_what_one_run_writes(
    tmp_path: Path, command: tuple[object, ...], amount: tuple[object, ...], printed: str
) -> None:
    whole, *parts = [tmp_path / f"{name}.json" for name in ("whole", 2, 3, 1)]
    assert invoke(*command, *amount, "--out", whole).exit_code == 0
    for part in parts:
        assert invoke(*command, *amount, "--out", part, "--part", f"{part.stem}/3").exit_code == 0
    result = invoke("merge", *parts, "--out", tmp_path / "merged")
    assert result.exit_code == 0, result.stderr
    merged = tmp_path / "merged.json"
    assert merged.read_bytes() == whole.read_bytes()
    assert result.stdout.startswith(printed)
    assert str(merged) in result.stdout
    assert result.stderr == "3 parts merged\n"
    again = invoke("merge", *parts, "--out", tmp_path / "again.json", "--json", "--quiet")
    assert (json.loads(again.stdout), again.stderr) == (json.loads(merged.read_text()), "")
    assert "Error: part 2 of 3 is missing" in told(invoke("merge", *parts[1:], "--out", tmp_path / "other"))


def test_a_check_that_finds_something_has_exit_code_1(at_home: Path) -> None:
    given = ("check", "Scripted-v0", "--import", "scripted", "--time-limit", 1000, "--step-timeout", 1000)
    ended = invoke(*given, "--env-kwarg", "fail_at=3", "--json")
    assert ended.exit_code == 1
    assert all(line.startswith("checking: ") for line in ended.stderr.splitlines()), ended.stderr
    facts = json.loads(ended.stdout)
    (failure,) = [each for each in facts["findings"] if each["verdict"] == "failure"]
    assert (facts["ok"], failure["name"]) == (False, "runs")
    assert "RuntimeError: the robot stumbled" in failure["what"]


@pytest.mark.slow
def test_ways_are_measured(home: Path) -> None:
    short = ("--import", "scripted", "--seconds", 0.1, "--workers", 1, "--vec", 1)
    ended = run("bench", "Scripted-v0", *short, "--env-kwarg", "chatty=true", "--json", "--quiet", cwd=home)
    assert ended.returncode == 0
    facts = json.loads(ended.stdout)
    assert facts["environment"] == "Scripted-v0"
    assert facts["ways"][0]["call"] == "LocalSampler(agent, 'Scripted-v0', env_kwargs={'chatty': True})"
    assert facts["recommendation"]["name"] in [way["name"] for way in facts["ways"] if way["rates"]]
    ended = run("bench", "CartPole-v1", "--agent", "scripted:always_two", *short, cwd=home)
    assert (ended.returncode, "recommended" in ended.stdout) == (1, False)
    assert "the agent's action 2 is outside Discrete(2)" in " ".join(ended.stdout.split())
