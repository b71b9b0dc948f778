"""The commands `evaluate` and `compare`."""

from __future__ import annotations

import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import evaluate
from streamsampler.cli.compare import short_names
from streamsampler.engines.processes import links
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from tests.cli.harness import Announcements, Terminal, finish, invoke, run, start

CARTPOLE = ("CartPole-v1", "--seed", 1)
SCRIPTED = ("scripted:Scripted-v0", "--seed", 5)
TWO = ("--agent", "random", "--agent", "scripted:always_two")


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: Any) -> None:
        pytest.fail("a worker was started")

    monkeypatch.setattr(links, "launch", launch)


@pytest.mark.slow
def test_the_command_finds_what_the_library_finds(tmp_path: Path) -> None:
    """Byte by byte, for any number of workers."""
    for workers in (0, 1, 3):
        out = tmp_path / f"{workers}.json"
        arguments = ("--num-trajectories", 20, "--env-kwarg", "sutton_barto_reward=true", "--workers", workers)
        result = run("evaluate", *CARTPOLE, *arguments, "--out", out, cwd=tmp_path)
        assert (result.returncode, "20 trajectories" in result.stderr) == (0, True), result.stderr
        assert f"written to: {out}" in result.stdout
    kwargs = {"sutton_barto_reward": True}
    found = evaluate("random", "CartPole-v1", num_trajectories=20, seed=1, n_workers=0, env_kwargs=kwargs)
    # This process may have loaded libraries that the command has not.
    found = replace(found, versions=Evaluation.load(tmp_path / "0.json").versions)
    files = [(tmp_path / f"{workers}.json").read_text() for workers in (0, 1, 3)]
    assert files == [found.to_json()] * 3
    assert result.stdout.startswith(str(found))


@pytest.mark.slow
def test_an_evaluation_on_a_terminal_shows_the_interval_as_it_narrows(home: Path) -> None:
    # So narrow that it takes seconds, on a machine that is in no hurry: the bar is drawn ten times a second.
    arguments = ("--until-halfwidth", 0.03, "--max-trajectories", 600_000, "--workers", 2)
    terminal = Terminal("evaluate", *SCRIPTED, *arguments, cwd=home, columns=100)
    halfwidth = re.compile(r"return [\d.]+ ± ([\d.]+), to ± 0\.03")
    terminal.read_until(lambda text: len(set(halfwidth.findall(text))) >= 3)
    assert terminal.finish() == 0
    shown = [float(match) for match in halfwidth.findall(terminal.text)]
    assert shown[-1] < shown[0]
    assert re.search(r"mean return +[\d.]+ +95 % \[", terminal.text)
    assert "is at most 0.03" in terminal.text


def test_redirected_json_is_what_the_file_gets(home: Path) -> None:
    result = run("compare", *SCRIPTED, *TWO, "--seeds", "3,10-30", "--out", "both", "--json", "--workers", 1, cwd=home)
    assert result.returncode == 0, result.stderr
    assert "44 trajectories" in result.stderr
    assert result.stdout == (home / "both.json").read_text()
    comparison = Comparison.load(home / "both.json")
    assert comparison.names == ("random", "scripted:always_two")
    assert comparison["random"].seeds == (3, *range(10, 31))


@pytest.mark.slow
def test_a_comparison_on_a_terminal_stops_when_it_is_decided(home: Path) -> None:
    terminal = Terminal(
        "compare",
        *SCRIPTED,
        *TWO,
        "--until-decided",
        0.05,
        "--bounds",
        0,
        20,
        "--workers",
        0,
        "--out",
        "found",
        cwd=home,
    )
    assert terminal.finish() == 0
    assert "decided: scripted:always_two is better (betting on the differences)" in terminal.text
    found = Comparison.load(home / "found.json")
    assert (found.until_decided, found.bounds, found.pairs[0].verdict) == (0.05, (0.0, 20.0), "second")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_evaluation_keeps_what_is_finished(
    home: Path, announcements: Announcements, how: signal.Signals
) -> None:
    # So many that they are in several tickets: the command must have taken some before the worker gets there.
    endless = ("--env-kwarg", "endless_from=20000", "--env-kwarg", f"announce={announcements.path}")
    arguments = ("--num-trajectories", 40_000, "--workers", 1, "--out", "kept.json")
    process = start("evaluate", *SCRIPTED, *arguments, *endless, cwd=home)
    announcements.wait()
    process.send_signal(how)
    result = finish(process)
    assert result.returncode == 128 + how, result.stderr
    assert "Traceback" not in result.stderr
    kept = Evaluation.load(home / "kept.json")
    assert 1 <= len(kept) < 20_000
    assert kept.stopped == "interrupted"
    assert f"Interrupted: what follows is of {len(kept):,} trajector" in result.stderr
    assert "stopped: interrupted" in result.stdout

    again = run("evaluate", *SCRIPTED, "--num-trajectories", len(kept), "--workers", 0, "--json", cwd=home)
    assert Evaluation.from_json(again.stdout).returns.tolist() == kept.returns.tolist()


