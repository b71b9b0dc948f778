"""Whole trajectories between fragments end the episodes that go on, and a warning says so, once."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, evaluate, sample_to_folder
from tests.fragments.agents import Fleeting, Sticky

BETWEEN: dict[str, Any] = {
    "trajectories": lambda sampler, folder: sampler.obtain_trajectories(2),
    "samples": lambda sampler, folder: sampler.obtain_samples(5),
    "exact": lambda sampler, folder: sampler.obtain_exact_trajectories(1),
    "stream": lambda sampler, folder: list(itertools.islice(sampler.stream(), 2)),
    "evaluate": lambda sampler, folder: evaluate(sampler=sampler, num_trajectories=3),
    "folder": lambda sampler, folder: sample_to_folder(sampler, folder / "it", n_trajectories=3, shard_size=9),
}
WORDS = "since its last call this sampler has run whole trajectories"


class Walker(Fleeting):
    """Is asked for one action at a time, too."""

    def get_action(self, observation: Any) -> Any:
        return 0, {}


KINDS: dict[str, Any] = {
    "local": lambda **options: LocalSampler(Walker(), Sticky, **options),
    "processes": lambda **options: MultiprocessingSampler(Walker(), Sticky, n_workers=2, **options),
    "parent": lambda **options: MultiprocessingSampler(Fleeting(), Sticky, n_workers=2, inference="parent", **options),
}


@pytest.mark.parametrize(
    ("kind", "between"),
    [
        # By default each call in one process, and the call of learners in all kinds. Folders refuse blocks.
        pytest.param(kind, between, marks=[pytest.mark.slow] * (kind != "local" and between != "evaluate"))
        for kind, between in itertools.product(KINDS, BETWEEN)
        if (kind, between) != ("parent", "folder")
    ],
)
def test_the_next_fragments_warn_once_and_name_a_second_sampler(
    kind: str, between: str, caplog: Any, tmp_path: Path
) -> None:
    with KINDS[kind](seed=1, check=None) as sampler:
        first = sampler.obtain_fragments(5, 4)
        BETWEEN[between](sampler, tmp_path)
        assert WORDS not in caplog.text  # perhaps no fragments follow
        second = sampler.obtain_fragments(5, 4)
        assert first.cut.any()
        assert not second.continued.any()
        assert caplog.text.count(WORDS) == 1
        assert "on a second sampler" in caplog.text
        sampler.obtain_trajectories(1)
        sampler.obtain_fragments(5, 4)
        assert caplog.text.count(WORDS) == 1


def test_nothing_is_said_where_nothing_was_ended_or_it_was_asked_for(caplog: Any) -> None:
    with LocalSampler(Walker(), Sticky, seed=1, check=None) as sampler:
        sampler.obtain_trajectories(2)
        sampler.obtain_fragments(5, 4)
        assert sampler.obtain_fragments(5, 4, agent_update=np.array([0.1])).continued.any()
        batch = sampler.obtain_fragments(45, 4)
        began = int(np.flatnonzero(~batch.continued)[0])
        assert sampler.replay(4, int(batch.indices[began]), recorded=batch).same
        assert sampler.obtain_fragments(5, 4).continued.any()
        sampler.obtain_trajectories(2)
        sampler.obtain_fragments(5, 4, env_update=Sticky)
        sampler.obtain_fragments(5, 4)
    assert not caplog.text
