"""A trace repeats what a scheduler did: all decisions, or the error that should not be possible."""

import os
import pickle
import re
import subprocess
import sys

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.core.times import Times
from streamsampler.core.version import __version__
from streamsampler.errors import ProtocolError, StorageError, UsageError
from streamsampler.protocol import trace as traces
from streamsampler.protocol.gathering import Gathering
from streamsampler.protocol.instructions import Keep, Send
from streamsampler.protocol.plans import AtLeast, Streamed
from streamsampler.protocol.scheduler import Scheduler
from streamsampler.protocol.throughput import Throughput
from streamsampler.protocol.trace import HEADER, SchedulerTrace, pickled
from streamsampler.testing import Fault, Faults, ScriptedAgent, ScriptedEnv
from streamsampler.testing.trace import main, replay
from tests.protocol.test_scheduler import Driven

SEED = 5
SECONDS = Times(step=0.2)


class Special(Exception):
    pass


@pytest.fixture(name="file")
def traced_file(tmp_path, monkeypatch):
    path = tmp_path / "trace"
    monkeypatch.setenv("STREAMSAMPLER_TRACE", str(path))
    return path


def local(**options):
    return LocalSampler(ScriptedAgent(), ScriptedEnv, seed=SEED, **options)


def repeated(path):
    """Replay a whole trace, which is to be the same."""
    course = replay(path)
    assert course.difference is None
    assert course.n_compared
    return course


def test_calls_whose_workers_were_killed_are_repeated(file, tmp_path):
    faults = Faults(tmp_path / "faults", *(Fault("kill", trajectory=n, version=n) for n in (1, 2)), seed=SEED)
    agent, env = ScriptedAgent(), faults.env(ScriptedEnv)
    with MultiprocessingSampler(agent, env, n_workers=2, seed=SEED, restart_on=(Special,)) as sampler:
        for _ in range(3):
            sampler.obtain_trajectories(10)
    assert faults.fired() == 2
    course = repeated(file)
    assert course.calls["begin"] == course.calls["stop"] == course.calls["end"] == 3
    assert course.n_events >= 30 / 10
    assert course.error is None


def test_all_that_changes_a_scheduler_is_repeated(file, tmp_path):
    """Lags, streams, checkpoints, other environments, an agent version that is used up."""
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2, seed=SEED, staleness=1) as sampler:
        for _ in range(3):
            sampler.obtain_trajectories(10)
        state = sampler.state_dict(agents=True)
    with MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=2, seed=SEED, staleness=1) as sampler:
        sampler.load_state_dict(state)
        sampler.obtain_trajectories(10)
    with local(check="error") as sampler:
        stream = sampler.stream()
        assert [next(stream).seed for _ in range(60)]
        stream.close()
        sampler.obtain_trajectories(3, env_update=ScriptedEnv)
        sampler.advance_version()
        sampler.obtain_samples(10)
        assert sampler.agent_version == 4
    lag, loaded, other = (repeated(f"{file}{suffix}") for suffix in ("", ".2", ".3"))
    assert lag.calls["prefetch"] == 3
    assert loaded.calls["continue_from"] == 1
    assert {"pop_spans", "renew_checks", "continue_from"} <= other.calls.keys()


def test_a_call_that_was_interrupted_is_repeated_as_far_as_it_went(file):
    with local() as sampler:
        sampler.obtain_trajectories(3)
        assign = Scheduler._assign_tickets

        def interrupted(self, **options):
            if self.gathering.arrived_trajectories:
                raise KeyboardInterrupt
            return assign(self, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Scheduler, "_assign_tickets", interrupted)
            with pytest.raises(KeyboardInterrupt):
                sampler.obtain_trajectories(30)
        sampler.obtain_trajectories(3)
    assert repeated(file).calls["begin"] == 2
    assert repeated(f"{file}.2").calls["begin"] == 1


def fail(monkeypatch, limit=30):
    """Let an impossible error be raised when trajectories of a call for so many arrive."""
    receive = Gathering.receive

    def fails(self, worker, *arguments):
        if self.plan.limit == limit:
            raise ProtocolError(f"worker {worker} did what it cannot do")
        return receive(self, worker, *arguments)

    monkeypatch.setattr(Gathering, "receive", fails)


@pytest.mark.parametrize("writes", [False, True])
def test_an_impossible_error_is_repeated(writes, tmp_path, monkeypatch):
    """Its trace ends with it, whether the sampler goes on or not."""
    if writes:
        monkeypatch.setenv("STREAMSAMPLER_TRACE", str(tmp_path / "all"))
    with local() as sampler:
        sampler.obtain_trajectories(3)
        with monkeypatch.context() as patch:
            fail(patch)
            with pytest.raises(ProtocolError) as caught:
                sampler.obtain_trajectories(30)
            caught.value.save_trace(tmp_path / "saved")
            pickle.loads(pickle.dumps(caught.value)).save_trace(tmp_path / "again")
            for name in ["saved", "again", *(["all"] if writes else [])]:
                course = repeated(tmp_path / name)
                assert str(course.error) == str(caught.value) == "worker 0 did what it cannot do"
                assert "in fails" in str(course)
        assert "now:   no error" in str(replay(tmp_path / "saved").difference)
    fail(monkeypatch, limit=3)
    assert ("trace: no error" in str(replay(tmp_path / "saved").difference)) == (not writes)
    assert (tmp_path / "saved").read_bytes() == (tmp_path / "again").read_bytes()


