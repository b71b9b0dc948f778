"""The same streams of every environment for any number of workers, in every mode, synchronous or not."""

import itertools

import pytest

from streamsampler.stepping.managers import EnvManager
from tests.proofs.restores import ENVS, N_ENVS, World, stream_of, undisturbed

QUICK = [("next_step", 3, 1), ("disabled", 2, 1), ("same_step", 7, N_ENVS)]
CASES = [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
    for case in itertools.product(("next_step", "same_step", "disabled"), (1, 2, 3, 7), (1, N_ENVS))
]


@pytest.mark.parametrize(("autoreset", "n_workers", "min_envs"), CASES)
def test_streams_are_functions_of_seed_and_actions(autoreset, n_workers, min_envs):
    world = World("maze", autoreset, n_workers, min_envs, "last", 0)
    manager = EnvManager(ENVS["maze"][0], n_envs=N_ENVS, n_workers=n_workers, seed=3, autoreset=autoreset)
    stream = stream_of(manager, world, lambda _: None)
    assert stream == undisturbed("maze", autoreset)
    assert {row[-3] for rows in stream for row in rows} > {0, 1}  # there are several episodes
