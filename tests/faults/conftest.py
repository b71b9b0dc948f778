from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler
from tests.scripted.failing import Agent, Env


def slow(*values):
    """Return a case of the slow tier."""
    return pytest.param(*values, marks=pytest.mark.slow)


# In every run this process and the default start method, everything in the slow tier.
PROCESSES = ["forkserver", slow("spawn"), slow("fork")]


@pytest.fixture(params=["local", *PROCESSES])
def engine(request):
    return request.param


@pytest.fixture
def make_sampler(engine):
    """A function that makes a sampler on the engine; all are closed in the end."""
    made: list[Any] = []

    def make(agents=None, envs=Env, n_workers=2, **options):
        agents = Agent() if agents is None else agents
        if engine == "local":
            sampler: Any = LocalSampler(agents, envs, n_workers=n_workers, seed=5, **options)
        else:
            sampler = MultiprocessingSampler(agents, envs, n_workers=n_workers, seed=5, start_method=engine, **options)
        made.append(sampler)
        return sampler

    yield make
    for sampler in made:
        sampler.close()
