"""What a user can get wrong: one line that says what to do, before any process is started or any file is written."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streamsampler
from streamsampler.cli.app import cli
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.errors import SerializationError
from streamsampler.formats.export import FORMATS
from tests.cli.conftest import being_at
from tests.cli.harness import SCRIPTED, invoke, told

MODULES = {
    "scripted": SCRIPTED,
    "raising": "def f():\n    return 1 / 0\nf()\n",
    "things_env": """
import gymnasium as gym

class Things(gym.Space):
    def sample(self, mask=None, probability=None):
        return object()
    def contains(self, x):
        return True

class Env(gym.Env):
    observation_space = gym.spaces.Dict(thing=Things())
    action_space = gym.spaces.Discrete(2)

gym.register("Things-v0", Env)
""",
    # PettingZoo's, of which its name alone is needed here.
    "pettingzoo": "class ParallelEnv:\n    pass\nclass AECEnv:\n    pass\n",
    "several": """
import gymnasium, pettingzoo
for kind in ("Parallel", "AEC"):
    Chess = type("Chess", (getattr(pettingzoo, f"{kind}Env"),), {})
    gymnasium.register(f"{kind}-v0", Chess)
""",
}
TEXTS = {
    "thesis.txt": "years of work",
    "text.npz": "words",
    "broken.json": "[",
    "number.json": "3",
    "none.json": "[]",
    "tasks.json": "[1]",
    "model.zip": "",
}


@pytest.fixture(scope="module")
def folder(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the user's modules and files of each kind, and some that are damaged."""
    folder = tmp_path_factory.mktemp("wrong")
    for name, text in {**{f"{name}.py": text for name, text in MODULES.items()}, **TEXTS}.items():
        (folder / name).write_text(text)
    for name in ("file.npz", "evaluation.json"):
        shutil.copy(made / name, folder)
        (folder / f"cut{Path(name).suffix}").write_bytes((made / name).read_bytes()[:900])
    shutil.copy(made / "comparison.json", folder)
    batch: Any = streamsampler.load(made / "file.npz")
    batch[:2].save(folder / "other", provenance={"environment": "CartPole-v1", "agent": "mine:it"})
    batch[:2].save(folder / "module", provenance={"environment": "this:It-v0", "agent": "random"})
    (folder / "folder").symlink_to(made / "folder")
    for name in ("empty", "archive.npz"):
        (folder / name).mkdir()
    return folder


@pytest.fixture
def there(folder: Path, monkeypatch: pytest.MonkeyPatch, no_workers: None) -> Iterator[None]:
    """Be in that directory, and let nothing be written there."""
    monkeypatch.delitem(sys.modules, "pettingzoo", raising=False)
    before = set(os.listdir(folder))
    with being_at(folder):
        yield
    assert set(os.listdir(folder)) - {"__pycache__"} == before - {"__pycache__"}, "a file was written"


SAMPLE = "sample CartPole-v1 --num-samples 5"
EVALUATE = "evaluate CartPole-v1"
COMPARE = "compare CartPole-v1 --agent random --agent random"
PART = "evaluate CartPole-v1 --num-trajectories 23 --seed 3 --part"
REPLAY = "replay file --index 0"

