from hypothesis import given
from hypothesis import strategies as st

from streamsampler.samplers import updates as module


class Updates(module.Updates):
    """Updates, and what each worker was sent of them."""

    def __init__(self, n_workers):
        super().__init__(n_workers)
        self.sent = [{} for _ in range(n_workers)]

    def send(self, worker):
        return self.missing(worker, self.sent[worker])


def test_each_worker_is_sent_each_update_once():
    updates = Updates(2)
    updates.put("agent", "a")
    updates.put("env", "e")
    assert updates.send(0) == {"agent": "a", "env": "e"}
    assert updates.send(0) == {}
    assert updates.send(1) == {"agent": "a", "env": "e"}


def test_a_new_agent_voids_parameters():
    updates = Updates(1)
    updates.put("agent", "a")
    updates.put("parameters", "p")
    updates.put("agent", "b")
    assert updates.send(0) == {"agent": "b"}


def test_parameters_after_a_new_agent_count():
    updates = Updates(1)
    updates.put("agent", "a")
    updates.send(0)
    updates.put("agent", "b")
    updates.put("parameters", "p")
    assert updates.send(0) == {"agent": "b", "parameters": "p"}


def test_a_list_changes_only_those_it_names():
    updates = Updates(3)
    updates.put("agent", "a")
    assert not updates.differ
    updates.put("agent", [None, "b", None])
    assert updates.differ
    assert [updates.send(worker)["agent"] for worker in range(3)] == ["a", "b", "a"]
    updates.put("agent", "c")
    assert not updates.differ


def test_a_new_agent_for_one_worker_keeps_the_parameters_of_the_others():
    updates = Updates(2)
    updates.put("agent", "a")
    updates.put("parameters", "p")
    updates.put("agent", ["b", None])
    assert updates.send(0) == {"agent": "b"}
    assert updates.send(1) == {"agent": "a", "parameters": "p"}


def test_a_worker_without_an_item_in_a_list_is_sent_nothing():
    updates = Updates(2)
    updates.put("agent", "a")
    updates.put("env", "e")
    updates.put("parameters", "p")
    updates.send(0)
    updates.send(1)
    updates.put("agent", ["b", None])
    updates.put("env", ["f", None])
    assert updates.send(0) == {"agent": "b", "env": "f"}
    assert updates.send(1) == {}


def test_a_new_worker_is_sent_everything():
    updates = Updates(1)
    updates.put("agent", "a")
    updates.put("parameters", "p")
    updates.send(0)
    updates.sent[0].clear()
    assert updates.send(0) == {"agent": "a", "parameters": "p"}


def test_a_refused_update_is_no_longer_in_force_with_the_workers_that_took_it():
    updates = Updates(3)
    updates.put("agent", "a")
    updates.put("parameters", "p")
    updates.send(0)
    updates.send(1)
    before = updates.snapshot()
    updates.put("parameters", "refused")
    updates.send(0)
    updates.restore(before)
    assert [updates.are_in_force(worker, updates.sent[worker]) for worker in range(3)] == [False, True, True]
    assert updates.send(1) == {}


def test_an_update_of_a_kind_that_was_not_in_force_before_is_taken_back_too():
    updates = Updates(1)
    updates.put("agent", "a")
    before = updates.snapshot()
    updates.put("parameters", "refused")
    updates.send(0)
    updates.restore(before)
    assert not updates.are_in_force(0, updates.sent[0])


def test_mapped_keeps_what_is_shared_shared():
    updates = Updates(2)
    updates.put("agent", "a")
    updates.put("parameters", ["p", "q"])
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


@given(st.lists(st.one_of(kinds, st.integers(0, 2))))
def test_whenever_a_worker_is_started_it_has_what_is_in_force(events):
    """A model: what a worker has is what it was sent, and a new agent comes without parameters."""
    updates, has, serial = Updates(3), [{} for _ in range(3)], 0
    in_force = {}
    updates.put("agent", "agent 0")
    in_force["agent"] = "agent 0"
    for event in [*events, 0, 1, 2]:
        if isinstance(event, str):
            serial += 1
            payload = f"{event} {serial}"
            updates.put(event, payload)  # type: ignore[arg-type]
            in_force[event] = payload
            if event == "agent":
                in_force.pop("parameters", None)
        else:
            sent = updates.send(event)
            if "agent" in sent:
                has[event].pop("parameters", None)
            has[event].update(sent)
            assert has[event] == in_force
