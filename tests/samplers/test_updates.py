from hypothesis import given
from hypothesis import strategies as st

from streamsampler import LocalSampler
from streamsampler.core.serialization import dumps
from streamsampler.samplers import updates as module
from streamsampler.testing import ScriptedAgent, ScriptedEnv


class Updates(module.Updates):
    """Updates, and what each worker was sent of them."""

    def __init__(self, n_workers, **kinds):
        super().__init__(n_workers)
        self.sent = [{} for _ in range(n_workers)]
        for kind, payload in kinds.items():
            self.put(kind, payload)  # type: ignore[arg-type]

    def send(self, worker):
        return self.missing(worker, self.sent[worker])


def test_a_list_changes_only_the_workers_that_it_names():
    updates = Updates(3, agent="a")
    assert not updates.differ
    updates.put("agent", [None, "b", None])
    assert updates.differ
    assert [updates.send(worker)["agent"] for worker in range(3)] == ["a", "b", "a"]
    updates.put("agent", "c")
    assert not updates.differ
    updates = Updates(3, agent="a", env="e", parameters="p")
    assert [len(updates.send(worker)) for worker in (1, 2)] == [3, 3]
    updates.put("agent", ["b", None, "b"])
    updates.put("env", [None, None, "f"])
    assert updates.send(0) == {"agent": "b", "env": "e"}
    assert updates.send(1) == {}, "the others keep their parameters"
    assert updates.send(2) == {"agent": "b", "env": "f"}
    updates.sent[1] = {}
    assert updates.send(1) == {"agent": "a", "env": "e", "parameters": "p"}, "also where it is started anew"


def test_a_refused_update_is_no_longer_in_force_with_the_workers_that_took_it():
    updates = Updates(3, agent="a", parameters="p")
    updates.send(0)
    updates.send(1)
    before = updates.snapshot()
    updates.put("parameters", "refused")
    updates.send(0)
    updates.restore(before)
    assert [updates.are_in_force(worker, updates.sent[worker]) for worker in range(3)] == [False, True, True]
    assert updates.send(1) == {}
    updates = Updates(1, agent="a")
    before = updates.snapshot()
    updates.put("parameters", "refused")
    updates.send(0)
    updates.restore(before)
    assert not updates.are_in_force(0, updates.sent[0]), "also of a kind that was not in force before"


def test_mapped_keeps_what_is_shared_shared():
    updates = Updates(2, agent="a", parameters=["p", "q"])
    updates.send(0)
    converted = []

    def convert(payload):
        converted.append(payload)
        return payload.upper()

    other = updates.mapped(convert)
    assert sorted(converted) == ["a", "p", "q"]
    assert other.missing(0, {}) == {"agent": "A", "parameters": "P"}
    assert other.differ


kinds = st.sampled_from(["agent", "parameters", "env"])


@given(st.lists(st.one_of(kinds, st.integers(0, 2), st.integers(-3, -1))))
def test_whenever_a_worker_is_started_it_has_what_is_in_force(events):
    """A model: what a worker has is what it was sent, and a new agent comes without parameters."""
    updates, has = Updates(3, agent="agent 0"), [{} for _ in range(3)]
    in_force = {"agent": "agent 0"}
    for serial, event in enumerate([*events, 0, 1, 2]):
        if isinstance(event, str):
            in_force[event] = f"{event} {serial}"
            updates.put(event, in_force[event])  # type: ignore[arg-type]
            if event == "agent":
                in_force.pop("parameters", None)
        elif event < 0:  # a new worker takes its place
            updates.sent[event], has[event] = {}, {}
        else:
            sent = updates.send(event)
            if "agent" in sent:
                has[event].pop("parameters", None)
            has[event].update(sent)
            assert has[event] == in_force
            assert updates.send(event) == {}, "each update is sent once"


def test_a_payload_that_a_worker_is_to_load_is_not_freed():
    with LocalSampler(ScriptedAgent(), ScriptedEnv, seed=1) as sampler:
        store = sampler._life.session.store
        handle = store.publish(dumps("parameters", "they"))
        store.contents_for(0, resets=handle)
        for _ in range(2):
            store.unpublish_old()
            assert handle in store._published.values()
        store.record_answer(0, is_failure=False)
        store.unpublish_old()
        assert handle not in store._published.values()
        store.forget(0)
        sampler.obtain_trajectories(1)
