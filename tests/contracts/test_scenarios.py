"""C1: the same is seen of a sampler on any engine, with any number of workers, and whoever is killed."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from streamsampler import Limits, LocalSampler
from streamsampler.testing import Faults
from tests.contracts.conftest import ALL_BY_ALL, QUEUES, Maker
from tests.contracts.scenarios import LIVES, SEED, with_faults

SLOW = pytest.mark.slow
# Engine, number of workers, and whether workers are killed. Each time what is seen with one worker in this process is
# compared with processes of which some are killed, and others work on; and for a few lives with some that nobody kills.
CELLS = [
    pytest.param("local", 3, False, id="in this process", marks=SLOW),
    pytest.param("processes", 3, True, id="killed"),
    pytest.param("processes", 2, False, id="processes"),
    pytest.param("processes", 1, False, id="one process", marks=SLOW),
    pytest.param("processes", 7, True, id="killed of seven", marks=SLOW),
    pytest.param("shared memory", 2, False, id="all through shared memory", marks=SLOW),
    pytest.param("pipes", 2, False, id="all through pipes", marks=SLOW),
    pytest.param("queues fork", 2, False, id="queues fork", marks=SLOW),
    pytest.param("queues forkserver", 3, True, id="queues killed", marks=SLOW),
    pytest.param("queues spawn", 2, False, id="queues spawn", marks=SLOW),
    pytest.param("ray", 2, False, id="ray", marks=[pytest.mark.ray, pytest.mark.extras]),
    *(
        pytest.param(f"queues {method}", 7, killed, id=f"queues {method} {killed}", marks=SLOW)
        for method in ("fork", "spawn", "forkserver")
        for killed in (False, True)
        if ALL_BY_ALL
    ),
]


# By default workers are killed in other lives of the same kind of worker, and in the tests of faults and of losses.
SEEN_ELSEWHERE = {
    "one by one", "blocks", "lists", "filters", "fragments", "fragments in lanes", "at most 4 timesteps",
    "native vector environments that reset themselves: NEXT_STEP", "the agent in the parent",
    "several agents, one policy", "several agents, policies that change places",
}  # fmt: skip
UNDISTURBED = {"one by one", "fragments", "several agents, policies that change places"}


def case(name: str, cell: Any) -> Any:
    """Return a life in a cell."""
    is_slow = LIVES[name].variant or (cell.id == "processes" and name not in UNDISTURBED)
    is_slow = is_slow or (cell.id == "killed" and name in SEEN_ELSEWHERE)
    return pytest.param(name, *cell.values, id=f"{cell.id}-{name}", marks=[*cell.marks, *([SLOW] if is_slow else [])])


@cache
def expected(name: str) -> dict[str, Any]:
    """What is seen with one worker in this process, or with as many as it takes."""
    life = LIVES[name]
    options = {"n_workers": life.n_workers or 1, "seed": SEED, "check": None, **life.options}
    with LocalSampler(life.agents, life.envs, **options) as sampler:
        return life.see(sampler)


@pytest.mark.parametrize(
    ("name", "engine", "n_workers", "killed"),
    [case(name, cell) for cell in CELLS for name in LIVES],
    indirect=["engine"],
)
def test_the_same_is_seen(make_sampler: Maker, name: str, n_workers: int, killed: bool, tmp_path: Path) -> None:
    life = LIVES[name]
    options: dict[str, Any] = {"seed": SEED, "check": None, **life.options}
    if life.in_parent:
        if make_sampler.engine not in ("processes", *QUEUES):
            pytest.skip("the agent is in the parent of processes and queues alone")
        options |= {"inference": "parent", "worker_args": {"n_envs": 7}}
        del options["worker_class"]
    if killed:
        options |= {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)}
    # Of a system without named pipes as well: there nobody is killed.
    faults = Faults(tmp_path, *life.kills, seed=SEED) if killed else None

    def wrap(env: Any) -> Any:
        return env if faults is None else with_faults(faults, env)

    agents = deepcopy(life.agents)  # a sampler with the agent in this process has the very agent, and changes it
    sampler = make_sampler(agents, wrap(life.envs), n_workers=life.n_workers or n_workers, **options)
    for capability, seen in life.see(sampler, wrap).items():
        assert seen == expected(name)[capability], capability
    assert faults is None or faults.fired() == sum(fault.times or 0 for fault in faults.faults), "or this shows nothing"


def test_what_is_compared_is_not_trivial() -> None:
    """Trajectories and calls differ, updates change them, and something was left out where something may be."""
    seen = expected("one by one")
    returns = [tuple(batch.returns.tolist()) for batch in seen.values() if not isinstance(batch, list)]
    assert len(set(returns)) == len(returns)
    assert all(len(set(values)) > 1 for values in returns)
    going = expected("fragments")
    whole, after = going["whole trajectories between fragments"], going["fragments go on after them"]
    assert not (whole.continued | whole.cut).any()
    assert after.continued.any()
    assert going["fragments go on"].continued.any()
    assert going["fragments go on"].cut.any()
    on = going["fragments go on"]
    assert not (on.cut & (on.terminated | on.truncated)).any()
    assert not after.episode_starts[after.starts].all()
    assert set(after.seeds) & set(going["fragments go on with other parameters"].seeds)
