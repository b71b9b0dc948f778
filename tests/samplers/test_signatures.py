"""Signatures: the same wherever they should be, and documented in one place."""

import ast
import inspect
import math
import pydoc
import re
from typing import Any, get_args, get_type_hints

import click
import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, RaySampler, WorkerFactory
from streamsampler.cli.sample import sample
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

# The command line's name for an argument of MultiprocessingSampler; None where it has no option for it.
ON_THE_COMMAND_LINE = {
    "agents": "agent",
    "envs": "env_id",
    "n_workers": "workers",
    "worker_class": None,
    "worker_args": None,
    "restart_window": None,
    "max_lifetime_restarts": None,
    "restart_on": None,
    "construction_timeout": None,
    "check": None,
    "observation_filter": None,
    "reward_filter": None,
    "hooks": None,
    "inference": None,
    "drop_if": None,
    "staleness": None,
}


def parameters(function):
    return {name: p for name, p in inspect.signature(function).parameters.items() if name != "self"}


def documented(text, section="Args"):
    """Return the names that a docstring's section explains, with the beginnings of the explanations."""
    text = inspect.cleandoc(text or "").partition(f"\n{section}:\n")[2].partition("\n\n")[0]
    return dict(re.findall(r"^    (\w+): (.*)", text, re.MULTILINE))


