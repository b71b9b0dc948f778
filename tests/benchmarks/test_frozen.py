"""The agents of bare loops: they act as the library's, and bare loops have no others."""

import pathlib
import re

import numpy as np
import pytest

from benchmarks.contenders import batched_bare
from benchmarks.problems import frozen
from benchmarks.problems.workloads import WORKLOADS

OWN = [name for name, workload in WORKLOADS.items() if workload.make_bare_agent is not None]
KINDS = {"agent_numpy_500": frozen.FrozenMlpAgent}


def test_bare_loops_ask_for_their_own_agent():
    folder = pathlib.Path(batched_bare.__file__).parent
    for name in ("bare", "batched_bare", "bare_several", "least"):
        code = (folder / f"{name}.py").read_text()
        assert "make_agent" not in code
        assert "bare_agent()" in code
    assert len(OWN) == 5
    plain = WORKLOADS["cheap_20"]
    assert type(plain.bare_agent()) is type(plain.make_agent())


def test_frozen_agents_use_nothing_of_the_library():
    assert not re.search(r"^\s*(from|import) streamsampler", pathlib.Path(frozen.__file__).read_text(), re.MULTILINE)


@pytest.mark.extras
@pytest.mark.parametrize("name", OWN)
def test_frozen_agents_act_as_the_librarys(name):
    pytest.importorskip("torch")
    ours, bare = WORKLOADS[name].make_agent(), WORKLOADS[name].bare_agent()
    assert type(bare) is KINDS.get(name, frozen.FrozenTorchAgent)
    copy = frozen.as_in_a_worker(ours)
    size = {"cheetah": 17, "pendulum": 3}.get(name.removeprefix("agent_"), 4)
    random = np.random.RandomState(0)
    for seed in (1, 2):
        for agent in (copy, bare):
            agent.reset(seed=seed)
        for n_rows in (None, 1, 8, 32, None):
            for _ in range(5):
                seen = random.standard_normal(size if n_rows is None else (n_rows, size)).astype(np.float32)
                ask = "get_action" if n_rows is None else "get_actions"
                (action, infos), (expected, expected_infos) = (getattr(agent, ask)(seen) for agent in (bare, copy))
                assert type(action) is type(expected)
                np.testing.assert_array_equal(action, expected)
                assert infos.keys() == expected_infos.keys()
                for key, values in infos.items():
                    np.testing.assert_array_equal(values, expected_infos[key])


@pytest.mark.extras
def test_a_bare_loop_runs_with_its_own_agent():
    pytest.importorskip("torch")
    loop = batched_bare.BatchedLoop(WORKLOADS["agent_pendulum"], 2, 1)
    assert type(loop.agent) is frozen.FrozenTorchAgent
    assert loop(60.0, 400)[:2] == (400, 2)
