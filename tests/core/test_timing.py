"""What user code measures: in workers a tree by phase, of their own threads; and what the script measures itself."""

import copy
import pickle
import threading
from typing import Any

import pytest

from streamsampler import timed
from streamsampler.core.timing import Collector, ScriptTimes, collecting, not_measuring, used
from streamsampler.errors import UsageError

RESET, STEP = 0, 1


def collector():
    words = [0, 0, RESET]
    return Collector(words, 2, ["reset", "step"]), words


def names(measured):
    return _names(measured.blocks)


def _names(measured):
    return {name: (count, _names(within)) for name, count, _, within in measured}


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
    ((_, _, outer, ((_, _, inner, _),)),) = measured.blocks[1][3]
    assert outer >= inner > 0
    assert found.take() is None, "it was taken"


def test_workers_time_nothing_outside_and_in_other_threads():
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


def test_the_script_is_timed_from_then_on_in_all_its_threads():
    with timed("before"):
        pass
    script = ScriptTimes()

    @timed("learn")
    def learn(n):
        with timed("gradient"):
            return n + 1

    def elsewhere():
        for n in range(50):
            learn(n)

    threads = [threading.Thread(target=elsewhere) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with timed("before"), pytest.raises(ZeroDivisionError), timed("learn"):
        raise ZeroDivisionError
    with not_measuring(), timed("hidden"):
        pass
    found = {"learn": (200, {"gradient": (200, {})}), "before": (1, {"learn": (1, {})})}
    assert names(script.measured()) == found
    later = ScriptTimes()
    copies = [copy.deepcopy(script), pickle.loads(pickle.dumps(script))]
    learn(1)
    assert [names(each.measured()) for each in (*copies, later)] == [
        found,
        found,
        {"learn": (1, {"gradient": (1, {})})},
    ]


def test_a_decorated_function_stays_what_it_is_and_each_call_is_timed():
    @timed("again")
    def factorial(n, *, base=1):
        """Multiply."""
        return n * factorial(n - 1) if n > 1 else base

    found, _ = collector()
    with collecting(found):
        assert (factorial(4), factorial(1, base=7)) == (24, 7)
    assert names(found.take())["reset"][1] == {
        "again": (2, {"again": (1, {"again": (1, {"again": (1, {})})})}),
    }
    assert (factorial.__name__, factorial.__doc__) == ("factorial", "Multiply.")


def test_gauges_keep_the_last_value_and_what_is_said_of_all():
    found, _ = collector()
    script = ScriptTimes()
    with collecting(found):
        for value in (3, 1, True, 2.5):
            timed.gauge("queue", value)
    timed.gauge("loss", 0.5)
    measured = found.take()
    assert measured is not None
    assert measured.blocks == ()
    queue = measured.gauges["queue"]
    assert (queue.value, queue.minimum, queue.maximum, queue.count, queue.mean) == (2.5, 1, 3, 4, 7.5 / 4)
    assert found.take() is None
    copied = copy.deepcopy(script)
    timed.gauge("loss", 1.5)
    assert (script.measured().gauges["loss"].mean, copied.measured().gauges["loss"].mean) == (1.0, 0.5)


async def waits():
    pass


def generates():
    yield 1


ANY: Any = timed  # for type checkers


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ANY(generates), r'timed takes a name, as in timed\("physics"\), not <function'),
        (lambda: ANY("x")(3), "decorates a function, not 3"),
        (lambda: ANY("x")(waits), r"cannot time waits, which is asynchronous.*`with timed\('x'\):` around"),
        (lambda: ANY("x")(generates), "cannot time generates, which is a generator"),
        (lambda: ANY.gauge("x", "3"), "a name and a number, not 'x' and '3'"),
        (lambda: ANY.gauge("x", None), "a name and a number"),
        (lambda: ANY.gauge(3, 3), "a name and a number"),
    ],
)
def test_what_cannot_be_measured_is_an_error(call, words):
    with pytest.raises(UsageError, match=words):
        call()
