"""How many processes are used."""

from hypothesis import given
from hypothesis import strategies as st

from streamsampler.checking.costs import Costs, Spinning, processes_for


def how_many(cpu_share, n_cores, free_share=1.0):
    return processes_for(cpu_share, free_share, n_cores)[0]


def test_environments_that_wait_get_more_processes():
    assert how_many(0.1, 2) == 8
    assert how_many(0.4, 2) == 5
    assert how_many(0.1, 64) == 64  # as many as there are cores are costly enough to start
    assert how_many(0.95, 2) == 2
    assert processes_for(0.4, 1.0, 2)[1] == "environment and agent compute 40% of the time and wait otherwise"


def test_those_with_threads_get_fewer():
    assert how_many(3.0, 16) == 5
    assert how_many(3.0, 2) == 1


def test_on_a_busy_machine_only_what_is_sure_counts():
    assert how_many(1.7, 4, free_share=0.1) == 4
    assert how_many(0.6, 4, free_share=0.1) == 4
    assert how_many(0.2, 1, free_share=0.5) == 5


@given(st.floats(0, 64), st.floats(0.01, 1), st.integers(1, 256))
def test_there_is_at_least_one(cpu_share, free_share, n_cores):
    assert 1 <= how_many(cpu_share, n_cores, free_share) <= max(8, n_cores)


def test_an_agent_computes_while_environments_wait():
    waiting = Costs(construction=0.0, reset=0.0, step=3e-3, cpu_share=0.0)
    assert waiting.with_agent(1e-3, batched=True) == Costs(0.0, 0.0, 3e-3, 1e-3, True, 0.25)
    assert waiting.with_agent(0.0, batched=False).cpu_share == 0.0
    assert Costs(0.0, 0.0, 0.0).with_agent(0.0, batched=True).cpu_share == 1.0


def test_how_much_of_a_core_there_is():
    spinning = Spinning()
    assert spinning.share == 1.0
    spinning.run(1e-3)
    assert 0 < spinning.share <= 1.0
