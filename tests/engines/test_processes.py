"""The engine of processes: what it shares with workers, reads, keeps and frees."""

import gc
import itertools
import os
import signal
import threading
import weakref
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import EnvManager, MultiprocessingSampler, RandomAgent, VecWorker
from streamsampler.core.serialization import Payload, dumps_report, loads_report
from streamsampler.core.times import Times
from streamsampler.data.trees import equal
from streamsampler.engines.base import Died
from streamsampler.engines.processes.shared_memory import ArenaReader, ArenaWriter, Regions, anonymous_file
from streamsampler.engines.processes.wire import (
    INLINE_LIMIT,
    MessageReader,
    frame,
    pack,
    pack_answer,
    send,
    unpack,
    unpack_answer,
)
from streamsampler.protocol.messages import Phase, Report, Ticket
from streamsampler.testing import FailPoint, ScriptedAgent, ScriptedEnv
from streamsampler.workers.board import StatusBoard, board_bytes
from tests.faults.undisturbed import SEED, calls, undisturbed
from tests.patience import PATIENCE


@pytest.fixture
def arena():
    fd = anonymous_file("test")
    yield ArenaWriter(fd), ArenaReader(fd)
    os.close(fd)


def bytes_at(reader, region):
    memory, start = reader.look(region)
    return memoryview(memory)[start : start + region.size]


@given(st.data())
def test_regions_never_overlap_and_low_ones_are_used_again(data):
    regions, used = Regions(), []
    for _ in range(data.draw(st.integers(0, 40))):
        if used and data.draw(st.booleans()):
            regions.give_back(used.pop(data.draw(st.integers(0, len(used) - 1))))
        else:
            used.append(regions.allocate(data.draw(st.integers(1, 1000))))
        spans = sorted((region.offset, region.offset + region.size) for region in used)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))
        assert all(region.offset % 64 == 0 for region in used)
        assert regions.end == max((end for _, end in spans), default=0)
    for region in used:
        regions.give_back(region)
    region = regions.allocate(10)
    assert region.offset == 0
    regions.give_back(region)
    with pytest.raises(KeyError):
        regions.give_back(region)


def test_what_is_written_outlives_the_mapping_that_the_arena_outgrows(arena):
    writer, reader = arena
    first = writer.write([memoryview(bytes([number % 256]) * 3) for number in range(2000)])  # more than one call takes
    view = bytes_at(reader, first)
    arrays = [writer.allocate((size,), np.dtype(np.uint8)) for size in (10, 20_000_000, 50_000_000)]
    for number, array in enumerate(arrays):
        array[:] = number + 1
    regions = [writer.lent_region(array.data) for array in arrays[1:]]
    assert [set(np.frombuffer(bytes_at(reader, region), np.uint8)[::4096]) for region in regions] == [{2}, {3}]
    assert bytes(view) == bytes(reader.read(first)) == b"".join(bytes([number % 256]) * 3 for number in range(2000))


def test_arrays_of_a_report_outlive_their_reader(arena):
    """A worker dies, and its arena is closed, while its last report waits for the batch to be joined."""
    writer, reader = arena
    data = np.arange(10_000.0)
    contents, buffers = dumps_report(data, None)
    array = loads_report(contents, [reader.look(writer.write(buffers))])
    mapping = weakref.ref(reader._map)
    reader.close()
    assert not mapping().closed, "or reading the array is a segmentation fault"
    np.testing.assert_array_equal(array, data)
    del array
    assert mapping() is None


def test_a_full_memory_is_an_error_and_takes_nothing():
    with open("/dev/full", "wb") as full:
        writer = ArenaWriter(full.fileno())
        with pytest.raises(OSError, match=r"space|seek"):
            writer.write([memoryview(b"x" * 100)])
        assert writer._regions.end == 0


def test_an_array_whose_last_view_goes_late_frees_nothing_of_the_one_in_its_place(arena):
    """What was sent and given back may wait for the garbage collector, while the next report is recorded there."""
    writer, _ = arena
    late = writer.allocate((100, 1000), np.dtype(np.int64))
    sent = writer.lent_region(late.data.cast("B"))
    writer.transfer(sent)
    writer.give_back(sent)
    array = writer.allocate((100, 1000), np.dtype(np.int64))
    array[:] = 7
    del late
    writer.write([memoryview(b"x" * array.nbytes)])
    assert (array == 7).all()
    assert writer.lent_region(array.data.cast("B")) == sent