def written(cls):
    """Return the docstring of a class as it stands in the source."""
    (found,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(found, ast.ClassDef)
    return ast.get_docstring(found)


@pytest.mark.parametrize("cls", ALL_SAMPLERS)
def test_samplers_take_what_is_common_to_all_alike(cls):
    own = parameters(cls)
    for name, common in parameters(Sampler).items():
        assert own.get(name) == common, f"{cls.__name__} must take {name} as Sampler does: {common}"


def test_local_sampler_takes_nothing_more():
    assert LocalSampler.__init__ is Sampler.__init__


@pytest.mark.parametrize("cls", [Sampler, *ALL_SAMPLERS])
def test_all_arguments_are_keywords_but_agents_and_environments(cls):
    names = list(parameters(cls))
    assert names[:2] == ["agents", "envs"]
    for name in names:
        kind = parameters(cls)[name].kind
        assert kind is (inspect.Parameter.KEYWORD_ONLY if name not in names[:2] else kind.POSITIONAL_OR_KEYWORD)


def test_each_argument_is_documented_once():
    assert list(documented(written(Sampler))) == list(parameters(Sampler))
    for sampler in (MultiprocessingSampler, RaySampler):
        own = [name for name in parameters(sampler) if name not in parameters(Sampler)]
        assert list(documented(written(sampler))) == ["agents", "envs", *own]
    assert documented(written(LocalSampler)) == documented(written(WorkerFactory)) == {}
    for cls in (*ALL_SAMPLERS, WorkerFactory):
        assert "See `Sampler`" in str(written(cls))


@pytest.mark.parametrize("cls", [Sampler, *ALL_SAMPLERS])
def test_help_explains_all_arguments_of_a_sampler(cls):
    explained = documented(cls.__doc__)
    assert list(explained) == list(parameters(cls))
    assert not [name for name, text in explained.items() if text.startswith("See `")]
    help_text = pydoc.plain(pydoc.render_doc(cls))
    for text in explained.values():
        assert text in help_text
    for section in ("Attributes", "Raises"):
        assert documented(cls.__doc__, section) == documented(written(cls), section)


def test_a_subclass_keeps_its_own_docstring():
    class Own(MultiprocessingSampler):
        """Does something else."""

    assert Own.__doc__ == "Does something else."


def hints_of(cls):
    """Return the type hints of a sampler's arguments, those that it hands on included."""
    return get_type_hints(Sampler.__init__) | get_type_hints(cls.__init__)


def test_what_samplers_hand_on_is_typed_as_it_is_in_the_first_one():
    names = [name for name in parameters(Sampler) if name not in ("agents", "envs")]
    assert get_type_hints(AllSamplerOptions) == {name: hints_of(Sampler)[name] for name in names}


@pytest.mark.parametrize("cls", [Sampler, *ALL_SAMPLERS])
def test_from_worker_factory_takes_all_that_the_factory_has_not(cls):
    of_factory = {"agents", "envs", *parameters(WorkerFactory)}
    hints = hints_of(cls)
    expected = {name: hints[name] for name in parameters(cls) if name not in of_factory}
    assert get_type_hints(OPTIONS[cls]) == expected
    declared = inspect.signature(cls.from_worker_factory).parameters["options"]
    assert OPTIONS[cls].__name__ in declared.annotation


def test_a_worker_factory_takes_its_arguments_as_samplers_do():
    for name, parameter in parameters(WorkerFactory).items():
        assert parameter == parameters(Sampler)[name], name


def test_the_command_line_mirrors_the_sampler():
    options = {option.name: option for option in sample.params}
    for name, parameter in parameters(MultiprocessingSampler).items():
        mirrored = ON_THE_COMMAND_LINE.get(name, name)
        if mirrored is None:
            continue
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


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize("cls", SAMPLERS)
def test_a_wrong_keyword_names_the_sampler(cls):
    with pytest.raises(TypeError, match=r"Sampler.*'step_timeuot'"):
        cls(Agent(), Env, step_timeuot=3)
    with pytest.raises(TypeError, match=r"Sampler.*'step_timeuot'"):
        cls.from_worker_factory(WorkerFactory(), Agent(), Env, step_timeuot=3)


@pytest.mark.parametrize(
    ("name", "second"),
    [
        *[(name, second) for name in OBTAINING for second in (4e3, True) if (name, second) != ("obtain_samples", 4e3)],
        *[(name, second) for name in OBTAINING[1:] for second in (4000, np.int64(4000))],
    ],
)
def test_a_call_with_an_iteration_number_says_what_the_arguments_are(name, second):
    with LocalSampler(Agent(), Env) as sampler:
        first = next(iter(parameters(getattr(sampler, name))))
        with pytest.raises(UsageError, match=rf"^{name}\(0, .*\): the arguments are \({first}, agent_update="):
            getattr(sampler, name)(0, second)
        assert sampler.agent_version == 0


# ---------------------------------------------------------------------- what they mean


class Sized(Env):
    def __init__(self, size=1):
        super().__init__()
        self.size = size

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, float(self.size), *rest


@pytest.mark.parametrize("cls", [LocalSampler, pytest.param(MultiprocessingSampler, marks=pytest.mark.slow)])
def test_env_kwargs_reach_factories_and_lists_of_them(cls):
    for envs in (Sized, [Sized, Sized]):
        with cls(Agent(), envs, env_kwargs={"size": 7}, n_workers=2) as sampler:
            assert set(sampler.obtain_trajectories(4).rewards) == {7.0}
            assert set(sampler.obtain_trajectories(4, env_update=Sized).rewards) == {1.0}, "not to an update"


def test_env_kwargs_reach_ids():
    agent = Agent()
    with LocalSampler(agent, "FrozenLake-v1", env_kwargs={"map_name": "8x8"}) as sampler:
        assert sampler.obtain_trajectories(1).observation_space.n == 64  # type: ignore[attr-defined]


def test_env_kwargs_need_something_to_make():
    with pytest.raises(UsageError, match="env_kwargs are for making an environment, but a Sized is there already"):
        LocalSampler(Agent(), Sized(), env_kwargs={"size": 2})
    for wrong in (["size"], {1: 2}, "size"):
        with pytest.raises(UsageError, match="env_kwargs must be a dict"):
            LocalSampler(Agent(), Sized, env_kwargs=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"inference": "parent"}])
def test_worker_args_are_names_and_values(options):
    wrong: Any
    for wrong in ([4], {1: 2}, 3):
        with pytest.raises(UsageError, match="worker_args must be a dict"):
            MultiprocessingSampler(Agent(), Sized, worker_args=wrong, **options)


def test_no_limit_of_length_may_be_written_as_infinity():
    for infinite in (math.inf, np.inf, np.float32("inf"), None):
        assert WorkerFactory(max_episode_length=infinite).max_episode_length is None  # type: ignore[arg-type]
    for wrong in (-math.inf, math.nan, 2.5, 0):
        with pytest.raises(UsageError, match="max_episode_length"):
            WorkerFactory(max_episode_length=wrong)
    with LocalSampler(Agent(), Env, max_episode_length=math.inf) as sampler:
        assert sampler.obtain_trajectories(1).n_timesteps == 5
