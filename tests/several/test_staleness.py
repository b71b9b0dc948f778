"""`staleness=1` with several agents: each batch is of the version before, in each kind of worker."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import streamsampler
from streamsampler import RolloutError
from tests.scripted.games import Chooser, Comings, Turns
from tests.several.comparing import LocalSampler
from tests.several.test_rows import Rowwise, rows
from tests.tiers import costly, mostly_slow

MultiprocessingSampler: Any = streamsampler.MultiprocessingSampler
ENGINES: list[dict[str, Any]] = [rows(3), {}, {"engine": "queues"}, {"engine": "queues", **rows(3)}]
# None for no update; of one policy; of both; a new agent.
UPDATES = (None, {"red": (1,)}, {"blue": (2,)}, {"red": (3,), "blue": (3,)}, {"blue": Chooser(1)}, {"red": (1,)})


def agents() -> dict[str, Any]:
    return {"red": Rowwise(), "blue": Chooser()}


def told(sampler: Any, updates: Any, n: int = 5) -> list[Any]:
    return [sampler.obtain_trajectories(n, agent_update=update) for update in updates]


@pytest.mark.parametrize("game", [Comings, Turns])
def test_batches_are_those_of_the_version_before(game: Any) -> None:
    with LocalSampler(agents(), game, seed=1) as sampler:
        first = sampler.obtain_trajectories(10, agent_update=UPDATES[0])
        expected = [first[:5], first[5:], *told(sampler, UPDATES[1:-1])]
    with LocalSampler(agents(), game, seed=1, staleness=1) as sampler:
        assert told(sampler, UPDATES) == expected


@pytest.mark.parametrize("game", mostly_slow([Comings, Turns]))
@pytest.mark.parametrize("engine", mostly_slow(ENGINES))
def test_every_engine_and_kind_of_worker_gives_the_same(game: Any, engine: Any) -> None:
    how = {"seed": 1, "staleness": 1, "check": None}
    with LocalSampler(agents(), game, **how) as sampler:
        expected = told(sampler, UPDATES)
    with MultiprocessingSampler(agents(), game, **how, n_workers=2, **engine) as sampler:
        assert told(sampler, UPDATES) == expected


class Picky(Chooser):
    def set_param_values(self, values: tuple[int]) -> None:
        if values[0] > 8:
            raise ValueError("too large")
        super().set_param_values(values)


@given(
    st.lists(st.sampled_from([*UPDATES, {"red": (9,)}, {"red": (4,), "blue": (9,)}]), min_size=2, max_size=8),
    st.sampled_from([{}, rows(2)]),
)  # fmt: skip
@costly(2)
def test_after_an_update_that_is_refused_batches_have_the_parameters_before(updates: Any, kind: Any) -> None:
    """A refused update is none: as if it had not been passed."""

    def batches(kind: Any, *, lag: int) -> list[Any]:
        found: list[Any] = []
        agents, how = {"red": Picky(), "blue": Picky()}, {"seed": 1, "staleness": lag, "check": None}
        with LocalSampler(agents, Comings, **how, **kind) as sampler:
            for update in updates:
                try:
                    found.append(sampler.obtain_trajectories(3, agent_update=update))
                except RolloutError as error:
                    found.append(type(error))
        return found

    assert batches(kind, lag=1) == batches({}, lag=1)
    assert batches(kind, lag=0) == batches({}, lag=0)


class Dying(Comings):
    """Kills its process in steps of some trajectories, once in each."""

    def __init__(self, folder: Path, every: int = 5) -> None:
        super().__init__()
        self.folder, self.every = folder, every

    def begin(self, seed: Any) -> None:
        super().begin(seed)
        self.seed = seed

    def step(self, actions: Any) -> Any:
        self.die()
        return super().step(actions)

    def die(self) -> None:
        if self.t == 3 and self.seed % self.every == 0:
            with contextlib.suppress(FileExistsError):
                (self.folder / str(self.seed)).touch(exist_ok=False)
                os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize("kind", mostly_slow([rows(2), {}]))
def test_a_worker_that_dies_changes_nothing(kind: Any, tmp_path: Path) -> None:
    how = {"seed": 1, "staleness": 1, "check": None}
    with LocalSampler(agents(), Comings, **how) as sampler:
        expected = told(sampler, UPDATES)
    how |= {"n_workers": 2, "max_restarts": 99}
    with MultiprocessingSampler(agents(), lambda: Dying(tmp_path), **how, **kind) as sampler:
        assert told(sampler, UPDATES) == expected
    assert len(list(tmp_path.iterdir())) >= 3
