"""Accounts as people read them, trees of timers, and numbers made of infos."""

import numpy as np
import pytest

from streamsampler.core.times import Times
from streamsampler.core.timing import Measured
from streamsampler.data.aggregation import aggregate
from streamsampler.data.statistics import DroppedTrajectory, EndedEpisodes, Stats
from streamsampler.data.timers import timers_text
from streamsampler.errors import UsageError
from streamsampler.protocol.messages import Report, Ticket
from streamsampler.workers.hooks import check_aggregation


def test_each_account_is_in_the_table():
    stats = Stats(
        kept_trajectories=1_234, kept_timesteps=50_000, stale_trajectories=1, stale_timesteps=2, surplus_trajectories=3,
        surplus_timesteps=4, abandoned_trajectories=5, abandoned_timesteps=6, lost_timesteps=7, checked_trajectories=8,
        checked_timesteps=9, failed_trajectories=10, dropped_trajectories=11, anomalies=12, restarts=13, hangs=14,
        replaced=15, seconds=100.0, workers=[Times(1, 1, 6, 1, 1, 0)] * 2, infos={"crashes": 2.5},
        dropped=[DroppedTrajectory(1, 2, 3, "step", "why")] * 11,
    )  # fmt: skip
    short = "Stats(1,234 trajectories, 50,000 timesteps kept in 1 min 40 s; print() shows all accounts)"
    assert repr(stats) == short
    assert {line[:14].strip(): line[14:].strip() for line in str(stats).splitlines()} == {
        "kept": "1,234 trajectories, 50,000 timesteps",
        "stale": "1 trajectory, 2 timesteps",
        "surplus": "3 trajectories, 4 timesteps",
        "abandoned": "5 trajectories, 6 timesteps",
        "lost": "7 timesteps",
        "checked": "8 trajectories, 9 timesteps",
        "failed": "10 trajectories; 11 were dropped",
        "anomalies": "12",
        "restarts": "13 of 2 workers; 14 hung, 15 used too much memory",
        "wall time": "1 min 40 s in calls, 500 timesteps per second",
        "workers' time": "reset 10%, agent 10%, step 60%, sending 10%, idle 10%, checking 0%",
        "infos": "crashes 2.5",
    }


STEP = ("step", 0, 0.0, (("physics", 10, 0.5, (("contacts", 20, 0.2, ()),)),))


def report(seconds=1.0, n_timesteps=100):
    times = Times(reset=seconds / 4, step=seconds, idle=seconds / 2)
    return Report(Ticket(1, range(1)), n_timesteps=n_timesteps, seconds=times, timed=Measured((STEP,), {}))


def of_call(*reports):
    """Return the accounts of a call of two workers, whose reports these are in turn."""
    stats = Stats.of(2)
    for number, each in enumerate(reports):
        stats.add_report(number % 2, each)
    stats.seconds, stats.kept_timesteps = 2.0, 150
    return stats


def test_the_tree_of_timers_has_phases_and_in_them_what_was_timed():
    stats = of_call(report(), report(2.0, 300), report())
    tree = stats.timers(0)
    assert list(tree.children) == list(Times._fields)
    assert (tree.seconds, tree.timesteps) == (3.5, 200)
    physics = tree.children["step"].children["physics"]
    assert (physics.count, physics.seconds, physics.ms_per_timestep) == (20, 1.0, 5.0)
    assert physics.self_seconds == pytest.approx(0.6)
    assert tree.children["step"].self_seconds == pytest.approx(1.0)
    assert physics.children["contacts"].count == 40
    whole, parts = stats.timers(), [dict(stats.timers(worker).walk()) for worker in range(2)]
    assert whole.timesteps == 500
    for path, timer in whole.walk():
        assert timer.seconds == sum(part[path].seconds for part in parts)
        assert timer.count == sum(part[path].count for part in parts)
    assert stats.timers() == whole, "looking changes nothing"


