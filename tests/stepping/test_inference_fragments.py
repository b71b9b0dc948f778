"""With the agent here: environments that cannot be restored, losses beyond the quota, hangs and Ctrl-C.

Episodes end, or trajectories are run again.
"""

from __future__ import annotations

import functools
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

from streamsampler import Limits, NewEnvUpdate
from streamsampler.errors import RolloutError, WorkerDiedError
from streamsampler.samplers.call import Call
from streamsampler.stepping.inference.environments import Environments
from streamsampler.stepping.process_transport import ProcessTransport
from streamsampler.testing import Fault, Faults
from tests.fragments.agents import Alone, Drawn, Fleeting, Restorable, Sticky
from tests.stepping.conftest import kill
from tests.stepping.environments import Strolling
from tests.stepping.test_inference import Exact, InBlocks, Mistaken, in_parent, reference
from tests.tiers import mostly_slow

AGENTS = [Fleeting, Drawn]  # each at its own pace, all together


class Long(Sticky):
    """Has long episodes. Where there is a file with its seed's name, it is another one, or raises once, as that says.

    Args:
        folder: Where files are.
    """

    def __init__(self, folder: Any) -> None:
        self.folder = folder

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.length, self.file = 1000, self.folder / str(seed)
        self.how = self.file.read_text() if self.file.exists() else ""
        self.offset = np.float32(os.getpid() if self.how == "begins elsewhere" else 0.0)
        return self.observe() + self.offset, {}

    def step(self, action: int) -> Any:
        if self.how == "raises" and self.t == 5:
            raise OSError("no licence is left")
        observation, *rest = super().step(action)
        return observation + self.offset + (self.t == 20 and self.how == "ends elsewhere"), *rest


def three(agent: Any, folder: Any, **options: Any) -> Any:
    """Return a sampler of three environments in three processes."""
    return in_parent(agent, functools.partial(Long, folder), 3, 3, **{"max_restarts": None, **options})


def two_calls(sampler: Any, folder: Any, changed: int, how: str) -> Any:
    """Return the second of two batches, after which an environment is another one."""
    sampler.obtain_fragments(10)
    batch = sampler.obtain_fragments(10)
    assert batch.cut.all()
    (folder / str(batch.seeds[changed])).write_text(how)
    return batch


OTHER, RAISES = "the same actions did not lead to the same", "its environment raised OSError: no licence is left"
UNKNOWN = "its agent may have memory, but lacks get_state"
FOUND_OUT: list[Any] = [
    (Fleeting, "ends elsewhere", OTHER), (Drawn, "ends elsewhere", OTHER), (Alone, "ends elsewhere", UNKNOWN),
    (Fleeting, "raises", RAISES), (Drawn, "raises", RAISES),
]  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "how", "reason"), [FOUND_OUT[0], *(pytest.param(*it, marks=pytest.mark.slow) for it in FOUND_OUT[1:])]
)
def test_the_one_that_does_something_else_is_found_out_and_the_others_go_on(agent, how, reason, tmp_path, caplog):
    with three(agent(), tmp_path) as sampler:
        two_calls(sampler, tmp_path, 1, how)
        kill(sampler)
        third = sampler.obtain_fragments(10)
        failed = sampler.stats.failed_trajectories
        assert sampler.obtain_fragments(10).continued.all()
    known = agent is not Alone  # whose memory was that of the fragment that is run again
    assert third.continued.tolist() == ([True, False, True] if known else [False] * 3)
    assert failed == caplog.text.count("cannot be restored") == (1 if known else 3)
    assert reason in caplog.text
    if known:
        (tmp_path / "none").mkdir()
        with reference(agent(), functools.partial(Long, tmp_path / "none"), 3) as one:
            expected = [one.obtain_fragments(10, 3) for _ in range(3)][2]
        assert [third[row] == expected[row] for row in range(3)] == [True, False, True]


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize(("limit", "lost"), [(8, 3), (9, 0)])
@pytest.mark.slow
def test_longer_episodes_are_not_restored(agent, limit, lost, tmp_path, caplog):
    """Nor can others be taken back that are as long."""
    with three(agent(), tmp_path) as sampler:
        for _ in range(3):
            sampler.obtain_fragments(3, restore_limit=limit)
        kill(sampler, 0)
        batch = sampler.obtain_fragments(3, restore_limit=limit)
        assert sampler.stats.failed_trajectories == caplog.text.count("too long to be restored") == lost
    assert batch.continued.tolist() == [not lost] * 3