STOPPING = """

class Stopping:
    trajectories = 0

    def reset(self, seed=None):
        self.trajectories += not is_checking()

    def get_action(self, observation):
        if self.trajectories == 20_000:
            with open("announcements", "w") as fifo:
                fifo.write("here")
            import threading
            threading.Event().wait()
        return 1, {}


stopping = Stopping()
"""


@pytest.mark.slow
def test_a_comparison_interrupted_in_its_second_agent_keeps_the_pairs(home: Path, announcements: Announcements) -> None:
    """The end of the first agent's trajectories does not shield what follows from Ctrl-C."""
    with (home / "scripted.py").open("a") as file:
        file.write(STOPPING)
    agents = ("--agent", "scripted:always_two", "--agent", "scripted:stopping")
    arguments = ("--num-trajectories", 20_500, "--workers", 1, "--out", "kept.json")
    process = start("compare", *SCRIPTED, *agents, *arguments, cwd=home)
    announcements.wait()
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.returncode == 130, result.stderr
    kept = Comparison.load(home / "kept.json")
    assert len(kept["scripted:always_two"]) == 20_500
    assert 1 <= len(kept["scripted:stopping"]) < 20_000
    assert kept.stopped == "interrupted"


def test_an_interrupt_before_anything_is_finished(home: Path, announcements: Announcements) -> None:
    endless = ("--env-kwarg", "endless_from=1", "--env-kwarg", f"announce={announcements.path}")
    process = start("evaluate", *SCRIPTED, "--num-trajectories", 4, "--workers", 1, *endless, "--json", cwd=home)
    announcements.wait()
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert (result.returncode, result.stdout) == (130, "")
    assert result.stderr.endswith("Interrupted: nothing was kept.\n")


def test_scenarios_are_read_from_a_file(tmp_path: Path) -> None:
    scenarios = [{"name": "left", "seed": 3, "options": {"low": -0.2, "high": -0.1}}, {"name": "right", "seed": 4}]
    (tmp_path / "some.json").write_text(json.dumps(scenarios))
    result = invoke("evaluate", *CARTPOLE, "--scenarios", tmp_path / "some.json", "--workers", 0, "--json")
    assert result.exit_code == 0, result.stderr
    found = Evaluation.from_json(result.stdout)
    assert (found.names, found.seeds) == (("left", "right"), (3, 4))
    library = evaluate("random", "CartPole-v1", scenarios=scenarios, seed=1, n_workers=0)
    assert found == library


def test_seeds_may_be_gone_through_until_a_precision() -> None:
    arguments = ("--until-halfwidth", 3, "--seeds", "0-199", "--min-trajectories", 40, "--workers", 0, "--json")
    result = invoke("evaluate", *CARTPOLE, *arguments)
    assert result.exit_code == 0, result.stderr
    library = evaluate(
        "random", "CartPole-v1", seeds=range(200), until_halfwidth=3, min_trajectories=40, seed=1, n_workers=0
    )
    assert result.stdout == library.to_json()


def test_a_guarantee_passes_its_bounds() -> None:
    arguments = ("--until-halfwidth", 100, "--guarantee", "--bounds", 0, 500, "--workers", 0, "--json")
    found = Evaluation.from_json(invoke("evaluate", *CARTPOLE, *arguments).stdout)
    assert (found.guaranteed, found.bounds) == ("return", (0.0, 500.0))


class _Predicting:
    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: Any = False
    ) -> Any:
        return np.asarray(1 if deterministic else 0), state


predicting = _Predicting()


