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


def whole(buffers):
    return [(buffer, 0) for buffer in buffers]


class Holder:
    def __init__(self, value):
        self.value = value


class RefusesItsState:
    def __getstate__(self):
        raise ZeroDivisionError("not today")


class TestDumps:
    @pytest.mark.parametrize(
        "array",
        [
            np.arange(1000.0),
            np.asfortranarray(np.arange(12).reshape(3, 4)),
            np.arange(100)[::3],
            np.zeros((0, 5), dtype=np.float32),
            np.array(3.0),
            np.array([("a", 1)], dtype=[("name", "U4"), ("n", "i4")]),
            np.arange(60).reshape(3, 4, 5).transpose(1, 0, 2),
        ],
        ids=lambda array: f"{array.dtype.kind}{array.shape}",
    )
    def test_arrays_come_back_equal_private_and_writable(self, array):
        before = array.copy()
        copy = loads(dumps({"weights": array}, "the agent"))["weights"]
        assert copy.dtype == array.dtype
        assert np.array_equal(copy, array)
        assert copy.flags.writeable
        copy[...] = np.zeros((), dtype=array.dtype)
        assert np.array_equal(array, before)

    def test_each_load_has_its_own_arrays(self):
        payload = dumps(np.zeros(3), "the agent")
        first, second = loads(payload), loads(payload)
        first += 1
        assert second.tolist() == [0, 0, 0]

    def test_buffers_are_views_of_the_live_arrays(self):
        array = np.zeros(100_000)
        payload = dumps(Holder(array), "the agent")
        assert len(payload.data) < 1000
        assert payload.nbytes == len(payload.data) + array.nbytes
        array[0] = 7
        assert loads(payload).value[0] == 7

    def test_copied_buffers_do_as_well(self):
        payload = dumps(np.arange(5), "the agent")
        copied = Payload(payload.data, tuple(bytes(buffer) for buffer in payload.buffers))
        array = loads(copied)
        array += 1
        assert array.tolist() == [1, 2, 3, 4, 5]
        assert loads(copied).tolist() == [0, 1, 2, 3, 4]
        assert copied.nbytes == payload.nbytes

    def test_read_only_arrays_stay_read_only(self):
        array = np.arange(5)
        array.flags.writeable = False
        assert not loads(dumps(array, "the agent")).flags.writeable

    def test_lambdas_and_local_classes(self):
        class Local:
            factor = 3

        function = loads(dumps(lambda x: x * Local.factor, "the agent"))
        assert function(2) == 6


class TestErrors:
    def test_names_what_the_type_the_culprit_and_the_cure(self):
        agent = Holder({"handles": [1, threading.Lock()]})
        with pytest.raises(SerializationError) as caught:
            dumps(agent, "the agent")
        message = str(caught.value)
        assert message.startswith("the agent (Holder) cannot be pickled (at its .value['handles'][1]): TypeError:")
        assert "__getstate__" in message
        assert isinstance(caught.value.__cause__, TypeError)

    def test_the_cure_for_environments(self):
        with pytest.raises(SerializationError, match="callable that makes the environment"):
            dumps(threading.Lock(), "the environment update")

    def test_no_cure_for_anything_else(self):
        with pytest.raises(SerializationError, match=r"^the worker arguments \(lock\) .*object\.$"):
            dumps(threading.Lock(), "the worker arguments")

    def test_user_code_may_raise_anything(self):
        with pytest.raises(SerializationError, match="ZeroDivisionError: not today") as caught:
            dumps([RefusesItsState()], "the agent")
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_too_deep(self):
        nested: list = []
        for _ in range(100_000):
            nested = [nested]
        with pytest.raises(SerializationError, match="the agent"):
            dumps(nested, "the agent")
        # Freed one by one: releasing all at once is deep recursion, too.
        while nested:
            nested = nested.pop()

    def test_an_attribute_that_is_no_container(self):
        holder = Holder(line for line in [])
        with pytest.raises(SerializationError, match=r"at its \.value\): .*generator"):
            dumps(holder, "the agent")