def killing_while(env_id: int, then: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose a process once, when an environment that is being taken back is asked for its third step.

    What was lost is restored before that step's result is waited for.
    """
    n_steps, original = [0], Environments.step

    def step(self: Environments, env_ids: Any, actions: Any) -> None:
        original(self, env_ids, actions)
        if list(env_ids) == [env_id] and not self.scheduler.restoring:
            n_steps[0] += 1
            if n_steps[0] == 3:
                n_losses = len(self.losses)
                then()
                while len(self.losses) == n_losses:
                    self.handle_events(None)
                while self.scheduler.restoring:
                    self.handle_events(None)

    monkeypatch.setattr(Environments, "step", step)


@pytest.mark.parametrize(
    ("agent", "changed", "changed_later", "continued"),
    [
        (Fleeting, 2, 0, [False, True, False]),  # found out while another one is taken back, which is not to blame
        (Drawn, 2, 0, [False, True, False]),
        (Fleeting, 0, None, [False, True, True]),  # what was given up is not wanted back
    ],
)
@pytest.mark.slow  # what is lost when depends on what has arrived by then
def test_a_second_loss_while_a_fragment_is_taken_back(agent, changed, changed_later, continued, tmp_path, monkeypatch):
    with three(agent(), tmp_path) as sampler:
        second = two_calls(sampler, tmp_path, changed, "begins elsewhere")

        def lose() -> None:
            if changed_later is not None:
                (tmp_path / str(second.seeds[changed_later])).write_text("begins elsewhere")
            kill(sampler, 0)

        killing_while(1, lose, monkeypatch)
        kill(sampler, changed)
        assert sampler.obtain_fragments(10).continued.tolist() == continued
        assert sampler.stats.failed_trajectories == continued.count(False)
        assert sampler.stats.restarts == 2


@pytest.mark.slow
def test_a_loss_beyond_the_quota_while_a_fragment_is_taken_back(tmp_path, monkeypatch):
    with three(Fleeting(), tmp_path, max_restarts=1) as sampler:
        two_calls(sampler, tmp_path, 2, "begins elsewhere")
        killing_while(1, lambda: kill(sampler, 1), monkeypatch)
        kill(sampler, 2)
        with pytest.raises(WorkerDiedError, match="max_restarts is 1"):
            sampler.obtain_fragments(10)
        assert not sampler.obtain_fragments(3).continued.any()


class Refusing(Long):
    """Raises in the twelfth step of one of its episodes, once."""

    def step(self, action: int) -> Any:
        if self.t == 12 and not (file := self.folder / "raised").exists():
            file.touch()
            raise ConnectionError("not there yet")
        return super().step(action)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.slow
def test_exceptions_that_count_as_losses(agent, tmp_path):
    batches = []
    for make in (reference, in_parent):
        (folder := tmp_path / make.__name__).mkdir()
        with make(agent(), functools.partial(Refusing, folder), n_envs=3, restart_on=ConnectionError) as sampler:
            batches.append([sampler.obtain_fragments(10, 3) for _ in range(2)])
            if make is in_parent:
                kill(sampler)
            batches[-1].append(sampler.obtain_fragments(10, 3))
    assert batches[0] == batches[1]
    assert batches[0][2].continued.all()


def test_ctrl_c_while_processes_are_ended(monkeypatch):
    """As a second one, where the call after the first begins with other processes."""
    with in_parent(Fleeting(), Sticky) as sampler:
        sampler.obtain_fragments(2)
        close, engine = ProcessTransport.close, sampler._life.session.engine

        def interrupted(self: ProcessTransport) -> None:
            monkeypatch.setattr(ProcessTransport, "close", close)
            close(self)
            raise KeyboardInterrupt

        monkeypatch.setattr(ProcessTransport, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.close()
        engine.close()


class Uneven(Sticky):
    """Has long episodes. The second environment's first step waits until the first one has taken ten, only once.

    Args:
        fifo: Through which the first environment tells that; it is gone afterwards.
        worker_number: Which environment it is.
    """

    def __init__(self, fifo: Any, worker_number: int = 0) -> None:
        self.fifo, self.is_first = fifo, worker_number == 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        found = super().reset(seed=seed)
        self.length = 1000
        return found

    def step(self, action: int) -> Any:
        if self.fifo.exists() and not self.is_first and self.t == 0:
            self.fifo.read_text()
            self.fifo.unlink()
        found = super().step(action)
        if self.fifo.exists() and self.is_first and self.t == 10:
            self.fifo.write_text("ten")
        return found


class KillingLater(Fleeting):
    """Kills a process when it is asked so many times after a file is gone."""

    kill: Any = None
    fifo: Any = None
    n_asked = 0

    def get_actions(self, observations: Any, *, draws: Any) -> Any:
        self.n_asked += self.fifo is not None and not self.fifo.exists()
        if self.n_asked == 5 and self.kill is not None:
            kill, self.kill = self.kill, None
            kill()
        return super().get_actions(observations, draws=draws)


def test_a_loss_of_an_environment_that_has_taken_all_its_timesteps(tmp_path):
    """Its episode goes on in the next call, though nothing more is asked of it in this one."""
    fifo, agent = tmp_path / "fifo", KillingLater()
    os.mkfifo(fifo)
    kwargs = {"fifo": fifo}
    with in_parent(agent, Uneven, n_envs=2, env_kwargs=kwargs) as sampler:
        agent.kill, agent.fifo = lambda: kill(sampler, 0), fifo
        found = [sampler.obtain_fragments(10) for _ in range(2)]
        assert agent.kill is None
        assert (sampler.stats.restarts, sampler.stats.failed_trajectories) == (1, 0)
    with reference(Fleeting(), Uneven, n_envs=2, env_kwargs=kwargs) as sampler:
        assert found == [sampler.obtain_fragments(10, 2) for _ in range(2)]


class Killing(Drawn):
    """Kills a process when all rows have been asked for 32 times; whether they are independent is given."""

    def __init__(self, row_independent: bool = False) -> None:
        super().__init__()
        self.row_independent = row_independent
        self.kill: Any = None
        self.n_asked = 0

    def get_actions(self, observations: Any, *, starts: Any, draws: Any) -> Any:
        self.n_asked += 1
        if self.n_asked == 32 and self.kill is not None:
            self.kill()
        return super().get_actions(observations, starts=starts, draws=draws)


class Anew(Sticky):
    """Does something else, or raises once in its third timestep, where it was made anew."""

    def __init__(self, file: Any, how: str, worker_number: int = 0) -> None:
        self.how = how if file.exists() else ""
        self.worker_number = worker_number

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.length = 40
        return self.observe() + np.float32(self.how == "changes"), {}

    def step(self, action: int) -> Any:
        if self.how == "raises" and self.t == 2:
            self.how = ""
            raise OSError("no licence is left")
        observation, *rest, _ = super().step(action)
        observation = observation + np.float32(self.how == "changes")
        return observation, *rest, {"bad": self.worker_number == 0 and self.t == 3, "t": self.t}


@pytest.mark.parametrize(("how", "in_lanes"), mostly_slow([("changes", True), ("changes", False), ("raises", False)]))
def test_trajectories_that_cannot_be_restored_are_run_again_from_their_seeds(how, in_lanes, tmp_path, caplog):
    agent, file = Killing(in_lanes), tmp_path / "made"
    kwargs = {"file": file, "how": how}
    with in_parent(agent, Anew, n_envs=2, env_kwargs=kwargs) as sampler:
        agent.kill = lambda: (file.touch(), kill(sampler, 0))
        found = sampler.obtain_trajectories(2)
        stats = sampler.stats
        assert stats.lost_timesteps >= (9 if in_lanes else 40)  # in lanes it was asked some times to see what it is
        assert sum(stats.worker_timesteps) == stats.kept_timesteps + stats.lost_timesteps + stats.abandoned_timesteps
    # With "changes" it ran in what took the environment's place.
    kwargs = {"file": file if how == "changes" else tmp_path / "none", "how": how}
    with reference(Killing(in_lanes), Anew, n_envs=2, env_kwargs=kwargs) as sampler:
        expected = sampler.obtain_trajectories(2)
    both = zip(found, expected, strict=True)
    assert [np.array_equal(one.observations, other.observations) for one, other in both] == [True, how == "raises"]
    assert {"raises": "raised when its actions were repeated", "changes": "behaved differently"}[how] in caplog.text
    assert "Trajectories in flight are run again" in caplog.text


def test_a_trajectory_that_was_left_out_is_not_wanted_back(tmp_path):
    agent, file = Killing(), tmp_path / "made"
    kwargs = {"file": file, "how": "changes"}
    with in_parent(agent, Anew, n_envs=2, env_kwargs=kwargs, drop_if=lambda info: info.get("bad")) as sampler:
        agent.kill = lambda: (file.touch(), kill(sampler, 0))
        batch = sampler.obtain_trajectories(1)
        assert batch.indices.tolist() == [1]
        assert agent.n_asked >= 40


@pytest.mark.slow
@pytest.mark.parametrize("agent", [Restorable, Fleeting])
def test_two_hundred_kills_in_fragments_change_nothing(agent):
    limits: dict[str, Any] = {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)}
    with reference(agent(), Sticky) as one, in_parent(agent(), Sticky, 3, **limits) as sampler:
        for call in range(68):
            assert sampler.obtain_fragments(12) == one.obtain_fragments(12, 4)
            assert sampler.stats.restarts == 3 * call
            kill(sampler)


@pytest.mark.slow
def test_losses_beyond_the_quota_are_one_error_that_lists_them(tmp_path):
    """Also while environments are made, where the error names no trajectory."""
    step = r"SIGKILL.*environment \d ran trajectory \d; that is 3 losses"
    for where, match in (("step", step), ("construct", "SIGKILL")):
        faults = Faults(tmp_path / where, Fault("kill", where, times=None))  # type: ignore[arg-type]
        with in_parent(Exact(), faults.env(Strolling), max_restarts=2) as sampler:
            with pytest.raises(WorkerDiedError, match=match) as caught:
                sampler.obtain_trajectories(20)
            assert len(caught.value.incidents) == 3
            assert "max_restarts is 2" in str(caught.value)
            assert where == "step" or sampler.worker_pids() == []
            assert (caught.value.trajectory is None) == (where == "construct")
            assert len(sampler.obtain_trajectories(20, env_update=NewEnvUpdate(Strolling))) == 20


@pytest.mark.slow
def test_environments_that_hang_once(tmp_path):
    faults = Faults(tmp_path, Fault("hang", "step"), Fault("hang", "construct"))
    limits: dict[str, Any] = {"step_timeout": 2.0, "limits": Limits(construction_timeout=3.0), "max_restarts": None}
    with reference(Exact(), Strolling) as one, in_parent(Exact(), faults.env(Strolling), **limits) as sampler:
        assert sampler.obtain_trajectories(20) == one.obtain_trajectories(20)
        assert sampler.stats.hangs > 0  # to lose others as well, which were slow, changes nothing


class Stuck(Strolling):
    """In process 1 never ends a step before the agent has raised."""

    def __init__(self, folder, worker_number=0):
        super().__init__(30)
        self.is_stuck = worker_number == 1 and not (folder / "raised").exists()

    def step(self, action):
        if self.is_stuck:
            threading.Event().wait()
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("call", ["obtain_trajectories", "obtain_fragments"])
def test_an_environment_that_hangs_holds_up_no_error_of_the_agent_and_no_later_call(call, tmp_path, stuck_soon):
    def once(_):
        (tmp_path / "raised").touch()
        raise OverflowError("once is enough")

    with in_parent(Mistaken(once, 2.0), Stuck, n_envs=2, env_kwargs={"folder": tmp_path}) as sampler:
        with pytest.raises(RolloutError, match=r"in trajectory 0 .*once is enough") as caught:
            getattr(sampler, call)(4)
        assert caught.value.original.__notes__ == ["get_actions had the observations of trajectories 0"]
        assert getattr(sampler, call)(4, agent_update=Exact()).n_timesteps > 0


@pytest.fixture
def stuck_soon(monkeypatch):
    """Let what hangs be given up after a second, where the package waits for it longer."""
    for module in ("environments", "processes"):
        monkeypatch.setattr(f"streamsampler.stepping.inference.{module}.STUCK_SECONDS", 1.0)


class Interrupting(Strolling):
    """Sends Ctrl-C to a process once, and then hangs until it is let go on."""

    def __init__(self, pid, folder):
        super().__init__(30)
        self.pid, self.folder = pid, folder

    def step(self, action):
        if not (file := self.folder / "interrupted").exists():
            file.touch()
            os.kill(self.pid, signal.SIGINT)
            threading.Event().wait()
        return super().step(action)


@pytest.mark.slow  # where it interrupts the call depends on timing
@pytest.mark.parametrize("agent", [Exact, InBlocks])
@pytest.mark.parametrize("call", ["obtain_trajectories", "obtain_fragments"])
def test_ctrl_c_ends_a_call_whose_environments_hang(agent, call, tmp_path, stuck_soon):
    """And they hold up neither the next call nor the end, however long they may take to close."""
    kwargs = {"pid": os.getpid(), "folder": tmp_path}
    with in_parent(
        agent(), Interrupting, 1, n_envs=1, env_kwargs=kwargs, limits=Limits(close_timeout=600.0)
    ) as sampler:
        with pytest.raises(KeyboardInterrupt):
            getattr(sampler, call)(5)
        assert getattr(sampler, call)(5).n_timesteps > 0


def test_after_an_interrupted_call_of_fragments_new_episodes_begin(monkeypatch):
    pump, batches = Call.pump, []

    def interrupted(*_):
        monkeypatch.setattr(Call, "pump", pump)
        raise KeyboardInterrupt

    for make in (reference, in_parent):
        with make(Fleeting(), Sticky) as sampler:
            batches.append(sampler.obtain_fragments(9, 4))
            monkeypatch.setattr(Call, "pump", interrupted)
            with pytest.raises(KeyboardInterrupt):
                sampler.obtain_fragments(9, 4)
            batches += [sampler.obtain_fragments(9, 4) for _ in range(2)]
    assert batches[:3] == batches[3:]
    assert not batches[1].continued.any()


class Late(Sticky):
    """Raises in its fourth timestep as environment 0 or 2; as 0 when 3, in the process of 2, has taken its own."""

    def __init__(self, pipe: Any, seeds: list[int]) -> None:
        super().__init__()
        self.pipe, self.seeds = pipe, seeds

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        assert seed is not None
        self.number, self.length = self.seeds.index(seed), 30
        return result

    def step(self, action: int) -> Any:
        if self.t == 3:
            descriptor = os.open(self.pipe, os.O_RDWR)
            if self.number == 3:
                os.write(descriptor, b"x")
            elif self.number == 0:
                os.read(descriptor, 1)
            os.close(descriptor)
        if self.t == 3 and self.number in (0, 2):
            raise OSError("out of order")
        return super().step(action)


@pytest.mark.parametrize("agent", [Fleeting, Drawn])
def test_of_several_that_raise_it_is_the_first_in_order_that_is_told(agent, tmp_path):
    """Whoever is first by the clock: the seed alone decides in which trajectory a call fails."""
    os.mkfifo(tmp_path / "pipe")
    kept_open = os.open(tmp_path / "pipe", os.O_RDWR)
    with reference(agent(), Sticky) as sampler:
        seeds = list(sampler.obtain_fragments(1, 4).seeds)
    with in_parent(agent(), functools.partial(Late, tmp_path / "pipe", seeds)) as sampler:
        sampler.obtain_fragments(2, 4)
        with pytest.raises(RolloutError, match=r"in trajectory 0 of agent version 1.*out of order"):
            sampler.obtain_fragments(3, 4)
    os.close(kept_open)