@pytest.mark.parametrize(("option", "action"), [((), 1), (("--deterministic",), 1), (("--stochastic",), 0)])
def test_an_object_with_predict_is_deterministic_unless_it_is_not_to_be(option: tuple[str, ...], action: int) -> None:
    agent = f"{__name__}:predicting"
    arguments = ("--agent", agent, "--num-trajectories", 10, "--workers", 0, "--json", *option)
    result = invoke("evaluate", *CARTPOLE, *arguments)
    assert result.exit_code == 0, result.stderr
    found = Evaluation.from_json(result.stdout)
    assert found.agent["deterministic"] is bool(action)
    library = evaluate(lambda _: action, "CartPole-v1", num_trajectories=10, seed=1, n_workers=0)
    assert found.returns.tolist() == library.returns.tolist()


UNTIL = ("--until-halfwidth", 5)
DECIDED = ("--until-decided", 0.05)
RANDOM = ("--agent", "random", "--agent", "random")


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "How much? Give one of --num-trajectories, --seeds, --scenarios and --until-halfwidth."),
        (("--num-trajectories", 5, "--seeds", "1-3"), "--num-trajectories and --seeds exclude each other"),
        (("--seeds", "3,,4"), "'' is neither a seed nor a range of seeds, such as 3,7,10-19"),
        (("--seeds", "9-3"), "'9-3' goes down: a range of seeds is 10-19"),
        (("--seeds", "0-999999999"), "'0-999999999' has 1,000,000,000 seeds, more than 10,000,000"),
        ((*UNTIL, "--bounds", 0, 1), "--bounds are for --guarantee"),
        ((*UNTIL, "--guarantee"), "--guarantee needs --bounds LEAST LARGEST of returns"),
        (("--scenarios", "nowhere.json"), "'nowhere.json' cannot be read: No such file"),
        (("--scenarios", "broken.json"), "'broken.json' is no JSON: Expecting value: line 1 column 2"),
        (("--scenarios", "number.json"), "'number.json' should hold a list such as"),
        (("--num-trajectories", 5, "--out", "found.npz"), "'found.npz': .npz is not written"),
        (("--num-trajectories", 5, "--vec-normalize", "x.pkl"), "--vec-normalize is for a model"),
        (("--num-trajectories", 5, "--order", "arrival"), "No such option"),
    ],
)  # fmt: skip
def test_usage_errors(
    arguments: tuple[object, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in {"broken": "[", "number": "3"}.items():
        (tmp_path / f"{name}.json").write_text(text)
    result = invoke("evaluate", "CartPole-v1", *arguments)
    assert result.exit_code == 2, result.stderr
    assert words in " ".join(result.stderr.split()), result.stderr
    assert (result.stdout, "Traceback" in result.stderr) == ("", False)


@pytest.mark.usefixtures("no_workers")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--num-trajectories", 5), "a comparison needs two agents or more"),
        (("--num-trajectories", 5, "--agent", "random"), "a comparison needs two agents or more"),
        ((*DECIDED, *RANDOM), "--until-decided needs --bounds LEAST LARGEST of returns"),
        (("--num-trajectories", 5, *RANDOM, "--bounds", 0, 1), "--bounds is for --until-decided"),
        (
            ("--num-trajectories", 5, *("--agent", "a.zip") * 3, *("--vec-normalize", "none") * 2),
            "--vec-normalize is given 2 times, and 3 agents are models",
        ),
    ],
)
def test_usage_errors_of_comparisons(arguments: tuple[object, ...], words: str) -> None:
    result = invoke("compare", "CartPole-v1", *arguments)
    assert result.exit_code == 2, result.stderr
    assert words in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("agents", "names"),
    [
        (("random", "my:agent"), ["random", "my:agent"]),
        (("a/model.zip", "b/other.zip"), ["model.zip", "other.zip"]),
        (("a/model.zip", "b/model.zip"), ["a/model.zip", "b/model.zip"]),
        (("random", "random"), ["random", "random #2"]),
    ],
)
def test_names_of_agents(agents: tuple[str, ...], names: list[str]) -> None:
    assert short_names(agents) == names


@pytest.mark.extras
def test_models_with_and_without_statistics(tmp_path: Path) -> None:
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
    result = invoke("compare", *CARTPOLE, *agents, *statistics, "--num-trajectories", 12, "--workers", 0, "--json")
    assert result.exit_code == 0, result.stderr
    found = Comparison.from_json(result.stdout)
    for evaluation, vec_normalize in zip(found.evaluations, (statistics[1], False), strict=True):
        library = evaluate(
            tmp_path / "old" / "model.zip", "CartPole-v1", num_trajectories=12, seed=1, n_workers=0,
            vec_normalize=vec_normalize,
        )  # fmt: skip
        assert evaluation.returns.tolist() == library.returns.tolist()
        assert evaluation.agent == library.agent