def test_only_errors_of_calls_have_a_trace(tmp_path):
    with pytest.raises(UsageError, match="no trace"):
        ProtocolError("no").save_trace(tmp_path / "saved")


@pytest.mark.parametrize("n_events", [5, 50])
def test_a_long_trace_begins_with_a_state(n_events, tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "N_EVENTS", n_events)
    monkeypatch.setattr(traces, "_BYTES_OF_STATE", 1 << 30)
    driven = Driven(2, Streamed(), restart_on=(Special,))
    for step in range(200):
        driven.now += 0.01
        worker = step % 2
        driven.scheduler.pop_spans()
        last = driven.handle(driven.death(worker) if step % 50 == 10 else driven.report(worker, seconds=SECONDS))
    path = tmp_path / "saved"
    path.write_bytes(driven.scheduler.trace.ended_with(ProtocolError("after all")))
    course = replay(path)
    assert "no error" in str(course.difference), "it was not the scheduler's"
    assert n_events <= course.n_events <= 2 * n_events
    state, *entries, _ = entries_of(path)
    for name, *arguments in entries:
        said = getattr(state, name)(*arguments)
    assert said == last
    assert {type(it) for it in said} >= {Keep, Send}
    assert state.policy.restarts_on((f"{__name__}.Special",))


def entries_of(path):
    with path.open("rb") as file:
        file.readline()
        return list(traces.unpickled(file))


def test_lengths_of_trajectories_count_as_events():
    driven = Driven(1, AtLeast(1_000_000))
    driven.handle(driven.report(seconds=Times(step=1e-4)))
    n = len(driven.tickets()[0].indices)
    assert n > 500
    room = driven.scheduler.trace.room
    driven.handle(driven.report())
    assert room - driven.scheduler.trace.room == 1 + n // 64


def test_another_scheduler_makes_a_difference(file, monkeypatch, capsys):
    with local() as sampler:
        sampler.obtain_trajectories(3)
        sampler.obtain_trajectories(30)
    assert main([str(file)]) == 0
    assert re.search(r"^\d+ calls \(2 begin, \d+ handle, 2 stop, 2 end\), \d+ events", capsys.readouterr().out)
    monkeypatch.setattr(Throughput, "trajectories_in", lambda self, seconds, n_bytes: 1)
    assert main([str(file)]) == 1
    assert re.search(r"DIFFERENT: call \d+, handle\(.*\n  trace: \[Send.*\n  now:   \[Send", capsys.readouterr().out)


def test_a_scheduler_that_raises_makes_a_difference(file, monkeypatch):
    with local() as sampler:
        sampler.obtain_trajectories(30)
    fail(monkeypatch)
    assert "did what it cannot do" in str(replay(file).error)
    assert replay(file).difference is not None


def test_a_trace_of_a_process_that_was_killed_ends_where_it_does(file):
    with local() as sampler:
        sampler.obtain_trajectories(3)
    whole, n_compared = file.read_bytes(), repeated(file).n_compared
    file.write_bytes(whole[:-3])
    assert repeated(file).n_compared == n_compared - 1


def test_a_forked_process_writes_nothing(file):
    with local() as sampler:
        stream = sampler.stream()
        next(stream)
        before = file.read_bytes()
        pid = os.fork()
        if pid == 0:
            sampler._life.session.scheduler.end(0.0)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert file.read_bytes() == before
        stream.close()


def test_what_is_no_trace_is_refused(tmp_path, capsys):
    path = tmp_path / "trace"
    scheduler = Scheduler(1, trace=SchedulerTrace())
    whole = scheduler.trace.ended_with(ProtocolError("no"))
    for content, text in [
        (b"", "is no trace of a scheduler"),
        (b"streamsampler\n" + whole, "is no trace of a scheduler"),
        (
            whole.replace(__version__.encode(), b"0.0.7", 1),
            rf"was recorded by streamsampler 0.0.7, but this is {__version__}",
        ),
        (HEADER + __version__.encode() + b"\n", "ends before the first call"),
        (HEADER + __version__.encode() + b"\nno pickle", "cannot be read: UnpicklingError"),
    ]:
        path.write_bytes(content)
        with pytest.raises(StorageError, match=text):
            replay(path)
        assert main([str(path)]) == 2
        assert capsys.readouterr().err.startswith(f"error: {path}")
    assert main([str(tmp_path / "none")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_file_that_cannot_be_made_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("STREAMSAMPLER_TRACE", str(tmp_path / "none" / "trace"))
    with pytest.raises(UsageError, match=r"STREAMSAMPLER_TRACE: .*No such file"):
        local()


def test_the_command(file):
    with local() as sampler:
        sampler.obtain_trajectories(3)
    command = [sys.executable, "-m", "streamsampler.testing.trace"]
    told = subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout
    assert "you trust" in " ".join(told.split())
    told = subprocess.run([*command, str(file)], capture_output=True, text=True, check=True).stdout
    assert "the same as in the trace" in told


def test_exception_types_are_known_by_their_names():
    policy = Driven(1, restart_on=(Special, OSError)).scheduler.policy
    copy = pickle.loads(pickled(policy))
    assert copy.restarts_on((f"{__name__}.Special",))
    assert copy.restarts_on(("builtins.OSError",))
    assert not copy.restarts_on(("builtins.ValueError",))
    assert Special not in copy.restart_on
