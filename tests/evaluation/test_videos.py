"""Videos of evaluations: chosen afterwards, of what was evaluated, or errors before the evaluation begins."""

from __future__ import annotations

import math
import sys
from typing import Any, ClassVar

import numpy as np
import pytest

from streamsampler import LocalSampler, UsageError, VecWorker, evaluate
from streamsampler.environments import filming as storage
from streamsampler.evaluation.agents import Row
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.replay import VideoError, Videos, video_name
from tests.evaluation.envs import Known, zero


class Filmed(Known):
    """Shows its seed and its timestep."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 5}  # type: ignore[misc]

    def __init__(self, render_mode: str | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.render_mode = render_mode

    def render(self) -> Any:
        picture = np.zeros((16, 16, 3), np.uint8)
        picture[0, 0] = self.t
        picture[0, 1] = self.seed % 256
        return picture


class Hidden(Filmed):
    """Pays more with each timestep, of all trajectories."""

    n = 0

    def step(self, action: Any) -> Any:
        Hidden.n += 1
        observation, reward, *ends = super().step(action)
        return observation, reward + Hidden.n, *ends


class StoredContext:
    """Stands for a video file, and keeps what it is given: {name: [(timestep, seed)]}."""

    written: ClassVar[dict[str, list[tuple[int, int]]]] = {}

    def __init__(self, path: Any) -> None:
        self.pictures = self.written[path.name] = []

    def add(self, picture: Any, rate: float) -> None:
        assert rate == 5
        self.pictures.append((int(picture[0, 0, 0]), int(picture[0, 1, 0])))

    def __enter__(self) -> StoredContext:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[int, int]]]:
    monkeypatch.setattr("streamsampler.samplers.replay_results.VideoFile", StoredContext)
    monkeypatch.setattr(storage, "_library", lambda: None)
    StoredContext.written.clear()
    return StoredContext.written


def evaluated(env: Any = Filmed, **options: Any) -> Any:
    return evaluate(zero, env, **{"seed": 1, "n_workers": 0, **options})


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}, {"part": (2, 2)}])
def test_the_best_the_worst_the_median_and_an_index(options: Any, kept: Any, tmp_path: Any) -> None:
    """In a block the trajectory is the only one that is filmed."""
    found = evaluated(num_trajectories=20, video=tmp_path / "v", video_of=("worst", "best", "median", 17), **options)
    ordered = sorted(found, key=lambda each: each.value)
    chosen = [ordered[0], ordered[-1], ordered[(len(found) - 1) // 2], *(it for it in found if it.trajectory == 17)]
    assert kept == {
        f"trajectory-{it.trajectory:06}_seed-{it.seed}_return{it.value:+.6g}.mp4": [
            (t, it.seed % 256) for t in range(4)
        ]
        for it in chosen
    }


def test_seeds_and_a_sampler_that_is_there(kept: Any, tmp_path: Any) -> None:
    with LocalSampler(zero, Filmed, seed=1) as sampler:
        sampler.obtain_trajectories(2)
        evaluate(sampler=sampler, seeds=[5, 6, 8], video=tmp_path, video_of=(1, "first"))
        assert [path.partition("_return")[0] for path in kept] == [
            "trajectory-000001_seed-6", "trajectory-000000_seed-5"
        ]  # fmt: skip
        scenarios = [{"seed": 3, "options": {"level": level}} for level in (1.0, 2.0)]
        found = evaluate(sampler=sampler, scenarios=scenarios, video=tmp_path, video_of=1)
        assert f"return{found.returns[1]:+.6g}" in list(kept)[-1]
    kept.clear()
    evaluated(num_trajectories=1, video=tmp_path)
    assert len(kept) == 1, "a trajectory that is chosen twice has one video"


def test_returns_that_are_no_numbers() -> None:
    values = [math.nan, 3.0, 1.0, 2.0, 3.0]
    rows = [Row(trajectory, 7, value, 1, True, False, None) for trajectory, value in enumerate(values)]
    videos = Videos(None, ("best", "worst", "median", "first"))  # type: ignore[arg-type]
    assert [each.trajectory for each in videos._rows(rows)] == [1, 2, 3, 0]
    assert [each.trajectory for each in videos._rows(rows[:1])] == [0] * 4
    assert video_name(rows[0]) == "trajectory-000000_seed-7_return+nan.mp4"


def test_what_cannot_be_filmed_as_it_was_is_a_warning(kept: Any, tmp_path: Any, caplog: Any) -> None:
    dropping = {"env_kwargs": {"fails": (5,)}, "on_failure": "drop", "check": None}
    evaluated(seeds=[4, 5, 6], video=tmp_path, video_of=[1, 2], **dropping)
    assert len(kept) == 1
    assert "no trajectory 1, so no video of it: it raised, and was dropped" in caplog.text
    evaluated(Hidden, num_trajectories=2, check=None, video=tmp_path, video_of=1)
    assert "differs from the evaluation: trajectory 1, run again, has a return of" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"video_of": 1}, "needs video, the folder"),
        ({"video": "v", "video_of": 2}, "no video of trajectory 2: there will be 0 to 1"),
        ({"video": "v", "video_of": "bets"}, "has 'first', 'best', 'median', 'worst' and indices, not 'bets'"),
        ({"video": "v", "video_of": True}, "and indices, not True"),
        ({"video": "v", "video_of": ()}, "video_of is empty"),
        ({"video": "no/v"}, "no such directory"),
        ({"video": "v.mp4"}, "video is a folder for several videos: name it 'v', not 'v.mp4'"),
        ({"video": "file"}, "is a file, but videos are written to a folder"),
        ({"video": "v", "env": Known}, "Known cannot be filmed: its render_mode is None"),
        ({"video": "v", "env": Known()}, "Make it with render_mode="),
    ],
)
@pytest.mark.usefixtures("kept")
def test_errors_come_before_the_evaluation_begins(
    arguments: Any, message: str, tmp_path: Any, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setattr(Known, "step", lambda *_: pytest.fail("the evaluation has begun"))
    with pytest.raises(UsageError, match=message):
        evaluated(num_trajectories=2, check=None, **arguments)


def test_an_environment_that_is_given_to_a_sampler_is_looked_at_first(kept: Any) -> None:
    with LocalSampler(zero, Filmed) as sampler, pytest.raises(UsageError, match="Known cannot be filmed"):
        evaluate(env=Known, sampler=sampler, num_trajectories=2, video="v")


def test_the_evaluation_is_not_lost_with_a_video(kept: Any, tmp_path: Any, monkeypatch: Any) -> None:
    failures: list[tuple[BaseException, Any, str | None]] = [
        (OSError(28, "no space left"), VideoError, r"the evaluation is complete, but .*no space left"),
        (KeyboardInterrupt(), EvaluationInterruptedError, None),
    ]
    for error, raised, words in failures:
        monkeypatch.setattr(StoredContext, "add", lambda *_, error=error: (_ for _ in ()).throw(error))
        with pytest.raises(raised, match=words) as caught:
            evaluated(num_trajectories=5, video=tmp_path)
        assert len(caught.value.found) == 5
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ImportError, match=r"a video needs PyAV: pip install av "):
        evaluated(num_trajectories=1, video=tmp_path / "videos")
    assert not (tmp_path / "videos").exists()


@pytest.mark.extras
def test_the_files_are_videos(tmp_path: Any) -> None:
    import av

    evaluated(num_trajectories=3, n_workers=2, video=tmp_path, video_of="best")
    (path,) = tmp_path.iterdir()
    with av.open(str(path)) as container:
        assert len(list(container.decode(video=0))) == 4
