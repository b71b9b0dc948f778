"""Signatures: the same wherever they should be, and documented in one place."""

import inspect
import pydoc
import re
from typing import get_args, get_type_hints

import click
import numpy as np
import pytest

from streamsampler import (
    EnvManager,
    LocalSampler,
    MultiprocessingSampler,
    RaySampler,
    SerialEnvManager,
    WorkerFactory,
    compare,
    evaluate,
)
from streamsampler.cli.sample import sample
from streamsampler.core.arguments import GROUPS
from streamsampler.errors import UsageError
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.options import AllSamplerOptions, ProcessSamplerOptions, RaySamplerOptions, SamplerOptions
from tests.scripted.failing import Agent, Env

SAMPLERS = [LocalSampler, MultiprocessingSampler]
ALL_SAMPLERS = [*SAMPLERS, RaySampler]
OPTIONS = {
    Sampler: SamplerOptions,
    LocalSampler: SamplerOptions,
    MultiprocessingSampler: ProcessSamplerOptions,
    RaySampler: RaySamplerOptions,
}
OBTAINING = ["obtain_samples", "obtain_trajectories", "obtain_exact_trajectories"]

# The names of arguments on the command line where they differ, and the arguments that it has no option for.
RENAMED = {"agents": "agent", "envs": "env_id", "n_workers": "workers"}
OF_THE_LIBRARY_ALONE = {
    *("worker_class", "worker_args", "restart_on", "limits"),
    *("check", "observation_filter", "reward_filter", "hooks", "inference", "drop_if", "staleness", "record_taken"),
}


def parameters(function):
    return {name: p for name, p in inspect.signature(function).parameters.items() if name != "self"}


def documented(text):
    """Return the arguments that a docstring explains, with the beginnings of the explanations."""
    sections = re.findall(
        rf"^(?:{'|'.join(GROUPS)}):\n(.*?)(?:\n\n|\Z)", inspect.cleandoc(text), re.DOTALL | re.MULTILINE
    )
    return dict(re.findall(r"^    (\w+): (.*)", "\n".join(sections), re.MULTILINE))


@pytest.mark.parametrize("cls", ALL_SAMPLERS)
def test_samplers_take_what_is_common_to_all_alike_by_keyword(cls):
    own = parameters(cls)
    for name, common in parameters(Sampler).items():
        assert own.get(name) == common, f"{cls.__name__} must take {name} as Sampler does: {common}"
    assert list(own)[:2] == ["agents", "envs"]
    assert {parameter.kind for parameter in list(own.values())[2:]} == {inspect.Parameter.KEYWORD_ONLY}
    assert LocalSampler.__init__ is Sampler.__init__


@pytest.mark.parametrize("cls", [Sampler, *ALL_SAMPLERS])
def test_help_explains_all_arguments_of_a_sampler(cls):
    explained = documented(cls.__doc__)
    assert list(explained) == list(parameters(cls))
    assert not [name for name, text in explained.items() if text.startswith("See `")]
    help_text = pydoc.plain(pydoc.render_doc(cls))
    for text in explained.values():
        assert text in help_text
    assert [name for names in GROUPS.values() for name in names if name in explained] == list(explained)
    for section in ("Attributes", "Raises"):  # of the class: those of methods are indented more
        assert (f"\n{section}:\n" in inspect.cleandoc(cls.__doc__)) == (f"\n    {section}:\n" in inspect.getsource(cls))


@pytest.mark.parametrize("called", [EnvManager, SerialEnvManager, evaluate, compare])
def test_arguments_of_managers_and_evaluations_are_in_the_same_groups(called):
    explained = documented(called.__doc__)
    names = list(parameters(called))
    assert sorted(explained) == sorted(names)
    in_groups = [name for group in GROUPS.values() for name in group]
    assert names == sorted(names, key=in_groups.index)
    assert list(explained) == sorted(explained, key=in_groups.index)


def hints_of(cls):
    """Return the type hints of a sampler's arguments, those that it hands on included."""
    return get_type_hints(Sampler.__init__) | get_type_hints(cls.__init__)


def test_what_samplers_hand_on_is_typed_as_it_is_in_the_first_one():
    names = [name for name in parameters(Sampler) if name not in ("agents", "envs")]
    expected = {name: hints_of(Sampler)[name] for name in names}
    assert get_type_hints(AllSamplerOptions) == expected, "type it in SamplerOptions, streamsampler/samplers/options.py"


@pytest.mark.parametrize("cls", [Sampler, *ALL_SAMPLERS])
def test_from_worker_factory_takes_all_that_the_factory_has_not(cls):
    of_factory = {"agents", "envs", *parameters(WorkerFactory)}
    hints = hints_of(cls)
    expected = {name: hints[name] for name in parameters(cls) if name not in of_factory}
    assert get_type_hints(OPTIONS[cls]) == expected
    declared = inspect.signature(cls.from_worker_factory).parameters["options"]
    assert OPTIONS[cls].__name__ in declared.annotation
    for name, parameter in parameters(WorkerFactory).items():
        assert parameter == parameters(Sampler)[name], name


def test_the_command_line_mirrors_the_sampler():
    options = {option.name: option for option in sample.params}
    for name, parameter in parameters(MultiprocessingSampler).items():
        if name in OF_THE_LIBRARY_ALONE:
            continue
        mirrored = RENAMED.get(name, name)
        assert mirrored in options, f"{name}: give the command an option, or say in this test that it has none"
        option = options[mirrored]
        default = None if option.default is not None and "UNSET" in repr(option.default) else option.default
        if parameter.default is not parameter.empty and not option.multiple:
            assert str(default) == str(parameter.default), name
        if isinstance(option.type, click.Choice):
            hint = hints_of(MultiprocessingSampler)[name]
            literals = [value for part in (hint, *get_args(hint)) for value in get_args(part) if isinstance(value, str)]
            others = {"engine": ["ray"], "fingerprint": ["none"]}.get(name, [])  # another sampler's, and None
            assert sorted(option.type.choices) == sorted([*literals, *others])


@pytest.mark.parametrize("name", OBTAINING)
def test_obtaining_calls_have_the_same_further_arguments(name):
    for cls in ALL_SAMPLERS:
        _, *further = parameters(getattr(cls, name)).values()
        assert further[:3] == list(parameters(LocalSampler.obtain_samples).values())[1:4]
        assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in further[3:])


@pytest.mark.parametrize("name", OBTAINING)
def test_a_call_with_an_iteration_number_says_what_the_arguments_are(name):
    with LocalSampler(Agent(), Env) as sampler:
        call = getattr(sampler, name)
        first = next(iter(parameters(call)))
        for second in (True, *((4e3, 4000, np.int64(4000)) if name != "obtain_samples" else ())):
            with pytest.raises(UsageError, match=rf"^{name}\(0, .*\): the arguments are \({first}, agent_update="):
                call(0, second)
        assert sampler.agent_version == 0
