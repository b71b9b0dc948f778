"""Pickling: arrays out of band and private on arrival, classes of the main script, and errors that name the culprit."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import types

import gymnasium
import numpy as np
import pytest

from streamsampler.core import serialization
from streamsampler.core.serialization import Payload, dumps, dumps_report, loads, loads_report, refers_to
from streamsampler.data.trees import equal
from streamsampler.errors import SerializationError


class Holder:
    def __init__(self, value):
        self.value = value


class RefusesItsState:
    def __getstate__(self):
        raise ZeroDivisionError("not today")


ARRAYS = [
    np.arange(1000.0), np.asfortranarray(np.arange(12).reshape(3, 4)), np.arange(100)[::3], np.array(3.0),
    np.zeros((0, 5), np.float32), np.arange(60).reshape(3, 4, 5).transpose(1, 0, 2), np.array([1j, 2])[::-1],
    np.array([("a", 1)], dtype=[("name", "U4"), ("n", "i4")]), np.ones((2, 0, 5), "?"),
]  # fmt: skip


def test_arrays_come_back_equal_private_and_writable():
    payload = dumps(ARRAYS, "the agent")
    copied = Payload(payload.data, tuple(bytes(buffer) for buffer in payload.buffers))
    assert copied.nbytes == payload.nbytes
    for it in (payload, payload, copied, copied):  # nor does one that was loaded before
        for array, before in zip(loads(it), ARRAYS, strict=True):
            assert array.dtype == before.dtype
            assert np.array_equal(array, before)
            array[...] = np.zeros((), dtype=array.dtype)
    array = np.arange(5)
    array.flags.writeable = False
    assert not loads(dumps(array, "the agent")).flags.writeable, "one that was read-only stays so"


def test_buffers_are_views_of_the_live_arrays():
    array = np.zeros(100_000)
    payload = dumps(Holder(array), "the agent")
    assert len(payload.data) < 1000
    assert payload.nbytes == len(payload.data) + array.nbytes
    array[0] = 7
    assert loads(payload).value[0] == 7


def test_functions_and_classes_of_no_module_are_pickled():
    class Local:
        factor = 3

    assert loads(dumps(lambda x: x * Local.factor, "the agent"))(2) == 6


@pytest.mark.parametrize(
    ("obj", "what", "words"),
    [
        (
            Holder({"handles": [1, threading.Lock()]}),
            "the agent",
            r"^the agent \(Holder\) cannot be pickled \(at its \.value\['handles'\]\[1\]\): TypeError:.*__getstate__",
        ),
        (threading.Lock(), "the environment update", "callable that makes the environment"),
        (threading.Lock(), "the worker arguments", r"^the worker arguments \(lock\) .*object\.$"),
        ([RefusesItsState()], "the agent", "ZeroDivisionError: not today"),
        (Holder(line for line in []), "the agent", r"at its \.value\): .*generator"),
    ],
    ids=range(5),
)
def test_the_error_names_what_its_type_the_culprit_and_the_cure(obj, what, words):
    with pytest.raises(SerializationError, match=words) as caught:
        dumps(obj, what)
    assert isinstance(caught.value.__cause__, (TypeError, ZeroDivisionError))
    with pytest.raises(SerializationError, match="the recorded rollout"):
        dumps_report({"env_infos": obj}, None)


def test_what_is_nested_too_deep_is_an_error():
    nested: list = []
    for _ in range(20_000):
        nested = [nested]
    with pytest.raises(SerializationError, match="the agent"):
        dumps(nested, "the agent")
    # Freed one by one: releasing all at once is deep recursion, too.
    while nested:
        nested = nested.pop()


def there_and_back(report):
    contents, buffers = dumps_report(report, None)
    return loads_report(contents, [(buffer, 0) for buffer in buffers]), contents, buffers


def test_arrays_of_a_report_go_out_of_band_unless_they_are_many_and_small(monkeypatch):
    monkeypatch.setattr(serialization, "_ByValue", None)  # the standard pickler suffices
    again, contents, buffers = there_and_back([np.arange(10_000.0), np.arange(1_000), *ARRAYS])
    assert [buffer.nbytes for buffer in buffers][:3] == [80_000, 8_000, 8_000]
    assert len(contents[0]) < 4_000
    assert all(map(equal, again[2:], ARRAYS))
    report = [np.arange(10.0) + number for number in range(1_000)] + [np.arange(1_000.0)]
    again, _, buffers = there_and_back(report)
    assert len(buffers) < 100
    assert buffers[-1].nbytes == 8_000
    assert all(map(equal, again, report))


def test_what_came_by_value_goes_by_value():
    class Info:
        def __init__(self, array):
            self.array = array

    array = np.arange(1000)
    (first, second), _, buffers = there_and_back([array, Info(array + 1)])
    assert len(buffers) == 2, "nothing is left from the pickler that gave up half-way"
    assert first.tolist() == array.tolist()
    assert second.array.tolist() == (array + 1).tolist()


def test_spaces_are_a_pickle_in_the_pickle():
    spaces = gymnasium.spaces.Box(-1, 1, (30, 50)), gymnasium.spaces.Discrete(2)
    contents, buffers = dumps_report([], spaces)
    assert not buffers
    assert dumps_report([], spaces)[0] == contents
    assert pickle.loads(contents[1] or b"") == spaces


def test_a_class_of_the_main_script_goes_to_a_worker_and_back_and_exceptions_of_this_package_go_by_name():
    main = types.ModuleType("__main__")
    exec("class Info:\n    number = 41\n", main.__dict__)
    saved = sys.modules["__main__"]
    sys.modules["__main__"] = main
    try:
        payload = dumps(main.Info, "the agent")
    finally:
        sys.modules["__main__"] = saved
    child = (  # as a worker, which imports no more than it needs
        "import cloudpickle, sys, streamsampler.workers.loop\n"
        "from streamsampler.core.errors import ObservationError\n"
        "from streamsampler.core.serialization import Payload, dumps_report, loads\n"
        "assert len(cloudpickle.dumps(ObservationError('x'))) < 200\n"
        "info = loads(Payload(sys.stdin.buffer.read()))(); info.extra = 1\n"
        "sys.stdout.buffer.write(dumps_report(info, None)[0][0])\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", child]
    answer = subprocess.run(command, input=payload.data, capture_output=True, check=True, env=environ)
    info = pickle.loads(answer.stdout)
    assert (info.number, info.extra) == (41, 1)


def test_an_object_needs_what_it_or_its_module_refers_to(monkeypatch):
    class Net:
        pass

    class Agent:
        pass

    class Derived(Net):
        pass

    def module(name, **contents):
        made = types.ModuleType(name)
        vars(made).update(contents)
        for value in contents.values():
            if isinstance(value, type) and value.__module__ == __name__:
                value.__module__, value.__qualname__ = name, value.__name__
        monkeypatch.setitem(sys.modules, name, made)
        return made

    heavy = module("heavy", Net=Net)
    module("plain", Agent=Agent)
    assert refers_to(dumps(Net(), "it"), "heavy")
    assert not refers_to(dumps(Agent(), "it"), "heavy")
    for contents in ({"heavy": heavy}, {"Derived": Derived}, {"shared": Net()}):
        module("plain", Agent=Agent, **contents)
        assert refers_to(dumps(Agent(), "it"), "heavy"), contents
        assert refers_to(dumps("plain:Agent", "it"), "heavy"), "the entry point of an EnvSpec"
    assert not refers_to(dumps("some words, and no module", "it"), "heavy")
