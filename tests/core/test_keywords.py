"""Wrong keywords of public calls: each error names the one that was probably meant, before anything is started."""

import inspect
import re
from typing import Any

import pytest

import streamsampler
from streamsampler import (
    EnvManager,
    Limits,
    LocalSampler,
    MultiprocessingSampler,
    RaySampler,
    SerialEnvManager,
    VecWorker,
    WorkerFactory,
    compare,
    environments,
    evaluate,
    filters,
    formats,
    replay,
    sample_to_folder,
    testing,
)
from streamsampler.checking.bench import bench
from streamsampler.core.keywords import meant
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.samplers.streaming import Stream
from streamsampler.stepping.recorder import StepsRecorder
from tests.extending.pairs import PairWorker

MODULES = (streamsampler, environments, filters, formats, testing)
# Not called by users' scripts, or with keywords of the user's own, or by one or two positions alone.
LEFT_OUT = {
    *(
        "EnvUpdate",
        "Worker",
        "DefaultWorker",
        "VecWorker",
        "AsyncWorker",
        "Agent",
        "Steps",
        "StepType",
        "run_worker",
        "Distribution",
    ),
    *("Filter", "FilteredAgent", "Filters", "Moments", "FailPoint", "Frames", "export", "Sampler"),
}
# Classes of which users call methods by keywords; of all others, they make objects.
CALLED = (
    *(LocalSampler, MultiprocessingSampler, RaySampler, EnvManager, SerialEnvManager, StepsRecorder, Stream),
    *(streamsampler.TrajectoryBatch, streamsampler.MultiAgentBatch, streamsampler.TrajectoryFolder),
    *(Evaluation, Comparison),
)


def keywords_of(function: Any) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [it.name for it in parameters if it.kind in (it.KEYWORD_ONLY, it.POSITIONAL_OR_KEYWORD)]


def made_or_called() -> dict[str, tuple[Any, list[str]]]:
    """Return the functions and classes of public modules, each with its keywords, by name."""
    found: dict[str, tuple[Any, list[str]]] = {"bench": (bench, keywords_of(bench))}
    for module in MODULES:
        for name in module.__all__:
            value = getattr(module, name)
            is_error = isinstance(value, type) and issubclass(value, BaseException)
            if callable(value) and name not in LEFT_OUT and not is_error:
                found[name] = (value, keywords_of(value))
    return found


def methods() -> dict[str, tuple[Any, list[str]]]:
    """Return the public methods of classes that users have objects of, each with its keywords, by name."""
    found: dict[str, tuple[Any, list[str]]] = {}
    for cls in CALLED:
        for name in dir(cls):
            method = inspect.getattr_static(cls, name)
            function = method.__func__ if isinstance(method, staticmethod | classmethod) else method
            if name.startswith("_") or name == "make_engine" or not inspect.isfunction(function):
                continue
            if not any(it.kind is it.VAR_KEYWORD for it in inspect.signature(function).parameters.values()):
                keywords = [keyword for keyword in keywords_of(function) if keyword not in ("self", "cls")]
                found[f"{cls.__name__}.{name}"] = (function, keywords)
    return found


CALLS = {name: call for name, call in (made_or_called() | methods()).items() if call[1]}


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_keyword_of_a_public_call_says_which_one_was_meant(name: str) -> None:
    call, keywords = CALLS[name]
    for keyword in keywords:
        with pytest.raises(TypeError, match=rf"has no argument '{keyword}_': did you mean .*'\?$"):
            call(None, None, **{f"{keyword}_": 1})


@pytest.mark.parametrize(
    ("call", "wrong", "words"),
    [
        (evaluate, "n_worker", "evaluate has no argument 'n_worker': did you mean 'n_workers'?"),
        (evaluate, "step_timeot", "did you mean 'step_timeout'?"),
        (evaluate, "ray_adress", "did you mean 'ray_address'?"),
        (compare, "env_kwarg", "did you mean 'env_kwargs'?"),
        (compare, "num_workers", "did you mean 'n_workers'?"),
        (replay, "reset_option", "did you mean 'reset_options'?"),
        (replay, "qwertz", "replay has no argument 'qwertz'; it has source, index, agent"),
        (LocalSampler, "step_timeout", "LocalSampler has no argument 'step_timeout'"),
        (MultiprocessingSampler, "num_workers", "did you mean 'n_workers'?"),
        (MultiprocessingSampler, "step_timeot", "did you mean 'step_timeout'?"),
        (MultiprocessingSampler, "env", "did you mean 'envs'?"),
        (MultiprocessingSampler, "close_timeout", "no argument 'close_timeout': pass limits=Limits(close_timeout=…)"),
        (evaluate, "max_worker_memory", "pass limits=Limits(max_worker_memory=…)"),
        (EnvManager, "construction_timeout", "pass limits=Limits(construction_timeout=…)"),
        (Limits, "close_timeot", "Limits has no argument 'close_timeot': did you mean 'close_timeout'?"),
        (WorkerFactory, "max_path_lenght", "WorkerFactory has no argument 'max_path_lenght'"),
        (SerialEnvManager, "num_envs", "did you mean 'n_envs'?"),
        (sample_to_folder, "num_samples", "did you mean 'n_timesteps'?"),
        (LocalSampler.obtain_samples, "n_timesteps", "did you mean 'num_samples'?"),
    ],
)
def test_names_of_other_calls_and_libraries_lead_to_the_right_one(call: Any, wrong: str, words: str) -> None:
    with pytest.raises(TypeError, match=re.escape(words)):
        call(None, **{wrong: 1})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"worker_class": VecWorker, "worker_args": {"n_env": 3}}, "VecWorker has no argument 'n_env': .* 'n_envs'"),
        ({"worker_args": {"n_envs": 3}}, "DefaultWorker has no argument 'n_envs'; it has none"),
        ({"worker_class": PairWorker, "worker_args": {"repeats": 3}}, "PairWorker .* 'repeats': .* 'repeat'"),
    ],
)  # fmt: skip
def test_a_wrong_name_in_worker_args_is_an_error_before_workers_start(arguments: Any, words: str) -> None:
    for sampler in (LocalSampler, MultiprocessingSampler):
        with pytest.raises(TypeError, match=words):
            sampler("random", "CartPole-v1", **arguments)


def test_what_arguments_go_by_in_error_messages() -> None:
    assert meant("batchsize", ["batch_size", "seed"]) == ": did you mean 'batch_size'?"
    assert meant("n_episodes", ["n_timesteps", "n_trajectories"]) == ": did you mean 'n_trajectories'?"
    assert meant("x", ["batch_size", "seed"]) == "; it has batch_size, seed"


def test_docstrings_and_signatures_are_those_of_the_calls() -> None:
    assert str(inspect.signature(LocalSampler.warm_up)).startswith("(self, n_timesteps: 'int'")
    assert (evaluate.__name__, evaluate.__module__) == ("evaluate", "streamsampler.evaluation.evaluate")
