"""Trees of timers, the numbers made of them, and what is made of infos."""

import numpy as np
import pytest

from streamsampler.data.statistics import Stats, aggregate, timers_text
from streamsampler.errors import UsageError
from streamsampler.protocol.messages import Report, Ticket, Times

STEP = ("step", 0, 0.0, (("physics", 10, 0.5, (("contacts", 20, 0.2, ()),)),))


def report(seconds=1.0, n_timesteps=100, timed=(STEP,)):
    times = Times(reset=seconds / 4, step=seconds, idle=seconds / 2)
    return Report(Ticket(1, range(1)), n_timesteps=n_timesteps, seconds=times, timed=timed)


def of_call(*reports):
    """Return the accounts of a call of two workers, whose reports these are in turn."""
    stats = Stats.of(2)
    for number, each in enumerate(reports):
        stats.take_report(number % 2, each)
    stats.seconds, stats.kept_timesteps = 2.0, 150
    return stats


def test_the_tree_has_phases_and_in_them_what_was_timed():
    tree = of_call(report(), report(2.0, 300), report()).timers(0)
    assert list(tree.children) == list(Times._fields)
    assert (tree.seconds, tree.timesteps) == (3.5, 200)
    physics = tree.children["step"].children["physics"]
    assert (physics.count, physics.seconds, physics.ms_per_timestep) == (20, 1.0, 5.0)
    assert physics.self_seconds == pytest.approx(0.6)
    assert tree.children["step"].self_seconds == pytest.approx(1.0)
    assert physics.children["contacts"].count == 40


def test_the_tree_of_all_workers_is_their_sum():
    stats = of_call(report(), report(2.0, 300), report())
    tree, parts = stats.timers(), [stats.timers(worker) for worker in range(2)]
    found = dict(tree.walk())
    assert tree.timesteps == 500
    for path, timer in found.items():
        same = [dict(part.walk())[path] for part in parts]
        assert timer.seconds == sum(it.seconds for it in same)
        assert timer.count == sum(it.count for it in same)
    assert stats.timers() == tree, "looking changes nothing"


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


def test_there_are_no_means_of_nothing():
    stats = Stats.of(2)
    stats.merge(Stats.of(2))
    assert stats.means() == stats.recent == {}
    assert stats.timers().ms_per_timestep == 0.0
    assert "all" in timers_text(stats.timers())


def test_the_table_shows_shares_and_milliseconds():
    text = timers_text(of_call(report()).timers())
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines()}
    assert lines["step"] == ["57.1%", "10", "5"]
    assert lines["contacts"] == ["11.4%", "2", "20"]
    assert "\n    contacts" in text, "under physics, which is under step"


# ---------------------------------------------------------------------- infos

INFOS = {
    "always": np.array([1, 2, 6]),
    "rare": np.array([0.0, 5.0, 0.0]),
    "_rare": np.array([False, True, False]),
    "flag": np.array([True, False, True]),
    "never": np.zeros(3),
    "_never": np.zeros(3, bool),
    "vector": np.zeros((3, 2)),
    "words": np.array(["a", "b", "c"], dtype=object),
}


@pytest.mark.parametrize(
    ("name", "how", "expected"),
    [
        ("always", "mean", 3.0),
        ("always", "sum", 9.0),
        ("always", "last", 6.0),
        ("rare", "mean", 5.0),
        ("rare", "last", 5.0),
        ("flag", "sum", 2.0),
    ],
)
def test_infos_are_aggregated_where_they_were_there(name, how, expected):
    assert aggregate(INFOS, {name: how}) == {name: expected}


def test_infos_that_were_never_there_are_left_out():
    assert aggregate(INFOS, {"never": "mean", "unheard of": "sum"}) == {}


@pytest.mark.parametrize("name", ["vector", "words"])
def test_what_is_no_number_is_refused(name):
    with pytest.raises(UsageError, match=f"the info {name!r} cannot be aggregated"):
        aggregate(INFOS, {name: "mean"})


def test_other_words_are_refused():
    with pytest.raises(UsageError, match="aggregated by mean, sum, last; for 'always' it is 'median'"):
        aggregate(INFOS, {"always": "median"})  # type: ignore[dict-item]