def test_calls_are_added_up_and_recent_ones_count_more():
    sampler = Stats.of(2)
    for seconds in (1.0, 2.0):
        sampler.merge(of_call(report(seconds)))
    assert sampler.timers().children["step"].children["physics"].count == 20
    assert sampler.worker_timesteps == [200, 0]
    flat = sampler.flat()
    assert flat["ms/step"] == pytest.approx(15.0)
    assert flat["recent/ms/step"] == pytest.approx(10.0 + 0.1 * 10.0)
    assert flat["ms/step/physics/contacts"] == pytest.approx(2.0)
    assert flat["timesteps_per_second"] == flat["recent/timesteps_per_second"] == 75.0
    assert flat["kept_timesteps"] == 300
    assert all(isinstance(value, (int, float)) for value in flat.values())


def test_all_numbers_are_there_from_the_first_time_on():
    stats = Stats.of(2)
    before, keys = stats.flat(), stats.flat().keys()
    stats.merge(of_call(report()))  # in which no episode ended
    between = stats.flat()
    ended = of_call(report())
    ended.episodes = EndedEpisodes(2, 10, 6.0)
    stats.merge(ended)
    after = stats.flat()
    timers = {f"{part}ms/step/physics{path}" for part in ("", "recent/") for path in ("", "/contacts")}
    assert between.keys() == after.keys() == keys | timers, "and what user code times, once it is timed"
    assert (before["episodes"], before["reports"]) == (0, 0)
    for name in ("ms/reset", "ms/checking", "timesteps_per_second", "episode_return", "episode_length"):
        assert np.isnan([before[name], before[f"recent/{name}"]]).all()
        assert not np.isnan([after[name], after[f"recent/{name}"]]).any()
    assert np.isnan([between["episode_return"], between["recent/episode_return"]]).all()
    assert after["episode_return"] == 3.0


def test_there_are_no_means_of_nothing():
    stats = Stats.of(2)
    stats.merge(Stats.of(2))
    assert stats.means() == stats.recent == {}
    assert stats.timers().ms_per_timestep == 0.0
    assert "all" in timers_text(stats.timers())


def test_the_table_of_timers_shows_shares_and_milliseconds():
    text = timers_text(of_call(report()).timers())
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert lines["step"] == ["57.1%", "10", "5"]
    assert lines["contacts"] == ["11.4%", "2", "20"]
    assert "\n    contacts" in text, "under physics, which is under step"


def test_infos_are_aggregated_where_they_were_there():
    infos = {
        "always": np.array([1, 2, 6]), "rare": np.array([0.0, 5.0, 0.0]), "_rare": np.array([False, True, False]),
        "flag": np.array([True, False, True]), "never": np.zeros(3), "_never": np.zeros(3, bool),
        "vector": np.zeros((3, 2)), "words": np.array(["a", "b", "c"], dtype=object),
    }  # fmt: skip
    for how, expected in (
        ({"always": "mean", "rare": "mean", "flag": "sum"}, {"always": 3.0, "rare": 5.0, "flag": 2.0}),
        ({"always": "last", "rare": "last", "never": "mean", "unheard of": "sum"}, {"always": 6.0, "rare": 5.0}),
        ({"always": "histogram", "rare": "histogram"}, {"always": 3.0, "rare": 5.0}),
    ):
        assert aggregate(infos, how) == expected  # type: ignore[arg-type]
    for wrong, words in (
        ({"vector": "mean"}, "cannot aggregate the info 'vector'"),
        ({"words": "mean"}, "cannot aggregate the info 'words'"),
        ({"always": "median"}, "aggregated by mean, sum, last, histogram, not by 'median' as for 'always'"),
    ):
        with pytest.raises(UsageError, match=words):
            aggregate(infos, wrong)  # type: ignore[arg-type]


def test_a_histogram_of_an_info_keeps_its_values_and_hooks_have_none():
    class Batch:
        env_infos = {"speed": np.array([1.0, 0.0, 3.0]), "_speed": np.array([True, False, True])}  # noqa: RUF012

    stats = Stats.of(1)
    assert stats.take_infos(Batch(), {"speed": "histogram", "unheard of": "histogram"}) == {"speed": 2.0}
    assert {name: values.tolist() for name, values in stats.histograms.items()} == {"speed": [1.0, 3.0]}
    assert stats.flat()["infos/speed"] == 2.0
    with pytest.raises(
        UsageError, match="the metric 'crashes' has the aggregation 'histogram': use one of mean, sum, last"
    ):
        check_aggregation({"crashes": "histogram"})
