"""Set parameters of environments, such as masses and lengths, before each trajectory; draw them from its seed."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import gymnasium
import numpy as np

from streamsampler.core.errors import UsageError
from streamsampler.core.keywords import suggesting
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.core.serialization import Payload, dumps, loads
from streamsampler.environments.closing import close_env
from streamsampler.environments.distributions import Choice, Distribution
from streamsampler.environments.multi_agent import MultiAgentEnv
from streamsampler.environments.updates import AnyEnv, EnvUpdate, apply_env_update, as_env_update, describe, find_method

Parameters = dict[str, Any]
_SHOWN = 20


@suggesting()
class SetParameters(EnvUpdate):
    """Sets parameters of the environment before each trajectory's reset, drawn from the trajectory's seed.

    For example, `env_update=SetParameters({"mass": Uniform(1, 2), "length": 0.5})`. Values are constants, or
    distributions of `streamsampler.environments`: `Uniform`, `LogUniform`, `Normal`, `Choice`, or your own
    `Distribution`. `batch.episode_infos["parameters"]` has the values of each trajectory.

    The environment receives them by the first of these: `set_parameters(dict)` of `env.unwrapped`; `set_task(dict)`,
    its own or a wrapper's; existing attributes of `env.unwrapped` with these names. Values computed from attributes
    when the environment was made are not computed again: then give it a method `set_parameters`.

    A later call's parameters replace all earlier ones. If it lacks a name, the environment is made again.

    Args:
        parameters: Constants and distributions by name.
        env: The environment, in any form that samplers accept. None, only in an `env_update`, for the current
            environment.
        info_key: The key in `episode_infos`, for environments with their own info "parameters" in resets.

    Raises:
        UsageError: The dict is empty, a name is not a string, or a distribution is nested in a value.
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
        # Pickled, as it is sent: each environment is made from its own copy, and workers compare these bytes.
        self._source: Payload | None = None
        self.environment_name = type(self).__qualname__
        if env is not None:
            source = as_env_update(env)
            if isinstance(source, SetParameters):
                raise UsageError("SetParameters takes an environment, not SetParameters: put all parameters into one")
            self._take(dumps(source, "the environment"), describe(source))
            self.n_slots = source.n_slots

    def _take(self, source: Payload, name: str) -> None:
        self._source = source.owned()
        self.environment_name = name

    @property
    def has_environment(self) -> bool:
        """Whether an environment was passed; otherwise the update changes the current environment."""
        return self._source is not None

    @property
    def source(self) -> EnvUpdate:
        """A new copy of the environment's own update; raises UsageError if no environment was passed."""
        if self._source is None:
            raise UsageError(
                "SetParameters needs an environment here: pass it as SetParameters({…}, env); only the env_update of a "
                "call takes the one in force"
            )
        return cast("EnvUpdate", loads(self._source))

    def on(self, payload: Payload, name: str) -> SetParameters:
        """Return the same update for the environment of a pickled update, without its earlier parameters."""
        bound = copy.copy(self)
        bound._take(payload, name)
        if isinstance(before := bound.source, SetParameters):
            assert before._source is not None
            bound._source = before._source
        bound.n_slots = before.n_slots
        return bound

    def of_slot(self, slot: int) -> EnvUpdate:
        """Return the update for an environment of a worker by its number."""
        if self.n_slots is None:
            return self
        return self.on(dumps(self.source.of_slot(slot), "the environment"), self.environment_name)

    def __call__(self, old_env: AnyEnv | None) -> AnyEnv:
        """Make the environment, unless the old one can be reused, and set the parameters in its resets."""
        if isinstance(old_env, _ParametrisedEnv) and old_env.goes_with(self._source, self.parameters):
            old_env.set_with(self)
            return old_env
        try:
            env = apply_env_update(self.source, old_env, several=True, waits=True)
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
            close_env(env)  # the worker never receives it
            raise


def _check_value(name: str, value: Any) -> None:
    if isinstance(value, type) and issubclass(value, Distribution):
        raise UsageError(f"the parameter {name!r} is the class {value.__name__} itself: pass an instance of it")
    if isinstance(value, Choice):
        value = value.values
    if not isinstance(value, Distribution):
        _refuse_nested(name, value)


def _refuse_nested(name: str, value: Any) -> None:
    """Refuse a distribution nested in a value: only whole values are drawn."""
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
    """Sets parameters before each reset, and adds them to the reset's info."""

    sees_results = True

    def __init__(self, env: AnyEnv, update: SetParameters, source: Payload | None) -> None:
        super().__init__(env)
        self.step = env.step  # type: ignore[method-assign]  # a timestep costs no extra call
        self._source = source
        self._drawn: Parameters | None = None  # values already set for the next reset
        self.set_with(update)

    def set_with(self, update: SetParameters) -> None:
        self._set = parameter_setter(self.env, update.parameters)
        self.parameters_in_force = update.parameters
        self._info_key = update.info_key

    def set_besides(self, update: SetParameters) -> None:
        """Add parameters, which replace present parameters of the same names."""
        both = {**self.parameters_in_force, **update.parameters}
        self.set_with(SetParameters(both, info_key=update.info_key))

    def goes_with(self, source: Payload | None, parameters: Parameters) -> bool:
        """Return whether the environment has this source, and these parameters overwrite all earlier ones."""
        return self._source == source and parameters.keys() >= self.parameters_in_force.keys()

    def before_reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> None:  # noqa: ARG002
        """Draw and set the parameters early, where the inner environment is reset before this wrapper."""
        self._drawn = drawn_parameters(self.parameters_in_force, seed)
        self._set(self._drawn)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if self._drawn is None:
            self.before_reset(seed=seed)
        drawn, self._drawn = self._drawn, None
        result = self.env.reset(seed=seed) if options is None else self.env.reset(seed=seed, options=options)
        return with_info(result, self._info_key, drawn, "pass SetParameters(…, info_key=…) another name")


def with_parameters(env: AnyEnv, update: SetParameters) -> AnyEnv:
    """Return an environment whose resets also set these parameters."""
    if isinstance(env, _ParametrisedEnv):
        env.set_besides(update)
        return env
    return _ParametrisedEnv(env, update, None)


def drawn_parameters(parameters: Parameters, trajectory_seed: int | None) -> Parameters:
    """Return a trajectory's parameter values: copies of constants, and draws in the order of names."""
    seed = None if trajectory_seed is None else derived_seed(trajectory_seed, SeedUse.PARAMETERS)
    generator = np.random.default_rng(seed)
    drawn = {name: _drawn(parameters[name], generator) for name in sorted(parameters)}
    return {name: drawn[name] for name in parameters}


def _drawn(value: Any, generator: np.random.Generator) -> Any:
    return copy.deepcopy(value.draw(generator) if isinstance(value, Distribution) else value)


def parameter_setter(env: AnyEnv, parameters: Parameters) -> Callable[[Parameters], None]:
    """Return a setter for parameters of these names; see `SetParameters` for the ways.

    Raises:
        UsageError: The environment has neither method, and an attribute is missing or a method.
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
    """Add an info to a reset's result; return a malformed result unchanged, for later checks."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict)):
        return result  # type: ignore[no-any-return]
    observation, info = result
    if key in info:
        raise UsageError(f'the environment\'s reset has an info "{key}" of its own: {advice}')
    return observation, {**info, key: value}
