"""What user code times: a tree by phase, in its own thread alone, and nothing where nobody collects."""

import threading

import pytest

from streamsampler import timed
from streamsampler.core.timing import Collector, collecting, used

RESET, STEP = 0, 1


def collector():
    words = [0, 0, RESET]
    return Collector(words, 2, ["reset", "step"]), words


def names(measured):
    return {name: (count, names(within)) for name, count, _, within in measured}


def test_blocks_nest_and_belong_to_the_phase_they_ran_in():
    found, words = collector()
    with collecting(found):
        with pytest.raises(RuntimeError), timed("a"), timed("b"):
            raise RuntimeError
        with timed("a"):
            pass
        words[2] = STEP
        for _ in range(3):
            with timed("a"), timed("b"):
                with timed("a"):
                    pass
                with timed("c"):
                    sum(range(1_000))
    measured = found.take()
    assert names(measured) == {
        "reset": (0, {"a": (2, {"b": (1, {})})}),
        "step": (0, {"a": (3, {"b": (3, {"a": (3, {}), "c": (3, {})})})}),
    }
    ((_, _, outer, ((_, _, inner, _),)),) = measured[1][3]
    assert outer >= inner > 0
    assert found.take() == (), "it was taken"


def test_nothing_is_timed_outside_and_in_other_threads():
    found, _ = collector()
    with timed("before"):
        pass

    def elsewhere():
        with timed("thread"):
            pass

    with collecting(found):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        assert not used()
        with timed("here"):
            pass
        assert used()
    with timed("after"):
        pass
    assert names(found.take()) == {"reset": (0, {"here": (1, {})})}


def test_collectors_in_one_thread_take_turns():
    one, other = collector()[0], collector()[0]
    with collecting(one):
        with collecting(other), timed("inner"):
            pass
        with timed("outer"):
            pass
    assert [list(names(it.take())["reset"][1]) for it in (one, other)] == [["outer"], ["inner"]]