def test_what_was_recorded_in_the_arena_is_sent_without_a_copy(arena):
    writer, reader = arena
    array = writer.allocate((100, 1000), np.dtype(np.int64))
    array[:60] = np.arange(60_000).reshape(60, 1000)
    sent = writer.lent_region(array[:60].data.cast("B"))
    assert writer.lent_region(array[1:].data.cast("B")) is None, "only the beginning of an array is known"
    assert writer.lent_region(np.zeros(100_000, np.uint8).data.cast("B")) is None
    message = frame(pack_answer(b"", None, None, [sent, memoryview(b"next to it")]), writer.write)
    assert len(message) < 200
    writer.transfer(sent)
    _, _, _, ((rows, start), (other, place)), regions = unpack_answer(message, reader.look)
    assert regions == [sent]
    assert (start, other[place:]) == (sent.offset, b"next to it")
    array[0, 0] = 77  # it is the very memory
    assert np.frombuffer(rows, np.int64)[:2].tolist() == [77, 1]
    # The rest of the array is free already, the sent part when it is given back and not before.
    assert writer._regions.end == sent.size
    del array
    assert writer._regions.end == sent.size
    writer.give_back(sent)
    assert writer._regions.end == 0
    never_sent = writer.allocate((100, 1000), np.dtype(np.uint8))
    row = never_sent[3]
    del never_sent
    assert writer._regions.end == 100_000, "its last view is there"
    del row
    assert writer._regions.end == 0


@given(sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=20))
def test_what_is_packed_comes_out_again(sizes):
    head = b"head" * 3
    buffers = [np.random.default_rng(size).bytes(size) for size in sizes]
    out_head, out_buffers = unpack(memoryview(b"".join(pack(Payload(head, tuple(buffers))))))
    assert bytes(out_head) == head
    assert [bytes(buffer) for buffer in out_buffers] == buffers


@pytest.mark.parametrize("size", [10, INLINE_LIMIT - 200, INLINE_LIMIT * 2, 1_000_000])
def test_small_messages_carry_their_payload_and_large_ones_say_where_it_is(arena, size):
    writer, reader = arena
    payload = np.arange(size, dtype=np.uint8)
    message = frame(pack_answer(b"h", None, None, [payload.data]), writer.write)
    assert len(message) < 4096 - 4, "written in one piece"
    records, _, _, ((memory, start),), regions = unpack_answer(message, reader.look)
    assert records == b"h"
    assert np.array_equal(np.frombuffer(memory, np.uint8, size, start), payload)
    assert (regions == []) == (size < INLINE_LIMIT)


@pytest.mark.parametrize("inline_limit", [-1, 100_000])
def test_an_answer_comes_out_with_all_its_arrays(arena, inline_limit):
    writer, reader = arena
    arrays = [np.arange(7.0), np.zeros((0, 3)), np.arange(100, dtype=np.int8), np.ones((2, 3), "?"), np.zeros(0)]
    report = Report(Ticket(3, range(10, 40, 3), 2), n_timesteps=5, seconds=Times(1.5, step=0.1), lost_timesteps=2)
    contents, buffers = dumps_report(arrays, None)
    message = frame(pack_answer(b"log", report, contents, buffers), writer.write, inline_limit)
    records, answer, again, places, regions = unpack_answer(message, reader.look)
    assert (records, answer, again) == (b"log", report, contents)
    assert isinstance(answer, Report)
    assert isinstance(answer.seconds, Times)
    assert bool(regions) == (inline_limit < 0)
    assert all(map(equal, loads_report(contents, places), arrays))


def test_messages_through_a_pipe():
    """Also one that is longer than the pipe; one that its writer's end cuts short is no message."""
    read_end, write_end = os.pipe()
    messages, found = [b"", b"x", b"y" * 4000, b"a" * 10, b"b" * 200_000, b"c"], []

    def write():
        for message in messages:
            send(write_end, message)
        os.write(write_end, b"\x10\x00\x00\x00abc")
        os.close(write_end)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    reader = MessageReader(read_end, 100_000)
    while (read := reader.read()) is not None:
        found += read
    assert found == messages
    assert reader.read() is None
    thread.join()
    os.close(read_end)