USAGE = [
    # How much.
    ("sample CartPole-v1", "Give one of --num-samples, --num-trajectories and --trajectories-per-worker"),
    (f"{SAMPLE} --num-trajectories 5", "--num-samples and --num-trajectories exclude each other"),
    ("sample CartPole-v1 --num-samples many", "'many' is not a whole number, such as 5000, 5_000, 5e3 or 5k"),
    ("sample CartPole-v1 --num-samples 1e400", "'1e400' is too large"),
    ("sample CartPole-v1 --num-samples -5k", "-5000 is not in the range"),
    (
        "sample CartPole-v1 --num-samples 1,5k",
        "'1,5k' is not a whole number, such as 5000, 5_000, 5e3 or 5k; a decimal point",
    ),
    (EVALUATE, "How much? Give one of --num-trajectories, --seeds, --scenarios and --until-halfwidth."),
    (f"{EVALUATE} --seeds 3,,4", "'' is neither a seed nor a range of seeds, such as 3,7,10-19"),
    (f"{EVALUATE} --seeds 9-3", "'9-3' goes down: a range of seeds is 10-19"),
    (f"{EVALUATE} --seeds 0-999999999", "'0-999999999' has 1,000,000,000 seeds, more than 10,000,000"),
    (f"{EVALUATE} --scenarios nowhere.json", "'nowhere.json' cannot be read: No such file"),
    (f"{EVALUATE} --scenarios broken.json", "'broken.json' is no JSON: Expecting value: line 1 column 2"),
    (f"{EVALUATE} --scenarios number.json", "'number.json' should have a list such as"),
    (f"{SAMPLE} --tasks none.json", "'none.json' holds no task"),
    ("sample CartPole-v1 --trajectories-per-worker 2 --tasks tasks.json", "--tasks needs --num-trajectories"),
    (f"{SAMPLE} --tasks tasks.json --out x --shard-size 5", "and no --shard-size"),
    ("sample CartPole-v1 --episodes 3", "--num-trajectories"),
    ("bench CartPole-v1 --timesteps 3", "No such option"),
    # How.
    (f"{SAMPLE} --workers two", "'two' is not a valid whole number."),
    (f"{SAMPLE} --step-timeout soon", "'soon' is not a valid number."),
    (f"{SAMPLE} --ray-address h:1", "--ray-address needs --engine ray"),
    (f"{SAMPLE} --engine ray --start-method fork", "--engine ray takes no --start-method"),
    (f"{SAMPLE} --engine ray --workers 0", "--engine needs worker processes: give --workers 1 or more"),
    (f"{SAMPLE} --step-timeout nan", "--step-timeout must be a number of seconds above 0, got nan"),
    (f"{SAMPLE} --max-restarts -1", "'--max-restarts': '-1' is neither an integer of at least 0 nor 'none'"),
    (f"{SAMPLE} --max-worker-memory 2X", "'2X' is no amount of memory with a unit, such as 500MB"),
    (f"{SAMPLE} --max-worker-memory 5", "'5' is no amount of memory with a unit"),
    (f"{SAMPLE} --engine queues --max-worker-memory 2GB", "--engine queues takes no --max-worker-memory"),
    # Which environment and agent.
    (f"{SAMPLE} --env-kwarg size", "'size' is not of the form key=value"),
    (f"{SAMPLE} --env-kwarg 'a b=1'", "'a b' is no Python name"),
    (f"{SAMPLE} --env-kwarg a=1 --env-kwarg a=2", "'a' is given twice"),
    (f"{SAMPLE} --import no_such_module", "no module 'no_such_module'"),
    (f"{SAMPLE} --import envs/my.py", "Give the module's name, not its file's: 'envs.my'"),
    (f"{SAMPLE} --import raising", "--import raising: importing raising raised ZeroDivisionError"),
    ("sample CartPol-v1 --num-samples 5", "Did you mean 'CartPole-v1'"),
    ("sample nowhere:Maze-v0 --num-samples 5", "there is no module 'nowhere'"),
    ("sample Qwertyuiop-v0 --num-samples 5", "use 'package:Qwertyuiop-v0'. Or import it with --import."),
    ("check CartPol-v1", "Did you mean 'CartPole-v1'"),
    ("bench CartPol-v1", "Did you mean 'CartPole-v1'"),
    (f"{SAMPLE} --agent randm", "Did you mean 'random'?"),
    (f"{SAMPLE} --agent nowhere.zip", "unknown agent 'nowhere.zip': no such file"),
    (f"{SAMPLE} --agent policy.pt", "a file of weights is no agent: name a function that makes the agent with them"),
    (f"{SAMPLE} --agent vecnormalize.pkl", "a VecNormalize to --vec-normalize, with --agent model.zip"),
    (f"{SAMPLE} --agent cartpole.npz", "it holds trajectories"),
    (f"{SAMPLE} --agent evaluation.json", "it holds an evaluation"),
    (f"{SAMPLE} --agent model", "Did you mean 'model.zip'?"),
    (f"{SAMPLE} --vec-normalize x.pkl", "--vec-normalize is for a model of Stable-Baselines3"),
    ("check CartPole-v1 --vec-normalize x.pkl", "--vec-normalize is for a model"),
    (
        f"{EVALUATE} --num-trajectories 3 --agent model.zip --vec-normalize x.pkl",
        "--vec-normalize: no such file: 'x.pkl'",
    ),
    (
        f"compare CartPole-v1 --num-trajectories 5 {'--agent model.zip ' * 3}{'--vec-normalize none ' * 2}",
        "--vec-normalize is given 2 times for 3 models",
    ),
    # Into which file.
    (f"{SAMPLE} --out x.csv", ".csv is not supported; trajectories are written to a .npz file"),
    (f"{SAMPLE} --out empty", "is a directory"),
    (f"{SAMPLE} --out archive", "archive.npz' is a directory"),
    (f"{SAMPLE} --out folder", "is a folder of shards: resume it with --shard-size and --resume"),
    (f"{SAMPLE} --out nowhere/x", "no such directory"),
    (f"{SAMPLE} --out {'x' * 250}", "File name too long"),
    (f"{SAMPLE} --shard-size 5", "--shard-size needs --out: give it, too"),
    (f"{SAMPLE} --out -", "'-' is no regular file: give a file's name. Standard output is for the summary only"),
    (f"{SAMPLE} --out /dev/null", "'/dev/null' is no regular file"),
    (f"{SAMPLE} --out /dev/stdout --shard-size 5", "'/dev/stdout' is no regular file"),
    (f"{SAMPLE} --resume --out x", "--resume needs --shard-size: give it, too"),
    (f"{SAMPLE} --out folder --shard-size 5", "already holds trajectories"),
    (f"{SAMPLE} --out thesis.txt --shard-size 5", "is a file, but shards need a folder"),
    (f"{SAMPLE} --without-infos", "--without-infos needs --out: give it, too"),
    (f"{SAMPLE} --out x --without-infos a,,b", "'a,,b' should be names of infos"),
    (f"{EVALUATE} --num-trajectories 5 --out found.npz", "'found.npz': .npz is not supported"),
    ("plot file --out x.jpg", "'x.jpg': .jpg is not supported; pictures are written to .png, .svg or .pdf"),
    # What the library refuses, in the names of options.
    (f"{SAMPLE} --shard-size 5 --out x --order arrival --workers 0", "--shard-size needs a sampler with --order index"),
    (f"{SAMPLE} --shard-size 5 --out x --vec 2", "--shard-size needs workers with a single trajectory at a time"),
    (f"{EVALUATE} --until-halfwidth 5 --guarantee", "--guarantee needs --bounds LEAST LARGEST of returns"),
    (
        "compare CartPole-v1 --num-trajectories 5 --agent random",
        "a comparison needs two agents or more: give --agent for each of them",
    ),
    (f"{COMPARE} --num-trajectories 5 --max-trajectories 9", "--max-trajectories is for --until-decided"),
    (
        f"{COMPARE} --num-trajectories 5 --bounds 1 0",
        "--bounds must be (least, largest), two finite numbers in ascending order",
    ),
    (f"{COMPARE} --num-trajectories 5 --fail-if-worse -1", "--fail-if-worse must be a number of at least 0"),
    (f"{COMPARE} --num-trajectories 5 --fail-if-worse nan", "--fail-if-worse must be a number of at least 0"),
    (f"{COMPARE} --num-trajectories 5 --fail-if-worse much", "'--fail-if-worse': 'much' is not a valid float"),
    (
        f"{COMPARE} --num-trajectories 5 --fail-if-worse 5 --decide-on success",
        "--fail-if-worse of success rates must be",
    ),
    (
        f"{COMPARE} --num-trajectories 5 --fail-if-worse 9 --bounds 0 9",
        "--fail-if-worse is 9, and --bounds are (0, 9): no agent can lose more",
    ),
    (f"{COMPARE} --num-trajectories 8 --seed 1 --part 1/2 --fail-if-worse 5", "leave out --fail-if-worse"),
    (f"{COMPARE} --until-decided 0.05 --fail-if-worse 5", "--until-decided needs --bounds LEAST LARGEST of returns"),
    (f"{COMPARE} --fail-if-worse 5", "How much? Give one of --num-trajectories"),
    (f"{EVALUATE} --num-trajectories 5 --part 1/2", "give the same --seed to all parts"),
    (f"{PART} two", "'two' is not the number of a part and of all parts, such as 2/7"),
    (f"{PART} 1/2 --on-failure drop", "a part cannot be sampled with --on-failure drop"),
    (f"{EVALUATE} --num-trajectories 5 --video-of best", "--video-of needs video, the folder"),
    (
        f"{EVALUATE} --num-trajectories 5 --video v --video-of bets",
        "'bets' is neither first, best, median, worst nor an index",
    ),
    ("check CartPole-v1 --time-limit 0", "--time-limit"),
    ("bench CartPole-v1 --seconds 0", "--seconds"),
    # Which file.
    ("replay nothing --index 0", "no such file or folder: 'nothing'"),
    ("replay file", "Missing option '--index'"),
    (f"{REPLAY} --vec-normalize x", "give --agent model.zip, too"),
    ("replay other --index 0", "the agent is missing: give --agent, or --actions for the recorded actions"),
    ("replay module --index 0", "must not decide which module is imported: give --env 'this:It-v0'"),
    ("info nowhere", "no such file or folder"),
    ("merge nowhere.npz --out x", "Invalid value for PART: no such file or folder: 'nowhere.npz'"),
    ("merge evaluation.json", "Missing option '-o' / '--out'"),
    ("merge --out x", "Missing argument 'PART...'"),
    ("merge evaluation.json --out x.npz", "Invalid value for '--out': 'x.npz': .npz is not supported"),
    ("export folder --to excel --out x", f"unknown format 'excel'; the formats are {', '.join(FORMATS)} and sb3"),
    ("export folder --to parquet --out x --timesteps 5", "--timesteps needs --to sb3"),
    ("export folder --to parquet --out x --dataset-id a/b-v0", "takes no --dataset-id"),
    ("export folder file.npz --to parquet --out x", "--to parquet takes a single FILE, or one FOLDER or more"),
    ("export evaluation.json --to sb3 --out x", "there are 1 file, and --timesteps is given 0 times"),
    ("export folder --to parquet --out x --dataset-id ''", "takes no --dataset-id"),
    ("export evaluation.json --to sb3 --out - --timesteps 5", "'-' is no regular file: give a file's name"),
    ("export folder --to minari --out x --metadata author", "'author' is not of the form key=text"),
    ("export evaluation.json evaluation.json --to sb3 --out x", "Give --timesteps once for each FILE"),
    ("export evaluation.json --to sb3 --out x --policy red", "--without and --policy are for trajectories"),
    ("export file.npz --to parquet --out x --policy red", "a single agent, so no policy 'red'"),
    ("export file.npz --to parquet --out x --without observations.x", "no 'observations.x': observations is one array"),
    ("export file.npz --to parquet --out x --import no_such_module", "no_such_module"),
    ("export evaluation.json --to sb3 --out x --dataset-id a/b-v0", "--dataset-id and --metadata are for trajectories"),
]
FAILURES = [
    (f"{SAMPLE} --env-kwarg wheels=4", "the environment CartPole-v1 cannot be made"),
    ("sample several:Parallel-v0 --num-samples 5", "Parallel-v0 is an environment of PettingZoo, for several agents"),
    ("sample several:AEC-v0 --num-samples 5", "AEC-v0 is an environment of PettingZoo, for several agents"),
    (
        "sample things_env:Things-v0 --num-samples 9 --out x",
        "observation_space['thing'] holds a builtins.object: only numbers",
    ),
    (
        "sample things_env:Things-v0 --num-samples 9 --out x --shard-size 5",
        "observation_space['thing'] holds a builtins.object",
    ),
    (f"{SAMPLE} --tasks tasks.json --workers 0", "set_task"),
    ("bench scripted:Scripted-v0 --env-kwarg fail_at=1", "cannot be reset and stepped: RuntimeError: the robot"),
    ("replay cut.npz --index 0", "cut.npz"),
    ("info text", "it is not an .npz file"),
    ("info empty", "no folder of trajectories"),
    ("info cut.json", "cut.json is no evaluation of streamsampler"),
    ("plot thesis.txt", "thesis.txt has neither trajectories nor an evaluation nor a comparison of streamsampler"),
    ("plot cut.npz", "cut.npz"),
    ("merge thesis.txt --out x", "thesis.txt is no part: it has neither an evaluation nor a comparison"),
    ("export evaluation.json --to parquet --out x", "evaluation.json holds an evaluation: give --to sb3"),
    ("export comparison.json --to parquet --out x", "has a comparison, but only trajectories and evaluations can be"),
    ("export file.npz --to sb3 --out x", "file.npz holds trajectories: give --to minari or --to parquet"),
    ("merge evaluation.json --out x", "evaluation.json is no part"),
]
MISSING = [
    ("ray", f"{SAMPLE} --engine ray", "RaySampler needs Ray: pip install ray (in a clone"),
    ("matplotlib", "plot file --out x", "drawing needs matplotlib: pip install matplotlib (in a clone"),
    ("pyarrow", "export folder --to parquet --out x", "needs pyarrow: pip install pyarrow (in a clone"),
    ("av", f"{REPLAY} --video a.mp4", "a video needs PyAV: pip install av (in a clone"),
    (
        "av",
        f"{EVALUATE} --num-trajectories 2 --workers 0 --video empty",
        "a video needs PyAV: pip install av (in a clone",
    ),
]


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(("line", "words", "code"), [(*row, 2) for row in USAGE] + [(*row, 1) for row in FAILURES])
def test_what_is_wrong_is_said_first(line: str, words: str, code: int) -> None:
    if line.startswith("plot"):
        pytest.importorskip("matplotlib")
    result = invoke(*shlex.split(line))
    assert result.exit_code == code
    # Versions of click quote options, or have a colon before them.
    assert words in told(result).replace("option: ", "option ")
    assert "this" not in sys.modules
    assert ("return 1 / 0" in result.stderr) is ("raising" in line), "only the user's own code is shown"


