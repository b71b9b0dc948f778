"""Accounts as people read them."""

from streamsampler import LocalSampler
from streamsampler.data.statistics import DroppedTrajectory, Stats
from streamsampler.protocol.messages import Times


def rows(stats):
    return {line[:14].strip(): line[14:].strip() for line in str(stats).splitlines()}


def test_accounts_are_printed_as_a_table_of_a_dozen_lines():
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_trajectories(3)
        table = rows(sampler.stats)
        assert str(sampler.stats).count("\n") + 1 in range(10, 14)
    assert table["kept"] == f"3 trajectories, {batch.n_timesteps} timesteps"
    assert table["wall time"].endswith("timesteps per second")
    assert table["restarts"] == "0 of 1 worker; 0 hung, 0 had too much memory"


def test_each_account_is_in_the_table():
    stats = Stats(
        kept_trajectories=1_234, kept_timesteps=50_000, stale_trajectories=1, stale_timesteps=2, surplus_trajectories=3,
        surplus_timesteps=4, abandoned_trajectories=5, abandoned_timesteps=6, lost_timesteps=7, checked_trajectories=8,
        checked_timesteps=9, failed_trajectories=10, dropped_trajectories=11, anomalies=12, restarts=13, hangs=14,
        replaced=15, seconds=100.0, workers=[Times(1, 1, 6, 1, 1, 0)] * 2, infos={"crashes": 2.5},
        dropped=[DroppedTrajectory(1, 2, 3, "step", "why")] * 11,
    )  # fmt: skip
    assert rows(stats) == {
        "kept": "1,234 trajectories, 50,000 timesteps",
        "stale": "1 trajectory, 2 timesteps",
        "surplus": "3 trajectories, 4 timesteps",
        "abandoned": "5 trajectories, 6 timesteps",
        "lost": "7 timesteps",
        "checked": "8 trajectories, 9 timesteps",
        "failed": "10 trajectories; 11 were left out",
        "anomalies": "12",
        "restarts": "13 of 2 workers; 14 hung, 15 had too much memory",
        "wall time": "1 min 40 s in calls, 500 timesteps per second",
        "workers' time": "reset 10%, agent 10%, step 60%, sending 10%, idle 10%, checking 0%",
        "infos": "crashes 2.5",
    }