def test_the_board():
    board = StatusBoard(memoryview(bytearray(board_bytes(2))))
    row = board.row(1)
    assert row.may_run(0)
    board.abandon_older(3)
    assert (row.may_run(3), row.may_run(2)) == (True, False)
    row.begin_ticket(3)
    row.begin_trajectory(0)
    row.set_phase(Phase.STEP)
    row.words[row.timesteps_word] = 17
    seen = board.progress(1)
    assert (seen.version, seen.timesteps, seen.trajectory, seen.phase) == (3, 17, 0, Phase.STEP)
    assert board.progress(0).trajectory is None
    row.end_ticket(0)
    assert (board.progress(1).trajectory, board.progress(1).timesteps) == (None, 0)
    board.abandon_all()
    assert not row.may_run(10**18)
    board.clear(1)
    assert board.progress(1).version == 0


def test_the_last_answers_of_a_dead_worker_are_read_also_where_its_death_is_seen_first(tmp_path, monkeypatch):
    with FailPoint("sent", worker=0, occurrence=1, folder=tmp_path).armed():
        sampler = MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1, seed=SEED)
    with sampler:
        engine: Any = sampler._life.session.engine
        select, workers = engine._selector.select, [engine._links[0].child]

        def deaths_first(timeout):
            while workers:
                assert workers.pop().ended(120)
            return sorted(select(timeout), key=lambda ready: not ready[0].data[1])

        monkeypatch.setattr(engine._selector, "select", deaths_first)
        assert calls(sampler) == undisturbed()
        assert sampler.stats.restarts == 1
        assert sampler.stats.lost_timesteps == 0, "nothing was run a second time"


class LargeAgent(ScriptedAgent):
    """Takes updates of a megabyte."""

    def set_param_values(self, values):
        assert values.nbytes == 1 << 20


def test_the_memory_of_an_old_update_is_used_again():
    with MultiprocessingSampler(LargeAgent(), ScriptedEnv, n_workers=2) as sampler:
        for call in range(12):
            sampler.obtain_trajectories(4, agent_update=np.full(1 << 17, float(call)))
        engine: Any = sampler._life.session.engine
        size = os.fstat(engine._shared.updates_fd).st_size
    assert size < 4 << 20, "the one in force, and those that some worker may still read"


@pytest.mark.usefixtures("patient")
def test_who_is_started_after_the_end_of_all_ends_too():
    """Another thread may be about to replace a dead worker. It would wait for the new one, whatever that one does."""
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1) as sampler:
        engine = sampler._life.session.engine
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        assert engine.wait(PATIENCE) == [Died(0, -signal.SIGKILL)]
        engine.kill()
        engine.restart(0)
        assert engine.wait(PATIENCE) == [Died(0, -signal.SIGKILL)]


def telling_env():
    """Return a class whose infos tell the package's modules that its process, a fork, has imported itself.

    As a class of this module it would bring what this module imports.
    """

    class Telling(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Box(-1, 1, (1,)), gymnasium.spaces.Discrete(2)

        def _told(self):
            # The fork server froze what it had: the collector knows what is newer alone.
            names = [module.__name__ for module in gc.get_objects() if isinstance(module, ModuleType)]
            return {"imported": " ".join(name for name in names if name.startswith("streamsampler"))}

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(1, np.float32), self._told()

        def step(self, action):
            return np.zeros(1, np.float32), 0.0, True, False, self._told()

    return Telling


ONE: dict[str, Any] = {"n_workers": 1, "seed": SEED}
TWO: dict[str, Any] = {"n_envs": 2}


@pytest.mark.parametrize(
    "options",
    [{}, {"worker_class": VecWorker, "worker_args": TWO}, {"inference": "parent", "worker_args": TWO}],
    ids=["DefaultWorker", "VecWorker", "parent"],
)
def test_a_worker_imports_no_module_of_the_package(options):
    with MultiprocessingSampler(RandomAgent(), telling_env(), max_episode_length=1, **ONE, **options) as sampler:
        for batch in sampler.obtain_exact_trajectories(2), sampler.obtain_fragments(2):
            told = [*batch.episode_infos["imported"], *batch.env_infos["imported"]]
            assert set(told) == {""}


def test_a_process_of_environments_imports_no_module_of_the_package():
    with EnvManager([telling_env()] * 2, **ONE) as manager:
        assert set(manager.reset().infos["imported"]) == {""}
        assert set(manager.step(manager.random_actions()).infos["imported"]) == {""}