@pytest.mark.usefixtures("there")
@pytest.mark.parametrize(("library", "line", "words"), MISSING)
def test_a_library_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, library: str, line: str, words: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    result = invoke(*shlex.split(line))
    assert (result.exit_code, words in told(result)) == (1, True), result.stderr


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SerializationError("no way"), "no way"),
        (MemoryError("9 GB"), "not enough memory: 9 GB"),
        (OSError(errno.EAGAIN, "Resource temporarily unavailable"), "Resource temporarily unavailable"),
    ],
)
def test_what_the_library_foresees_is_a_failure(monkeypatch: pytest.MonkeyPatch, error: Exception, words: str) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("streamsampler.evaluation.agents.MultiprocessingSampler", refuse)
    result = invoke(*shlex.split(SAMPLE))
    assert (result.exit_code, words in told(result)) == (1, True)


def test_a_full_disk_is_a_failure_that_tells_how_to_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "out.npz")

    monkeypatch.setattr(TrajectoryBatch, "save", save)
    said = told(invoke(*shlex.split(SAMPLE), "--workers", 0, "--seed", 3, "--out", tmp_path / "out.npz", "--json"))
    assert "out.npz could not be read or written: No space left on device" in said
    assert "--seed 3" in said


def test_help_shows_examples_groups_and_defaults() -> None:
    text = invoke("sample", "--help").stdout
    for words in (
        "Examples:\n    streamsampler sample",
        "How much (exactly one of these):",
        "Output:",
        "[default: random]",
        "Exit codes:",
    ):
        assert words in text
    assert "sample" in invoke("--help").stdout
    for name in cli.commands:
        assert "--config FILE" in invoke(name, "--help").stdout
    formats = invoke("export", "--help").stdout
    assert [name for name in (*FORMATS, "sb3") if f"'{name}'" not in formats] == []
