"""With the agent here, environments that cannot be restored: episodes end, or trajectories are run again."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import pytest

from streamsampler.errors import WorkerDiedError
from streamsampler.stepping.inference.environments import Environments
from streamsampler.stepping.processes import ProcessTransport
from tests.fragments.agents import Alone, Drawn, Fleeting, Sticky
from tests.stepping.conftest import kill
from tests.stepping.test_inference import in_parent, reference

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
UNKNOWN = "its agent may remember something, and has no get_state"
FOUND_OUT: list[Any] = [
    (Fleeting, "ends elsewhere", OTHER), (Drawn, "ends elsewhere", OTHER), (Alone, "ends elsewhere", UNKNOWN),
    (Fleeting, "raises", RAISES), (Drawn, "raises", RAISES),
]  # fmt: skip


@pytest.mark.parametrize(
    ("agent", "how", "reason"),
    [FOUND_OUT[0], *(pytest.param(*it, marks=pytest.mark.slow) for it in FOUND_OUT[1:])],
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
        assert sampler.stats.failed_trajectories == caplog.text.count("longer than can be restored") == lost
    assert batch.continued.tolist() == [not lost] * 3


# ---------------------------------------------------------------------- a loss while a fragment is taken back


def killing_while(env_id: int, then: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose a process once, when an environment that is being taken back is asked for its third step.

    What was lost is restored before that step's result is waited for.
    """
    n_steps, original = [0], Environments.step

    def step(self: Environments, env_ids: Any, actions: Any) -> None:
        original(self, env_ids, actions)
        if list(env_ids) == [env_id] and not self.restoring:
            n_steps[0] += 1
            if n_steps[0] == 3:
                n_losses = len(self.losses)
                then()
                while len(self.losses) == n_losses:
                    self.take_in(None)
                while self.restoring:
                    self.take_in(None)

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
            batches.append([sampler.obtain_fragments(10, 3) for _ in range(3)])
    assert batches[0] == batches[1]
    assert batches[0][2].continued.all()


def test_ctrl_c_while_processes_are_ended(monkeypatch):
    """As a second one, where the call after the first begins with other processes."""
    with in_parent(Fleeting(), Sticky) as sampler:
        sampler.obtain_fragments(2)
        close, engine = ProcessTransport.close, sampler._session.engine

        def interrupted(self: ProcessTransport) -> None:
            monkeypatch.setattr(ProcessTransport, "close", close)
            close(self)
            raise KeyboardInterrupt

        monkeypatch.setattr(ProcessTransport, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.close()
        engine.close()


# ---------------------------------------------------------------------- whole trajectories


class Killing(Drawn):
    """Rows depend on each other, it says; kills a process when all have been asked for ten times."""

    row_independent = False

    def __init__(self) -> None:
        super().__init__()
        self.kill: Any = None
        self.n_asked = 0

    def get_actions(self, observations: Any, *, starts: Any, draws: Any) -> Any:
        self.n_asked += 1
        if self.n_asked == 10 and self.kill is not None:
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


@pytest.mark.parametrize("how", ["changes", "raises"])
def test_trajectories_that_cannot_be_restored_are_run_again_from_their_seeds(how, tmp_path, caplog):
    agent, file = Killing(), tmp_path / "made"
    kwargs = {"file": file, "how": how}
    with in_parent(agent, Anew, n_envs=2, env_kwargs=kwargs) as sampler:
        agent.kill = lambda: (file.touch(), kill(sampler, 0))
        found = sampler.obtain_trajectories(2)
        stats = sampler.stats
        assert stats.lost_timesteps >= 10
        assert sum(stats.worker_timesteps) == stats.kept_timesteps + stats.lost_timesteps + stats.abandoned_timesteps
    # With "changes" it ran in what took the environment's place.
    kwargs = {"file": file if how == "changes" else tmp_path / "none", "how": how}
    with reference(Killing(), Anew, n_envs=2, env_kwargs=kwargs) as sampler:
        expected = sampler.obtain_trajectories(2)
    both = zip(found, expected, strict=True)
    assert [np.array_equal(one.observations, other.observations) for one, other in both] == [True, how == "raises"]
    assert {"raises": "raised when its actions were applied", "changes": "did something else"}[how] in caplog.text
    assert "Trajectories under way are run again" in caplog.text


def test_a_trajectory_that_was_left_out_is_not_wanted_back(tmp_path):
    agent, file = Killing(), tmp_path / "made"
    kwargs = {"file": file, "how": "changes"}
    with in_parent(agent, Anew, n_envs=2, env_kwargs=kwargs, drop_if=lambda info: info.get("bad")) as sampler:
        agent.kill = lambda: (file.touch(), kill(sampler, 0))
        batch = sampler.obtain_trajectories(1)
        assert batch.indices.tolist() == [1]
        assert agent.n_asked >= 40
