"""Videos of evaluations: chosen afterwards, of what was evaluated, or errors before the evaluation begins."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest

from streamsampler import LocalSampler, UsageError, VecWorker, evaluate
from streamsampler.data import videos as storage
from streamsampler.evaluation.agents import Row
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.videos import VideoError, VideoOf, Videos, video_name
from tests.evaluation.envs import Known


class Filmed(Known):
    """Shows its seed and its timestep."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 5}  # type: ignore[misc]

    def __init__(self, render_mode: str | None = None, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.render_mode = render_mode

    def render(self) -> Any:
        if self.fails and self.seed in self.fails:
            raise RuntimeError("no light")
        picture = np.zeros((16, 16, 3), np.uint8)
        picture[0, 0] = self.t
        picture[0, 1] = self.seed % 256
        return picture


def row(trajectory: int, value: float) -> Row:
    return Row(trajectory, 7, value, 1, True, False, None)


def names(folder: Any) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


class Kept:
    """Stands for a video file, and keeps what it is given: {name: [(timestep, seed)]}."""

    written: ClassVar[dict[str, list[tuple[int, int]]]] = {}

    def __init__(self, path: Any) -> None:
        self.pictures = self.written[path.name] = []

    def add(self, picture: Any, rate: float) -> None:
        assert rate == 5
        self.pictures.append((int(picture[0, 0, 0]), int(picture[0, 1, 0])))

    def __enter__(self) -> Kept:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[tuple[int, int]]]:
    monkeypatch.setattr("streamsampler.samplers.replays.VideoFile", Kept)
    monkeypatch.setattr(storage, "_library", lambda: None)
    Kept.written.clear()
    return Kept.written


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}, {"part": (2, 2)}])
def test_the_best_the_worst_the_median_and_an_index(options, kept, tmp_path):
    """In a block the trajectory is the only one that is filmed."""
    of: tuple[VideoOf, ...] = ("worst", "best", "median", 17)
    found = evaluate(
        lambda _: 0, Filmed, num_trajectories=20, seed=1, n_workers=0, video=tmp_path / "v", video_of=of, **options
    )
    ordered = sorted(found, key=lambda each: each.value)
    chosen = [ordered[0], ordered[-1], ordered[(len(found) - 1) // 2], *(it for it in found if it.trajectory == 17)]
    expected = {
        f"trajectory-{it.trajectory:06}_seed-{it.seed}_return{it.value:+.6g}.mp4": [
            (t, it.seed % 256) for t in range(4)
        ]
        for it in chosen
    }
    assert kept == expected


def test_seeds_and_a_sampler_that_is_there(kept, tmp_path):
    with LocalSampler(lambda _: 0, Filmed, seed=1) as sampler:
        sampler.obtain_trajectories(2)
        evaluate(sampler=sampler, seeds=[5, 5, 8], video=tmp_path, video_of=(1, "first"))
        assert [path.partition("_return")[0] for path in kept] == [
            "trajectory-000001_seed-5",
            "trajectory-000000_seed-5",
        ]
        options = [{"level": 1.0}, {"level": 2.0}]
        found = evaluate(
            sampler=sampler, scenarios=[{"seed": 3, "options": each} for each in options], video=tmp_path, video_of=1
        )
    assert f"return{found.returns[1]:+.6g}" in list(kept)[-1]


def test_one_video_of_a_trajectory_that_is_chosen_twice(kept, tmp_path):
    evaluate(lambda _: 0, Filmed, num_trajectories=1, seed=1, n_workers=0, video=tmp_path)
    assert len(kept) == 1


def test_returns_that_are_no_numbers():
    rows = [row(0, math.nan), row(1, 3.0), row(2, 1.0), row(3, 2.0), row(4, 3.0)]
    videos = Videos(None, ("best", "worst", "median", "first"))  # type: ignore[arg-type]
    assert [each.trajectory for each in videos._rows(rows)] == [1, 2, 3, 0]
    assert [each.trajectory for each in videos._rows(rows[:1])] == [0] * 4
    assert video_name(rows[0]) == "trajectory-000000_seed-7_return+nan.mp4"


def test_a_trajectory_that_there_is_not(kept, tmp_path, caplog):
    env_kwargs = {"fails": (5,)}
    evaluate(
        lambda _: 0, Filmed, seeds=[4, 5, 6], env_kwargs=env_kwargs, n_workers=0, on_failure="drop", check=None,
        video=tmp_path, video_of=[1, 2],
    )  # fmt: skip
    assert len(kept) == 1
    assert "there is no trajectory 1, and no video of it: it raised, and was left out" in caplog.text


class Hidden(Filmed):
    n = 0

    def step(self, action: Any) -> Any:
        Hidden.n += 1
        observation, reward, *ends = super().step(action)
        return observation, reward + Hidden.n, *ends


def test_a_video_of_something_else_is_a_warning(kept, tmp_path, caplog):
    evaluate(lambda _: 0, Hidden, num_trajectories=2, seed=1, n_workers=0, check=None, video=tmp_path, video_of=1)
    assert "does not show what was evaluated: trajectory 1, run again, has a return of" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"video_of": 1}, "give video, the folder"),
        ({"video": "v", "video_of": 2}, "no video of trajectory 2: there will be 0 to 1"),
        ({"video": "v", "video_of": "bets"}, "has 'first', 'best', 'median', 'worst' and indices, not 'bets'"),
        ({"video": "v", "video_of": True}, "and indices, not True"),
        ({"video": "v", "video_of": ()}, "video_of is empty"),
        ({"video": "no/v"}, "there is no directory"),
        ({"video": "file"}, "is a file, and videos go into a folder"),
        ({"video": "v", "env": Known}, "Known cannot be filmed: its render_mode is None"),
        ({"video": "v", "env": Known()}, "Make it with render_mode="),
    ],
)
def test_errors_come_before_the_evaluation_begins(arguments, message, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()

    def agent(_: Any) -> int:
        pytest.fail("the evaluation has begun")

    with pytest.raises(UsageError, match=message):
        evaluate(agent, arguments.pop("env", Filmed), num_trajectories=2, seed=1, n_workers=0, **arguments)
    with LocalSampler(agent, Filmed) as sampler, pytest.raises(UsageError, match="Known cannot be filmed"):
        evaluate(env=Known, sampler=sampler, num_trajectories=2, video="v")


def test_the_evaluation_is_not_lost_with_a_video(kept, tmp_path, monkeypatch):
    def fail(error: type[BaseException]) -> Any:
        def add(*_: Any) -> None:
            raise error(28, "no space left")

        monkeypatch.setattr(Kept, "add", add)
        return evaluate(lambda _: 0, Filmed, num_trajectories=5, seed=1, n_workers=0, video=tmp_path)

    with pytest.raises(VideoError, match=r"the evaluation is complete, but .*no space left") as failed:
        fail(OSError)
    assert len(failed.value.found) == 5
    with pytest.raises(EvaluationInterruptedError) as interrupted:
        fail(KeyboardInterrupt)
    assert len(interrupted.value.found) == 5


def test_without_the_library_nothing_begins(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(ImportError, match=r"a video needs PyAV: pip install av "):
        evaluate("random", Filmed, num_trajectories=1, video=tmp_path)


@pytest.mark.extras
def test_the_files_are_videos(tmp_path):
    import av

    evaluate(lambda _: 0, Filmed, num_trajectories=3, seed=1, n_workers=2, video=tmp_path, video_of="best")
    (name,) = names(tmp_path)
    with av.open(str(tmp_path / name)) as container:
        assert len(list(container.decode(video=0))) == 4
