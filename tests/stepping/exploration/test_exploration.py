"""Every interleaving of calls, work, failures and deaths in small systems, through the manager's and workers' own code.

The smallest ones run in the default tier.
"""

import logging

import pytest

from streamsampler.stepping import generators, process_transport, receiver, server
from tests.stepping.exploration.decisions import explore_decisions
from tests.stepping.exploration.model import Clock
from tests.stepping.exploration.world import explore
from tests.tiers import mostly_slow

APART, TOGETHER = [[0], [1]], [[0, 1]]
AT_ONCE = ("raise", "die", "die after")  # a hang is a death that is noticed later


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Time is the world's, results are sent one by one, and nothing is logged."""
    for module in (process_transport, receiver):
        monkeypatch.setattr(module, "time", Clock)
    monkeypatch.setattr(server, "_TOGETHER_SECONDS", -1.0)
    monkeypatch.setattr(process_transport, "_REPORT_SECONDS", 1)
    monkeypatch.setattr(generators, "generator_marks", tuple)  # or other worlds would seem to draw from them
    monkeypatch.setattr(logging.getLogger("streamsampler"), "disabled", True)


def systems(*cases):
    return pytest.mark.parametrize(("envs_of", "options"), cases, ids=str)


every_mode = pytest.mark.parametrize("autoreset", ["next_step", "same_step", "disabled"])
one_by_default = pytest.mark.parametrize(
    "autoreset", ["next_step", *(pytest.param(mode, marks=pytest.mark.slow) for mode in ("same_step", "disabled"))]
)
every_policy = pytest.mark.parametrize("on_failure", ["restore", "reset", "raise"])


@one_by_default
@pytest.mark.parametrize("on_failure", mostly_slow(["restore", "reset", "raise"]))
def test_one_failure_in_one_step(autoreset, on_failure):
    assert explore(TOGETHER, on_failure, autoreset, steps=1, faults=1, hows=AT_ONCE) > 50


@pytest.mark.slow
@pytest.mark.parametrize("on_failure", ["restore", "reset", "raise"])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@systems((APART, {"steps": 2, "faults": 1, "hows": AT_ONCE}), (TOGETHER, {"steps": 2, "faults": 1, "hows": AT_ONCE}))
def test_every_interleaving_of_rounds_goes_on(envs_of, options, autoreset, on_failure):
    assert explore(envs_of, on_failure, autoreset, rounds=True, **options) > 100


@pytest.mark.slow
@pytest.mark.parametrize("on_failure", ["restore", "reset"])
def test_one_death_after_which_workers_wait(on_failure):
    assert explore(APART, on_failure, "next_step", steps=1, faults=1, hows=("die",), wait=1) > 50


@pytest.mark.slow
@every_mode
@every_policy
@systems(
    (APART, {"steps": 2, "faults": 1}),
    (TOGETHER, {"steps": 2, "faults": 1}),
    (APART, {"steps": 1, "faults": 1, "calls": 1}),
    (TOGETHER, {"steps": 1, "faults": 1, "calls": 1}),
    (APART, {"steps": 1, "faults": 2}),
    (TOGETHER, {"steps": 1, "faults": 2}),
    ([[0, 1], [2]], {"steps": 1, "faults": 1, "hows": AT_ONCE}),
    (APART, {"steps": 1, "faults": 1, "wait": 2}),
    (TOGETHER, {"steps": 1, "faults": 2, "wait": 2, "hows": AT_ONCE}),
)
def test_every_interleaving_goes_on(envs_of, options, autoreset, on_failure):
    assert explore(envs_of, on_failure, autoreset, **options) > 100


@pytest.mark.slow
@every_mode
@pytest.mark.parametrize("on_failure", ["restore", "reset"])
@pytest.mark.parametrize("envs_of", [APART, TOGETHER], ids=str)
def test_calls_while_something_waits(envs_of, autoreset, on_failure):
    assert explore(envs_of, on_failure, autoreset, steps=1, faults=1, calls=1, wait=1, hows=("raise", "die")) > 1_000


@pytest.mark.slow
@every_mode
@every_policy
@systems((APART, {"steps": 2, "faults": 2, "hows": AT_ONCE}), (TOGETHER, {"steps": 2, "faults": 2, "hows": AT_ONCE}))
def test_two_failures_in_two_steps(envs_of, options, autoreset, on_failure):
    assert explore(envs_of, on_failure, autoreset, **options) > 1_000


@every_mode
@every_policy
@systems(
    (TOGETHER, {"steps": 3, "faults": 1}),
    (APART, {"steps": 1, "faults": 1, "resets": 1}),
    ([[0], [1], [2]], {"steps": 1, "faults": 1}),
)
def test_every_interleaving_of_decisions_goes_on(envs_of, options, autoreset, on_failure):
    if on_failure == "raise":  # whose caller may do more
        options = {**options, "steps": 1}
    assert explore_decisions(envs_of, on_failure, autoreset, **options) > 1_000


@pytest.mark.slow
@every_mode
@pytest.mark.parametrize("on_failure", ["restore", "reset"])
@systems(
    (TOGETHER, {"steps": 3, "faults": 2}),
    (TOGETHER, {"steps": 1, "faults": 3}),
    (TOGETHER, {"steps": 1, "faults": 2, "resets": 1}),
    (APART, {"steps": 1, "faults": 2, "resets": 1}),
    (APART, {"steps": 3, "faults": 1, "resets": 1}),
    ([[0, 1], [2]], {"steps": 1, "faults": 2}),
    ([[0], [1], [2]], {"steps": 1, "faults": 3, "hows": ("die",)}),
)
def test_many_losses_in_all_decisions(envs_of, options, autoreset, on_failure):
    assert explore_decisions(envs_of, on_failure, autoreset, **options) > 1_000