class TestDumpsReport:
    def test_arrays_go_out_of_band(self):
        report = {"observations": np.arange(10_000.0), "actions": np.arange(1_000), "strange": np.array([1j, 2])[::-1]}
        contents, buffers = dumps_report(report, None)
        assert len(contents[0]) < 1000
        assert [buffer.nbytes for buffer in buffers] == [80_000, 8_000]
        again = loads_report(contents, whole(buffers))
        assert all(np.array_equal(again[key], report[key]) for key in report)
        assert all(again[key].dtype == report[key].dtype for key in report)

    def test_arrays_of_any_shape_come_out_again(self):
        report = [
            np.zeros((0, 3), np.float32),
            np.array(1.5),
            np.arange(24.0).reshape(2, 3, 4),
            np.ones((2, 0, 5), "?"),
        ]
        contents, buffers = dumps_report(report, None)
        again = loads_report(contents, whole(buffers))
        assert [array.shape for array in again] == [array.shape for array in report]
        assert all(map(equal, again, report))

    def test_of_many_small_arrays_most_stay(self):
        report = [np.arange(10.0) + number for number in range(1_000)] + [np.arange(1_000.0)]
        contents, buffers = dumps_report(report, None)
        assert len(buffers) < 100
        assert buffers[-1].nbytes == 8_000
        assert all(map(equal, loads_report(contents, whole(buffers)), report))

    def test_the_standard_pickler_comes_first(self, monkeypatch):
        def fail(*args, **kwargs):
            raise AssertionError("cloudpickle was used")

        monkeypatch.setattr(serialization, "_ByValue", fail)
        dumps_report(Holder(np.zeros(3)), None)

    def test_what_came_by_value_goes_by_value(self):
        class Info:
            def __init__(self, array):
                self.array = array

        array = np.arange(1000)
        contents, buffers = dumps_report([array, Info(array + 1)], None)
        # Nothing is left from the pickler that gave up half-way.
        assert len(buffers) == 2
        first, second = loads_report(contents, whole(buffers))
        assert first.tolist() == array.tolist()
        assert second.array.tolist() == (array + 1).tolist()

    @pytest.mark.parametrize(
        "info", [threading.Lock(), RefusesItsState(), (i for i in "a")], ids=lambda i: type(i).__name__
    )
    def test_what_cannot_be_pickled(self, info):
        with pytest.raises(SerializationError, match="what the rollout recorded"):
            dumps_report({"env_infos": info}, None)

    def test_spaces_are_a_pickle_in_the_pickle(self):
        spaces = gymnasium.spaces.Box(-1, 1, (30, 50)), gymnasium.spaces.Discrete(2)
        contents, buffers = dumps_report([], spaces)
        assert not buffers
        again, _ = dumps_report([], spaces)
        assert again == contents
        assert pickle.loads(contents[1] or b"") == spaces

    def test_a_class_of_the_main_script_goes_there_and_back(self):
        # As a worker sees it: the class arrives by value, and an instance has to return to a process that has it.
        main = types.ModuleType("__main__")
        exec("class Info:\n    number = 41\n", main.__dict__)
        saved = sys.modules["__main__"]
        sys.modules["__main__"] = main
        try:
            payload = dumps(main.Info, "the agent")
        finally:
            sys.modules["__main__"] = saved
        child = (
            "import pickle, sys\n"
            "from streamsampler.core.serialization import Payload, dumps_report, loads\n"
            "cls = loads(Payload(sys.stdin.buffer.read()))\n"
            "info = cls(); info.extra = 1\n"
            "sys.stdout.buffer.write(dumps_report(info, None)[0][0])\n"
        )
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", child]
        answer = subprocess.run(command, input=payload.data, capture_output=True, check=True, env=environ)
        info = pickle.loads(answer.stdout)
        assert (info.number, info.extra) == (41, 1)


# ---------------------------------------------------------------------- what a pickled object needs


def a_module(monkeypatch, name, **contents):
    module = types.ModuleType(name)
    vars(module).update(contents)
    for value in contents.values():
        if isinstance(value, (type, types.FunctionType)) and value.__module__ == __name__:
            value.__module__, value.__qualname__ = name, value.__name__
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_an_object_needs_what_it_or_its_module_refers_to(monkeypatch):
    class Net:
        pass

    class Agent:
        pass

    class Derived(Net):
        pass

    heavy = a_module(monkeypatch, "heavy", Net=Net)
    a_module(monkeypatch, "plain", Agent=Agent)
    assert refers_to(dumps(Net(), "it"), "heavy")
    assert not refers_to(dumps(Agent(), "it"), "heavy")
    for contents in ({"heavy": heavy}, {"Derived": Derived}, {"shared": Net()}):
        a_module(monkeypatch, "plain", Agent=Agent, **contents)
        assert refers_to(dumps(Agent(), "it"), "heavy"), contents
        assert refers_to(dumps("plain:Agent", "it"), "heavy"), "the entry point of an EnvSpec"
    assert not refers_to(dumps("some words, and no module", "it"), "heavy")


def test_exceptions_of_this_package_are_pickled_by_name():
    """In a worker, which imports no more than it needs: by value they would be of another class in the parent."""
    code = """
import cloudpickle
import streamsampler.workers.loop
from streamsampler.core.errors import ObservationError
print(len(cloudpickle.dumps(ObservationError("x"))) < 200)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "True\n"
