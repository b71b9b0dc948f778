"""Set parameters of environments, such as masses and lengths, before each trajectory; draw them from its seed."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import gymnasium
import numpy as np

from streamsampler.environments.distributions import Choice, Distribution
from streamsampler.environments.methods import find_method
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.environments.updates import AnyEnv, EnvUpdate, apply_env_update, as_env_update, describe
from streamsampler.errors import UsageError
from streamsampler.seeding import Stream, derived_seed
from streamsampler.serialization import Payload, dumps, loads

__all__ = ["Parameters", "SetParameters", "drawn_parameters", "parameter_setter", "with_info", "with_parameters"]

Parameters = dict[str, Any]
_SHOWN = 20


class SetParameters(EnvUpdate):
    """Sets parameters of the environment before the reset of each trajectory; draws them from the trajectory's seed.

    For example, `env_update=SetParameters({"mass": Uniform(1, 2), "length": 0.5})`. Values are constants, or
    distributions of `streamsampler.environments`: `Uniform`, `LogUniform`, `Normal`, `Choice`, or a `Distribution` of
    your own. What was drawn is a dict in `batch.episode_infos["parameters"]`.

    The environment gets them by the first of these that it has: its method `set_parameters(dict)`; `set_task(dict)`, in
    itself or under its wrappers; its attributes of these names, which must be there. Methods and attributes are
    those of `env.unwrapped`. What an environment has computed from its attributes when it was made it does not
    compute again: give it a method `set_parameters` then.

    Parameters of an earlier call are replaced, all of them: the environment is made again where the new ones lack one
    of them.

    Args:
        parameters: Constants and distributions by name.
        env: The environment, in any form that samplers take. None for the one in force, which is possible in an
            `env_update` only.
        info_key: The key in `episode_infos`; for environments whose resets have an info "parameters" of their own.

    Raises:
        UsageError: There are no parameters, names are no strings, or a distribution is within a value.
    """

    def __init__(self, parameters: Mapping[str, Any], env: Any = None, *, info_key: str = "parameters") -> None:
        if not isinstance(parameters, Mapping) or not all(isinstance(name, str) for name in parameters):
            raise UsageError(f"SetParameters takes a dict with the parameters' names as keys, got {parameters!r:.80}")
        if not parameters:
            raise UsageError("SetParameters has no parameters: pass at least one, such as {'mass': Uniform(1, 2)}")
        if not isinstance(info_key, str) or not info_key:
            raise UsageError(f"info_key is the name of an info, got {info_key!r}")
        for name, value in parameters.items():
            _check_value(name, value)
        self.parameters: Parameters = dict(parameters)
        self.info_key = info_key
        # Pickled, as it is sent: each environment is made from a copy of its own, and workers compare these bytes.
        self._source: Payload | None = None
        self.environment_name = type(self).__qualname__
        if env is not None:
            source = as_env_update(env)
            if isinstance(source, SetParameters):
                raise UsageError("SetParameters takes an environment, not SetParameters: put all parameters into one")
            self._take(dumps(source, "the environment"), describe(source))

    def _take(self, source: Payload, name: str) -> None:
        self._source = Payload(bytes(source.data), tuple(bytes(buffer) for buffer in source.buffers))
        self.environment_name = name

    @property
    def has_environment(self) -> bool:
        """Whether it says which environment; otherwise it is for the one in force."""
        return self._source is not None

    @property
    def source(self) -> EnvUpdate:
        """A new copy of the update that makes the environment.

        Raises:
            UsageError: There is none.
        """
        if self._source is None:
            raise UsageError(
                "SetParameters needs an environment here: pass it as SetParameters({…}, env); only the env_update of a "
                "call takes the one in force"
            )
        return cast("EnvUpdate", loads(self._source))

    def on(self, payload: Payload, name: str) -> SetParameters:
        """Return the same for an environment in force.

        Args:
            payload: The update that made it, pickled; of a SetParameters, its environment is taken.
            name: The environment's name.
        """
        bound = copy.copy(self)
        bound._take(payload, name)
        if isinstance(before := bound.source, SetParameters):
            assert before._source is not None
            bound._source = before._source
        return bound

    def __call__(self, old_env: AnyEnv | None) -> AnyEnv:
        """Make the environment unless the old one is as good, and let its resets set the parameters.

        Raises:
            UsageError: It has no such parameters, or is vectorised natively.
        """
        if isinstance(old_env, _ParametrisedEnv) and old_env.goes_with(self._source, self.parameters):
            old_env.set_with(self)
            return old_env
        try:
            env = apply_env_update(self.source, old_env, several=True)
        except UsageError as error:
            if "vector environment" not in str(error):
                raise
            raise UsageError(
                f"{self.environment_name} is vectorised natively, and its environments cannot be given parameters one "
                "by one: pass an environment that is not vectorised, of which VecWorker makes several itself"
            ) from error
        try:
            return _ParametrisedEnv(env, self, self._source)
        except BaseException:
            env.close()  # the worker never sees it
            raise


def _check_value(name: str, value: Any) -> None:
    if isinstance(value, type) and issubclass(value, Distribution):
        raise UsageError(f"the parameter {name!r} is the class {value.__name__} itself: pass an instance of it")
    if isinstance(value, Choice):
        value = value.values
    if not isinstance(value, Distribution):
        _refuse_nested(name, value)


def _refuse_nested(name: str, value: Any) -> None:
    """Check that a value has no distribution within it: only whole values are drawn."""
    if isinstance(value, Distribution):
        raise UsageError(
            f"the parameter {name!r} has {value!r:.60} within its value, and only whole values are drawn: make it a "
            "parameter of its own, or write a Distribution whose draw returns the whole value"
        )
    if isinstance(value, Mapping):
        value = [*value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        for each in value:
            _refuse_nested(name, each)


class _ParametrisedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sets parameters before each reset, and adds them to its info."""

    def __init__(self, env: AnyEnv, update: SetParameters, source: Payload | None) -> None:
        super().__init__(env)
        self.step = env.step  # type: ignore[method-assign]  # timesteps cost what they cost without it
        self._source = source
        self.set_with(update)

    def set_with(self, update: SetParameters) -> None:
        """Take the parameters from here on."""
        self._set = parameter_setter(self.env, update.parameters)
        self.parameters_in_force = update.parameters
        self._info_key = update.info_key

    def set_besides(self, update: SetParameters) -> None:
        """Take parameters from here on, besides those in force that have other names."""
        both = {**self.parameters_in_force, **update.parameters}
        self.set_with(SetParameters(both, info_key=update.info_key))

    def goes_with(self, source: Payload | None, parameters: Parameters) -> bool:
        """Whether it comes from such a source, and nothing that was set remains once these parameters are."""
        return self._source == source and parameters.keys() >= self.parameters_in_force.keys()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw the parameters, set them, and reset the environment."""
        drawn = drawn_parameters(self.parameters_in_force, seed)
        self._set(drawn)
        result = self.env.reset(seed=seed) if options is None else self.env.reset(seed=seed, options=options)
        return with_info(result, self._info_key, drawn, "pass SetParameters(…, info_key=…) another name")


def with_parameters(env: AnyEnv, update: SetParameters) -> AnyEnv:
    """Return an environment whose resets set parameters, besides those of other names that they set already.

    Raises:
        UsageError: The environment has no such parameters.
    """
    if isinstance(env, _ParametrisedEnv):
        env.set_besides(update)
        return env
    return _ParametrisedEnv(env, update, None)


def drawn_parameters(parameters: Parameters, trajectory_seed: int | None) -> Parameters:
    """Return the values of parameters for a trajectory: constants copied, the others drawn in the order of names.

    Args:
        parameters: Constants and distributions.
        trajectory_seed: The trajectory's seed; None for fresh entropy, as environments take it.
    """
    seed = None if trajectory_seed is None else derived_seed(trajectory_seed, Stream.PARAMETERS)
    generator = np.random.default_rng(seed)
    drawn = {name: _drawn(parameters[name], generator) for name in sorted(parameters)}
    return {name: drawn[name] for name in parameters}


def _drawn(value: Any, generator: np.random.Generator) -> Any:
    return copy.deepcopy(value.draw(generator) if isinstance(value, Distribution) else value)


def parameter_setter(env: AnyEnv, parameters: Parameters) -> Callable[[Parameters], None]:
    """Return what sets parameters of these names; see `SetParameters` for the ways.

    Raises:
        UsageError: The environment has neither method, and lacks an attribute, or one is a method; names those that
            there are.
    """
    bare: Any = env.unwrapped
    if isinstance(bare, MultiAgentEnv):
        bare = getattr(bare.env, "unwrapped", bare.env)
    method = getattr(bare, "set_parameters", None)
    if not callable(method):
        method = find_method(env, "set_task")
    if method is not None:
        found = method
        return lambda drawn: cast("None", found(copy.deepcopy(drawn)))
    if missing := [name for name in parameters if not hasattr(bare, name)]:
        names = sorted(name for name, value in vars(bare).items() if not name.startswith("_") and _may_be_set(value))
        there = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "") if names else "none"
        raise UsageError(
            f"{type(bare).__qualname__} has no parameter {', '.join(missing)}: it has no method set_parameters or "
            f"set_task, and these attributes: {there}"
        )
    if methods := [name for name in parameters if inspect.isroutine(getattr(type(bare), name, None))]:
        raise UsageError(
            f"{type(bare).__qualname__} has a method of the name {', '.join(methods)}, which no parameter can replace: "
            "name an attribute, or give the environment a method set_parameters(dict)"
        )
    return lambda drawn: _set_attributes(bare, drawn)


def _may_be_set(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | np.ndarray | np.generic)


def _set_attributes(bare: Any, drawn: Parameters) -> None:
    for name, value in drawn.items():
        try:
            setattr(bare, name, copy.deepcopy(value))
        except AttributeError as error:
            raise UsageError(
                f"the attribute {name} of {type(bare).__qualname__} cannot be set ({error}): give the environment a "
                "method set_parameters(dict)"
            ) from error


def with_info(result: Any, key: str, value: Any, advice: str) -> tuple[Any, dict[str, Any]]:
    """Return what a reset returned, with one info more; what is malformed as it is, for those who say so.

    Raises:
        UsageError: The reset's info has such a key of its own.
    """
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        return result  # type: ignore[no-any-return]
    observation, info = result
    if key in info:
        raise UsageError(f'the environment\'s reset has an info "{key}" of its own: {advice}')
    return observation, {**info, key: value}
