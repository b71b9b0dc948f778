from hypothesis import given
from hypothesis import strategies as st

from streamsampler.samplers.updates import Updates


def test_each_worker_is_told_once():
    updates = Updates(2)
    updates.put("agent", "a")
    updates.put("env", "e")
    assert updates.lacking(0) == {"agent": "a", "env": "e"}
    assert updates.lacking(0) == {}
    assert updates.lacking(1) == {"agent": "a", "env": "e"}


def test_a_new_agent_voids_parameters():
    updates = Updates(1)
    updates.put("agent", "a")
    updates.put("parameters", "p")
    updates.put("agent", "b")
    assert updates.lacking(0) == {"agent": "b"}


def test_parameters_after_a_new_agent_count():
    updates = Updates(1)
    updates.put("agent", "a")
    updates.lacking(0)
    updates.put("agent", "b")
    updates.put("parameters", "p")
    assert updates.lacking(0) == {"agent": "b", "parameters": "p"}


def test_a_list_changes_only_those_it_names():
    updates = Updates(3)
    updates.put("agent", "a")
    assert not updates.differ
    updates.put("agent", [None, "b", None])
    assert updates.differ
    assert [updates.lacking(worker)["agent"] for worker in range(3)] == ["a", "b", "a"]
    updates.put("agent", "c")
    assert not updates.differ


def test_a_new_agent_for_one_worker_keeps_the_parameters_of_the_others():
    updates = Updates(2)
    updates.put("agent", "a")
    updates.put("parameters", "p")
    updates.put("agent", ["b", None])
    assert updates.lacking(0) == {"agent": "b"}
    assert updates.lacking(1) == {"agent": "a", "parameters": "p"}


def test_who_is_not_named_in_a_list_is_told_nothing():
    updates = Updates(2)
    updates.put("agent", "a")
    updates.put("env", "e")
    updates.put("parameters", "p")
    updates.lacking(0)
    updates.lacking(1)
    updates.put("agent", ["b", None])
    updates.put("env", ["f", None])
    assert updates.lacking(0) == {"agent": "b", "env": "f"}
    assert updates.lacking(1) == {}


def test_a_worker_that_is_forgotten_is_told_everything_again():
    updates = Updates(1)
    updates.put("agent", "a")
    updates.put("parameters", "p")
    updates.lacking(0)
    updates.forget(0)
    assert updates.lacking(0) == {"agent": "a", "parameters": "p"}


def test_a_refused_update_is_taken_back_from_those_who_took_it():
    updates = Updates(2)
    updates.put("agent", "a")
    updates.put("parameters", "p")
    updates.lacking(0)
    updates.lacking(1)
    before = updates.snapshot()
    updates.put("parameters", "refused")
    updates.lacking(0)
    updates.restore(before)
    assert updates.lacking(0) == {"agent": "a", "parameters": "p"}
    assert updates.lacking(1) == {}


def test_mapped_keeps_what_is_shared_shared():
    updates = Updates(2)
    updates.put("agent", "a")
    updates.put("parameters", ["p", "q"])
    updates.lacking(0)
    converted = []

    def convert(payload):
        converted.append(payload)
        return payload.upper()

    other = updates.mapped(convert)
    assert sorted(converted) == ["a", "p", "q"]
    assert other.lacking(0) == {"agent": "A", "parameters": "P"}
    assert other.differ


kinds = st.sampled_from(["agent", "parameters", "env"])


@given(st.lists(st.one_of(kinds, st.integers(0, 2))))
def test_whenever_a_worker_asks_it_ends_up_with_what_is_in_force(events):
    """A model: what a worker has is what it was told, and a new agent comes without parameters."""
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
            told = updates.lacking(event)
            if "agent" in told:
                has[event].pop("parameters", None)
            has[event].update(told)
            assert has[event] == in_force
