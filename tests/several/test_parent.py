"""Several agents whose policies are in the sampler's process: the batches of `VecWorker`, whatever is lost or late."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given
from hypothesis import strategies as st

from streamsampler import NewEnvUpdate, NotReproducibleError, RolloutError, evaluate
from streamsampler.environments.multi_agent import as_multi_agent
from streamsampler.filters import RunningNorm
from streamsampler.stepping.game_proxies import game_of
from streamsampler.stepping.games import GameFacts, GameResultMaker
from tests.scripted.games import DEFAULT, IDS, Chooser, Comings, Stay, Turns
from tests.several.comparing import LocalSampler, MultiprocessingSampler
from tests.several.test_equal_to_plain_loops import STAYS, AllAtOnce, Early
from tests.several.test_errors import ShortTurns, is_odd
from tests.several.test_fragments import DyingTurns, Knowing, Recalling, Waits
from tests.several.test_lives import CROWD, Crowd, Unannounced, kind_of
from tests.several.test_rows import AGENTS, Halves, Reader, Rowwise, Watching, Words, Worn, rows
from tests.several.test_staleness import Dying
from tests.stepping.conftest import kill
from tests.tiers import mostly_slow


def parent(agent: Any, env: Any, *, n_envs: int = 3, n_workers: int = 2, **options: Any) -> Any:
    args = {"n_envs": n_envs, **options.pop("worker_args", {})}
    how = {"seed": 1, "check": None, "max_restarts": None, **options}
    return MultiprocessingSampler(agent, env, inference="parent", n_workers=n_workers, worker_args=args, **how)


def reference(agent: Any, env: Any, *, n_envs: int = 3, **options: Any) -> Any:
    args = {"n_envs": n_envs, **options.pop("worker_args", {})}
    args.pop("groups", None)
    options = {**rows(n_envs), "worker_args": args, "seed": 1, "check": None, **options}
    return LocalSampler(agent, env, **options)


def kill_one(sampler: Any, number: int) -> None:
    """Kill a process of a sampler that has some."""
    if isinstance(sampler, MultiprocessingSampler):
        kill(sampler, number)


def whole(sampler: Any) -> list[Any]:
    return [sampler.obtain_trajectories(5), sampler.obtain_samples(30, count="agent_steps")]


def parts(sampler: Any) -> list[Any]:
    return [sampler.obtain_fragments(n, n_envs) for n, n_envs in ((3, 3), (1, 3), (4, 3), (9, 2), (1, 2))]


def both_kinds(sampler: Any) -> list[Any]:
    return [*whole(sampler), *parts(sampler), *whole(sampler)]


def same(agent: Any, env: Any, calls: Any = both_kinds, **options: Any) -> list[Any]:
    """Return what calls obtained, which is what they obtain with `VecWorker`."""
    n_workers = options.pop("n_workers", 2)
    with reference(agent, env, **options) as one:
        expected = calls(one)
    with parent(agent, env, n_workers=n_workers, **options) as sampler:
        found = calls(sampler)
    assert found == expected
    return found


@pytest.mark.parametrize("game", mostly_slow([Turns, Comings]))
@pytest.mark.parametrize("which", mostly_slow(["both", *sorted(set(AGENTS) - {"both"})]))
def test_batches_are_those_of_vec_worker(which: str, game: Any) -> None:
    same(AGENTS[which], game)


@pytest.mark.slow
@pytest.mark.parametrize("which", AGENTS)
@given(
    st.sampled_from([Comings, Turns]), STAYS, st.sampled_from([None, 1, 4]), st.sampled_from([whole, parts]),
    st.integers(1, 3), st.sampled_from([{}, {"groups": 2}]),
)  # fmt: skip
@example(Turns, {}, 4, parts, 3, {})
def test_batches_are_those_of_vec_worker_whoever_comes_and_goes(
    which: str, game: Any, stays: dict[str, Stay], limit: Any, calls: Any, n_workers: int, args: Any
) -> None:
    stays = {**stays, "red_0": Stay(0, 11)} if stays else DEFAULT
    how = {"max_episode_length": limit, "worker_args": args, "n_workers": n_workers}
    same(AGENTS[which], lambda: game(stays), calls, **how)


UNANNOUNCED = [lambda: Unannounced(Comings()), lambda: Unannounced(Turns())]


@pytest.mark.parametrize("game", mostly_slow([Waits, Early, AllAtOnce, *UNANNOUNCED], 0))
def test_whoever_joins_waits_ends_early_or_comes_unannounced(game: Any) -> None:
    same(AGENTS["both"], game)
    same(AGENTS["across"], game)


@pytest.mark.slow
def test_crowds() -> None:
    same(CROWD["agents"], Crowd, policy_of=kind_of)


@pytest.mark.slow
def test_blocks() -> None:
    same(AGENTS["both"], Comings, whole, worker_args={"block_size": 6})


@pytest.mark.slow
def test_spaces_of_any_kind() -> None:
    same(Reader(), Words)


class Sliding(Comings):
    """Shows what it gets of its actions to the last bit."""

    def action_space(self, agent: str) -> Any:
        return spaces.Box(-9.0, 9.0, (2,), np.float32)

    def begin(self, seed: Any) -> None:
        super().begin(seed)
        self.place = 0.0

    def step(self, actions: Any) -> Any:
        self.place += sum(float(np.sum(action)) for action in actions.values())
        for action in actions.values():
            action[:] = 0.0  # they are its own
        return super().step(dict.fromkeys(actions, 0))

    def info(self, agent: str) -> dict[str, Any]:
        return {"place": self.place}


class Pushing:
    """Returns the same array of 64 bits in each step."""

    def __init__(self) -> None:
        self.action = np.zeros(2)

    def get_action(self, observation: Any) -> Any:
        self.action[:] = observation[1:] / 3
        return self.action, {}


@pytest.mark.slow
def test_actions_are_rounded_and_are_the_environments_own() -> None:
    agents = {"red": Pushing(), "blue": Pushing()}

    def calls(sampler: Any) -> list[Any]:
        found = []
        for number in range(4):
            found.append(sampler.obtain_fragments(3, 3))
            kill_one(sampler, number % 2)
        return [*found, sampler.obtain_trajectories(5)]

    same(agents, Sliding, calls)


def outcome_of(sampler: Any, n: int) -> Any:
    batch = sampler.obtain_trajectories(n)
    return batch, sampler.stats.metrics, [each.index for each in sampler.stats.dropped]


@pytest.mark.slow
@pytest.mark.parametrize("which", ["both", "one by one", "across", "apart"])
def test_hooks_see_the_same_and_leave_out_the_same(which: str) -> None:
    def calls(sampler: Any) -> Any:
        return [outcome_of(sampler, n) for n in (5, 8)]

    found = same(AGENTS[which], Halves, calls, seed=2, hooks=Watching(), drop_if=is_odd)
    assert any(dropped for _, _, dropped in found)


@pytest.mark.slow
@pytest.mark.parametrize("game", [Comings, Turns])
def test_hooks_see_an_episode_of_fragments_once(game: Any) -> None:
    same(AGENTS["both"], game, parts, hooks=Watching())


@pytest.mark.parametrize("game", mostly_slow([Comings, Turns], 0))
def test_updates_and_filters_by_policy(game: Any) -> None:
    agents = {"red": Rowwise(), "blue": Knowing()}
    updates = (None, {"red": (3,)}, {"blue": (2,)}, {"red": Rowwise(1), "blue": Knowing(1)}, None)

    def calls(sampler: Any) -> Any:
        found = [sampler.obtain_trajectories(6, agent_update=update) for update in updates]
        return [*found, *(sampler.obtain_fragments(3, 3, update) for update in updates)]

    same(agents, game, calls, observation_filter={"red": RunningNorm(), "blue": RunningNorm()})


def test_a_policy_has_one_number_of_rows() -> None:
    Rowwise.shapes = Counter()
    with parent({"red": Rowwise(), "blue": Chooser()}, Comings, n_envs=5) as sampler:
        sampler.obtain_trajectories(12)
        sampler.obtain_fragments(3, 2)
    assert set(Rowwise.shapes) == {16}


@pytest.mark.slow
def test_environments_are_replaced_by_others_with_other_agents_or_with_one() -> None:
    class Few(Comings):
        possible_agents = IDS[:2]

    def calls(sampler: Any) -> Any:
        found = [sampler.obtain_trajectories(4), sampler.obtain_fragments(3, 3)]
        for env in (Few, Turns, lambda: Unannounced(Comings()), "CartPole-v1", Comings):
            found.append(sampler.obtain_trajectories(4, env_update=NewEnvUpdate(env) if callable(env) else env))
            found.append(sampler.obtain_fragments(3, 3))
        return found

    same("random", Comings, calls)


LONG = {"red_0": Stay(0, 50), "blue_0": Stay(2, 50)}


class Slow(Comings):
    """In the first process, a step waits until another one has taken five."""

    def __init__(self, pipe: Path, worker_number: int = 0) -> None:
        super().__init__(LONG)
        self.pipe, self.worker_number = pipe, worker_number

    def step(self, actions: Any) -> Any:
        if self.t == 0 and self.worker_number == 0:
            self.pipe.read_text()
        if self.t == 4 and self.worker_number == 1:
            self.pipe.write_text("!")
        return super().step(actions)


@pytest.mark.parametrize("which", mostly_slow(["both", "across", "apart"]))
def test_environments_go_on_without_slow_ones(which: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with reference(AGENTS[which], lambda: Comings(LONG), n_envs=2) as sampler:
        expected = sampler.obtain_fragments(60, 2)
    with parent(AGENTS[which], Slow, n_envs=2, env_kwargs={"pipe": tmp_path / "pipe"}) as sampler:
        assert sampler.obtain_fragments(60) == expected


RESTORABLE: dict[str, Any] = {
    "both": {"red": Knowing(1), "blue": Rowwise(2)},
    "across": Rowwise(),
    "apart": {"red": Recalling(), "blue": Recalling()},
    "random": "random",
    "one by one": Knowing(),
    "remembers": AGENTS["remembers"],
}


@pytest.mark.slow
@pytest.mark.parametrize("game", [DyingTurns, Dying])
@pytest.mark.parametrize("which", RESTORABLE)
def test_batches_are_the_same_whatever_dies(which: str, game: Any, tmp_path: Path) -> None:
    updates: list[Any] = [None] * 5
    if which == "both":
        updates = [None, {"red": (2,)}, {"blue": Rowwise(1)}, None, {"red": Knowing(3), "blue": (3,)}]

    def calls(sampler: Any) -> list[Any]:
        found = [sampler.obtain_trajectories(9)]
        for number, (n, update) in enumerate(zip((3, 2, 5, 4, 6), updates, strict=True)):
            found.append(sampler.obtain_fragments(n, 4, update))
            kill_one(sampler, number % 2)
        return found

    with reference(RESTORABLE[which], Turns if game is DyingTurns else Comings, n_envs=4) as sampler:
        expected = calls(sampler)
    with parent(RESTORABLE[which], lambda: game(tmp_path, 2), n_envs=4) as sampler:
        assert calls(sampler) == expected
        assert sampler.stats.restarts > 0
    assert len(list(tmp_path.iterdir())) >= 3


@pytest.mark.slow
@pytest.mark.parametrize("calls", [whole, parts])
def test_what_comes_out_otherwise_for_one_agent_is_run_again(calls: Any, tmp_path: Path, caplog: Any) -> None:
    class Unfaithful(Dying):
        def seen(self, agent: str) -> Any:
            return super().seen(agent) + np.float32(os.getpid()) * (agent == "blue_1")

    with parent(Rowwise(), lambda: Unfaithful(tmp_path, 2)) as sampler:
        calls(sampler)
        assert sampler.stats.restarts > 0
    assert "behaved differently when it was reset with the same seed" in caplog.text or (
        "the same actions did not lead to the same observations and rewards" in caplog.text
    )


@pytest.mark.slow
@pytest.mark.parametrize("game", [DyingTurns, Dying])
@pytest.mark.parametrize("which", sorted(RESTORABLE.keys() - {"remembers"}))
def test_episodes_go_on_while_whole_trajectories_run(which: str, game: Any, tmp_path: Path) -> None:
    updates: list[Any] = [None] * 8
    if which == "both":
        updates = [None, {"red": (2,)}, {"blue": Rowwise(1)}, None, {"red": Knowing(3), "blue": (3,)}, *updates]

    def calls(sampler: Any) -> list[Any]:
        found = []
        for n, first, second in zip((3, 2, 5, 4), updates[::2], updates[1::2], strict=False):
            found += [sampler.obtain_fragments(n, 3, first), sampler.obtain_trajectories(n, agent_update=second)]
        return found

    with reference(RESTORABLE[which], Turns if game is DyingTurns else Comings) as sampler:
        expected = calls(sampler)
    with parent(RESTORABLE[which], lambda: game(tmp_path, 2)) as sampler:
        assert calls(sampler) == expected
        assert sampler.stats.restarts > 0
        assert sampler.stats.further_envs == 3


@pytest.mark.slow
def test_policies_know_where_they_play() -> None:
    """Agents have other ids in each trajectory."""

    def calls(sampler: Any) -> list[Any]:
        return [call for n in (3, 2, 4) for call in (sampler.obtain_fragments(n, 3), sampler.obtain_trajectories(n))]

    same({"a": "random", "b": Knowing()}, Crowd, calls, policy_of=kind_of)


@pytest.mark.slow
def test_policies_that_cannot_say_what_they_remember_lose_episodes_with_a_warning(caplog: Any) -> None:
    with parent(AGENTS["remembers"], Comings) as sampler:
        assert sampler.obtain_fragments(3, 3).cut.all()
        sampler.obtain_trajectories(2)
        assert not sampler.obtain_fragments(3, 3).continued.any()
    assert "get_state" in caplog.text


@pytest.mark.slow
def test_hooks_that_change_actions_do_not_change_what_is_applied_again(tmp_path: Path) -> None:
    with reference(RESTORABLE["both"], Comings, hooks=Watching()) as sampler:
        expected = both_kinds(sampler)
    with parent(RESTORABLE["both"], lambda: Dying(tmp_path, 2), hooks=Watching()) as sampler:
        assert both_kinds(sampler) == expected
        assert sampler.stats.restarts > 0


class Spoiling:
    """Changes what it is shown."""

    def get_action(self, observation: Any) -> Any:
        action = int(7 * observation[1:].sum()) % 4
        observation[:] = -1.0
        return action, {}


@pytest.mark.slow
def test_agents_may_change_what_they_are_shown(tmp_path: Path, caplog: Any) -> None:
    with reference(Spoiling(), Comings) as sampler:
        expected = both_kinds(sampler)
    with parent(Spoiling(), lambda: Dying(tmp_path, 2)) as sampler:
        assert both_kinds(sampler) == expected
        assert sampler.stats.restarts > 0
    assert "again" not in caplog.text


@pytest.mark.slow
def test_what_environments_raise_is_no_error_of_recording() -> None:
    phases = []
    for make in (reference, parent):
        with make(Chooser(), ShortTurns) as sampler, pytest.raises(RolloutError, match="last") as error:
            sampler.obtain_trajectories(2)
        phases.append(error.value.phase)
    assert phases[0] == phases[1]


class Reversed(Comings):
    possible_agents = IDS[::-1]


@pytest.mark.slow
@pytest.mark.parametrize(("other", "words"), [(Reversed, "the same agents"), (Turns, "act at once.*act in turn")])
def test_environments_have_the_same_agents(other: Any, words: str) -> None:
    def game(worker_number: int = 0) -> Any:
        return (Comings, other)[worker_number]()

    with parent(Chooser(), game) as sampler, pytest.raises(RolloutError, match=words):
        sampler.obtain_trajectories(2)


def test_policies_are_the_callers_own() -> None:
    """Changed between calls; also in a replay, a copy of the sampler, and one that goes on where it is stopped."""
    agents = {"red": Rowwise(), "blue": Rowwise()}
    with reference({"red": Rowwise(), "blue": Rowwise()}, Comings) as one:
        updates = (None, {"red": (2,), "blue": (1,)}, None)
        expected = [one.obtain_trajectories(5, agent_update=update) for update in updates]
    with parent(agents, Comings) as sampler:
        assert sampler.obtain_trajectories(5) == expected[0]
        agents["red"].shift, agents["blue"].shift = 2, 1
        assert sampler.obtain_trajectories(5) == expected[1]
        for by_actions in (False, True):
            assert sampler.replay(2, 3, recorded=expected[1], actions=by_actions).same
        state = sampler.state_dict(agents=True)
        with pickle.loads(pickle.dumps(sampler)) as copy:
            assert copy.obtain_trajectories(5) == expected[2]
    with parent(agents, Comings) as sampler:
        sampler.load_state_dict(state)
        assert sampler.obtain_trajectories(5) == expected[2]


@pytest.mark.slow
@pytest.mark.parametrize("game", [Comings, Turns])
def test_a_run_that_is_stopped_goes_on_in_the_middle_of_episodes(game: Any) -> None:
    agents = {"red": Knowing(1), "blue": Rowwise(2)}
    with reference(agents, game) as sampler:
        expected = [sampler.obtain_fragments(3, 3) for _ in range(4)]
    found: list[Any] = []
    state: Any = None
    for _ in range(4):
        with parent(agents, game) as sampler:
            if state is not None:
                sampler.load_state_dict(state)
            found.append(sampler.obtain_fragments(3, 3))
            state = sampler.state_dict(agents=True)
    assert found == expected


@pytest.mark.slow
def test_evaluations_are_those_of_vec_worker() -> None:
    found = []
    for make in (reference, parent):
        with make(AGENTS["both"], Turns) as sampler:
            found.append(evaluate(sampler=sampler, num_trajectories=4, return_of="all").returns.tolist())
    assert found[0] == found[1]


@pytest.mark.slow
def test_what_an_environment_remembers_is_found() -> None:
    with (
        parent(Rowwise(), Worn, check="error") as sampler,
        pytest.raises(NotReproducibleError, match=r"was run twice from the same seed.*its first observation"),
    ):
        sampler.obtain_trajectories(3)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["step", "end", "begin"])
def test_environments_draw_from_no_generator_that_they_share(where: str) -> None:
    class Drawing(Comings):
        def begin(self, seed: Any) -> None:
            super().begin(seed)
            np.random.rand(int(where == "begin"))

        def step(self, actions: Any) -> Any:
            np.random.rand(int(where == "step" or (where == "end" and self.t == 6)))  # the last one
            return super().step(actions)

    with parent(Rowwise(), Drawing) as sampler, pytest.raises(RolloutError, match="drew from a global generator"):
        sampler.obtain_trajectories(1)


class Observing(Turns):
    """Notes whom it is asked to observe."""

    def reset(self, seed: Any = None, options: Any = None) -> None:
        super().reset(seed)
        self.observed: list[str] = []

    def observe(self, agent: str) -> Any:
        self.observed.append(agent)
        return super().observe(agent)

    def last(self) -> Any:
        self.observed, before = [], self.observed
        result = super().last()
        self.observed = before
        return result


def test_what_is_outstanding_is_told_where_a_trajectory_may_be_cut_off() -> None:
    game = Observing({agent: Stay(0, 9) for agent in IDS})
    teller = GameResultMaker(as_multi_agent(game), limit=5)
    face = as_multi_agent(game)
    facts = GameFacts.of(face)
    assert facts is not None
    here = game_of(facts)
    here.take(*teller.reset_result(*face.reset(seed=1)))
    assert (here.env.agents, here.turn({})) == (list(IDS), [IDS[0]])
    for number in range(5):
        action = {game.agent_selection: 1}
        here.take(*teller.step_result(action, *face.step(action)))
        assert game.observed == ([] if number < 4 else [IDS[0], *IDS[2:]])  # but for whose turn it is
    with pytest.raises(KeyError):
        here.outstanding(IDS[1])
    assert here.outstanding(IDS[2])[1:4] == (4.0, False, False)


def test_agents_of_an_earlier_trajectory_are_forgotten() -> None:
    face = as_multi_agent(Crowd())
    teller, facts = GameResultMaker(face), GameFacts.of(face)
    assert facts is not None
    assert facts.possible_agents is None
    here = game_of(facts)
    for seed in (1, 2):
        here.take(*teller.reset_result(*face.reset(seed=seed)))
        (agent,) = here.env.agents
        assert list(here.numbers) == here.turn({}) == [agent]
        actions = {agent: 1}
        here.take(*teller.step_result(actions, *face.step(actions)))
        assert len(here.turn({})) == len(here.env.spaces) == 2
