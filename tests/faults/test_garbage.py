"""Native code that writes to descriptors that are not its own, and copies of a worker that come back into its code."""

import contextlib
import functools
import os
import time
from typing import Any

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.engines.processes.wire import GarbageError, MessageReader
from streamsampler.errors import WorkerDiedError
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from streamsampler.testing.fail_points import Records
from tests.faults.conftest import kill_only_hung
from tests.faults.test_ends import gone_within
from tests.faults.undisturbed import SEED, undisturbed
from tests.patience import PATIENCE

NO_MESSAGE, NO_ANSWER, HANGS = "that is no message", "sent what is no answer", "made no progress"
GARBAGE = {
    "a length without end": (b"\xff\xff\xff\x7f", NO_MESSAGE),
    "a negative length": (b"\xff\xff\xff\xff garbage", NO_MESSAGE),
    "a message of nothing": (bytes(4), NO_ANSWER),
    "a message of another kind": (b"\x05\x00\x00\x00hello", NO_ANSWER),
    "a region that is not there": (b"\x11\x00\x00\x00r" + (1 << 40).to_bytes(8, "little") + bytes([9]) * 8, NO_ANSWER),
    "half a length": (b"\x01", NO_MESSAGE),
    "half a length, and a hang": (b"\x01", HANGS),
    "half a message, and a hang": (b"\xff\x00\x00\x00half", HANGS),
}


class WritesGarbage(ScriptedEnv):
    """Writes garbage to all descriptors that there are, in the second timestep of the first environment of all."""

    def __init__(self, folder, garbage, hangs):
        super().__init__()
        self.hangs, self.steps = hangs, 0
        self.garbage = garbage if Records(folder).add(garbage.hex(), most=1) else None

    def step(self, action):
        self.steps += 1
        if self.steps == 2 and self.garbage is not None:
            for fd in range(3, 64):
                with contextlib.suppress(OSError):
                    os.write(fd, self.garbage)
            if self.hangs:
                time.sleep(1000)
        return super().step(action)


@pytest.mark.parametrize("hangs", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_garbage_is_a_loss(tmp_path, hangs, caplog):
    """Also where the worker hangs afterwards: nothing waits for the rest of a message without end."""
    kinds = [(name, garbage, word) for name, (garbage, word) in GARBAGE.items() if (word is HANGS) == hangs]
    options: dict[str, Any] = {"n_workers": 1, "seed": SEED, "step_timeout": 0.5 if hangs else PATIENCE}
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, max_restarts=None, **options) as sampler:
        kill_only_hung(sampler, Records(tmp_path).pids)
        for call, (name, garbage, word) in enumerate(kinds):
            caplog.clear()
            envs = functools.partial(WritesGarbage, str(tmp_path), garbage, hangs)
            batch = sampler.obtain_trajectories(8, agent_update={"offset": call}, env_update=envs)
            assert batch == undisturbed(len(kinds))[call], name
            assert sampler.stats.restarts == call + 1, name
            assert word in caplog.text, name


def test_a_reader_that_does_not_block():
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    reader = MessageReader(read_end)
    assert reader.read() == []
    os.write(write_end, b"\x03\x00\x00")
    assert reader.read() == []
    os.write(write_end, b"\x00abc\x01")
    assert reader.read() == [b"abc"]
    os.write(write_end, b"\x10\x00\x00")
    with pytest.raises(GarbageError, match="of 4097 bytes"):
        reader.read()
    os.close(write_end)
    os.close(read_end)


class ComesBack(ScriptedEnv):
    """Forks in its second timestep; the copy goes on as if it were the worker, which waits for the end of its copy."""

    def __init__(self):
        super().__init__()
        self.steps = 0

    def step(self, action):
        self.steps += 1
        if self.steps == 2 and (copy := os.fork()):
            # Or the call, and even the next one, might be over before the copy is noticed.
            os.waitpid(copy, 0)
        return super().step(action)


@pytest.mark.usefixtures("patient")
def test_a_copy_that_comes_back_is_an_error():
    """At once: a new worker would do the same. And the sampler is usable afterwards."""
    with MultiprocessingSampler(ScriptedAgent(), ComesBack, n_workers=2, seed=SEED) as sampler:
        pids = sampler.worker_pids()
        with pytest.raises(
            WorkerDiedError, match=r"os.fork\(\), and the copy came back .* a new worker would do the same"
        ):
            sampler.obtain_trajectories(8)
        batch = sampler.obtain_trajectories(8, agent_update={"offset": 1}, env_update=ScriptedEnv)
        assert batch == undisturbed(2)[1]
    assert gone_within(pids, 0)
