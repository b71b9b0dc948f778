"""The `Agent` protocol, and its checks: how objects, functions and names become agents."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from gymnasium import registry
from gymnasium.spaces import Space

from streamsampler.agents.masks import ACTION_MASK, ACTION_MASKS
from streamsampler.agents.random import RandomAgent
from streamsampler.core.awaiting import has_coroutines
from streamsampler.core.errors import UsageError
from streamsampler.core.words import AGENT_FIRST

__all__ = [
    "NAMED_AGENTS",
    "WHAT_AN_AGENT_IS",
    "Agent",
    "AgentLike",
    "CallableAgent",
    "MaskedAgent",
    "adapter_line",
    "agent_waits",
    "as_agent",
    "binds",
    "give_spaces",
    "is_agent",
    "is_module",
    "is_row_independent",
    "mask_argument",
    "reset_agent_function",
    "row_keywords",
    "shared_agent",
    "signature_of",
    "takes_keyword",
    "takes_masks",
    "takes_seed",
]

WHAT_AN_AGENT_IS = (
    "an object with get_action(observation) -> (action, agent_info), or a plain callable observation -> action"
)
_OPTIONAL_METHODS = frozenset(
    {"reset", "get_actions", "row_independent", "set_spaces", "get_param_values", "set_param_values"}
    | {"get_param_converter", "get_state", "set_state", "begin_part", "get_value"}
)
NAMED_AGENTS = ("random",)
_MASKS = ("do_resets", "dones")
"""Names for a mask argument of `reset`: in garage, and before that in rllab."""


@runtime_checkable
class Agent(Protocol):
    """Chooses actions for observations.

    Only `get_action` is required. Optional methods and attributes (more in `streamsampler/docs/agents.md`):

    - ``reset(seed=…)``, called at each trajectory's start with the trajectory's own seed for the agent: seed the
      agent's generator, and clear its memory. ``reset()`` suffices to clear a memory.
    - ``get_actions(observations)`` chooses actions for n observations (leaves of shape (n, ...), which the agent may
      change), and returns ``(actions, agent_infos)``: n actions, and a dict of arrays (n, ...). It may replace
      `get_action` with `VecWorker`, with ``inference="parent"``, and with `AsyncWorker`, where it may be an ``async
      def``. `VecWorker` always passes the same number of rows (`workers.vec.lanes.rows_of_lanes`), with copies of
      observations in idle rows, whose results are discarded. Optional keywords, for agents with a memory or random
      draws: ``starts``, n booleans (the row starts a trajectory); ``draws``, a `streamsampler.agents.draws.Draws` with
      a random stream for each row's trajectory; ``seeds``, n integers (the seed of `reset` for the row's trajectory);
      ``slots``, the rows' numbers. Rows without an environment have higher ``slots``, ``starts`` False, and unused
      ``draws``.
    - ``row_independent = True`` (attribute or property) promises: each row of a result depends only on the row's
      observation, memory and draws, as long as batches have the same number of rows. `VecWorker` then need not run
      trajectories in blocks, and calls `reset` only with a mask. Agents that draw from global generators, or from a
      generator for all rows, must not promise it; workers check (`streamsampler.agents.independence.probe`). In blocks,
      an agent with `get_actions` is reset once per block.
    - ``reset(do_resets)`` (or ``reset(dones)``), for a `get_actions` without ``starts``: receives a boolean mask of n
      rows, True where a trajectory starts; all True in the first call and in a new block. With a ``seed`` argument, it
      is called for row after row. `DefaultWorker` omits the mask, or passes a single True if it has no default.
    - ``set_spaces(observation_space, action_space)`` is called once on a worker's copy of the agent, before parameters
      and actions. The spaces are the environment's own: copy a space before you sample from it. After an
      ``env_update``, workers receive a new copy of such an agent.
    - ``get_param_values()`` and ``set_param_values(values)``: the latter receives agent updates (tuple, dict or array).
    - ``get_state()`` and ``set_state(state)``, for an agent with ``reset`` or ``starts``: memory and generators in the
      middle of a trajectory, picklable. `obtain_fragments` needs both to resume an episode after its worker was lost.
    - ``sharing_parameters()``, for an agent with ``reset``: returns another agent with its own memory and generator,
      and the same parameters (not a copy), or None. `AsyncWorker` then needs no copy for each trajectory in flight. It
      asks again after each update, which only the agent itself receives.
    - ``begin_part()`` is called in a continuing episode before the first action of each `obtain_fragments` call, so
      that an agent records its memory for sequences that start there.
    - The keywords ``action_mask`` of `get_action` and ``action_masks`` of ``get_actions``: the allowed actions.
    - ``get_value(observation)``, for an agent with "value" in its infos: the value of a trajectory's last observation
      that is not terminal, for `batch.last_values`. It must not change the agent's memory. If each row has a memory, it
      must accept the row's number as the keyword ``slot``, or is not called.
    - ``get_param_converter()`` returns a small picklable function for the sampler's process. It converts agent updates
      of the agent's own kind (such as a module) to parameters before they are sent, and returns `NotImplemented` for
      others. An exception in it refuses the update.

    Agents are pickled into the workers. For example::

        class GaussianAgent:
            def __init__(self, weights):
                self.weights = weights
                self.rng = np.random.default_rng()

            def reset(self, seed):
                self.rng = np.random.default_rng(seed)

            def get_action(self, observation):
                mean = observation @ self.weights
                return self.rng.normal(mean), {"mean": mean}

            def set_param_values(self, weights):
                self.weights = weights
    """

    def get_action(self, observation: Any, /) -> tuple[Any, dict[str, Any]]:
        """Choose an action.

        Args:
            observation: An observation of the environment.

        Returns:
            The action, and a dict of infos to record with it.
        """
        ...


class AgentOfRows(Protocol):
    """An agent with only `get_actions`; see `Agent`."""

    @property
    def get_actions(self) -> Callable[..., Any]: ...


class MaskedAgent(Protocol):
    """An agent with action masks, for type checkers."""

    def get_action(self, observation: Any, /, *, action_mask: Any) -> tuple[Any, dict[str, Any]]:
        """Choose an allowed action."""
        ...


class AwaitedAgent(Protocol):
    """An asynchronous agent, for type checkers; see `streamsampler.AsyncWorker`."""

    async def get_action(self, observation: Any, /) -> tuple[Any, dict[str, Any]]:
        """Choose an action."""
        ...


class _MaskedFunction(Protocol):
    """A plain callable with action masks."""

    def __call__(self, observation: Any, /, *, action_mask: Any) -> Any: ...


AgentLike: TypeAlias = (
    Agent | AgentOfRows | MaskedAgent | AwaitedAgent | Callable[[Any], Any] | _MaskedFunction | Literal["random"]
)
"""Accepted forms of agents; see `as_agent`."""


_UNAWAITED = (
    *("reset", "set_param_values", "get_state", "set_state", "set_spaces", "get_param_values", "begin_part"),
    "sharing_parameters",
)


class CallableAgent:
    """Makes an agent of a plain callable; the callable's own optional methods (see `Agent`) become the agent's.

    Attributes:
        function: The callable, ``observation -> action``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return f"CallableAgent({self.function!r})"

    def __getattr__(self, name: str) -> Any:
        # Only these names, and never by way of self.function, which does not exist yet during unpickling.
        if name in _OPTIONAL_METHODS and "function" in self.__dict__:
            return getattr(self.__dict__["function"], name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Call the function; infos are empty."""
        return self.function(observation), {}


class _AwaitedCallableAgent(CallableAgent):
    """Makes an agent of an `async def`."""

    async def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        return await self.function(observation), {}


class _MaskedCallableAgent(CallableAgent):
    """Makes an agent of a plain callable with the keyword `action_mask`."""

    def get_action(self, observation: Any, *, action_mask: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.function(observation, action_mask=action_mask), {}


def as_agent(obj: Any) -> Agent:
    """Return an agent for any accepted form: an agent (returned as it is), a plain callable, or "random".

    Raises:
        UsageError: The object is none of these.
    """
    if isinstance(obj, type):
        raise UsageError(
            f"the agent is the class {obj.__qualname__} itself: pass an instance of it. An agent is {WHAT_AN_AGENT_IS}"
        )
    if unawaited := [name for name in _UNAWAITED if has_coroutines(obj, name)]:
        raise UsageError(
            f"{type(obj).__qualname__} has async def {unawaited[0]}, which is never awaited: make it an ordinary "
            "method. Only get_action, get_actions and get_value may be async"
        )
    if callable(getattr(obj, "get_action", None)) or (
        callable(getattr(obj, "get_actions", None)) and (is_module(obj) or not callable(obj))
    ):
        agent: Agent = obj
        return agent
    if (line := adapter_line(obj)) is not None:
        raise UsageError(f"the agent ({type(obj).__qualname__}) has no get_action: pass {line}")
    if has_coroutines(obj, "__call__") or inspect.iscoroutinefunction(obj):
        return cast("Agent", _AwaitedCallableAgent(obj))
    if callable(obj):
        return (_MaskedCallableAgent if _declares(obj, ACTION_MASK) else CallableAgent)(obj)
    if isinstance(obj, str) and obj in NAMED_AGENTS:
        return RandomAgent()
    raise UsageError(_what_it_is(obj))


def _what_it_is(obj: Any) -> str:
    if isinstance(obj, str):
        if obj in registry:
            return f"{obj!r} is an environment: {AGENT_FIRST}"
        return f"no agent has the name {obj!r}: the only named agent is 'random'"
    if callable(getattr(obj, "step", None)) and callable(getattr(obj, "reset", None)):
        return f"this {type(obj).__qualname__} is an environment: {AGENT_FIRST}"
    hint = (
        "; to give each worker its own agent, pass PerWorker([…]), without lists in it"
        if isinstance(obj, tuple | list)
        else ""
    )
    return f"an agent is {WHAT_AN_AGENT_IS}; this {type(obj).__qualname__} is neither{hint}"


def adapter_line(obj: Any) -> str | None:
    """Return the code to make an agent of another library's policy, or None."""
    if callable(getattr(obj, "predict", None)) and (is_module(obj) or not callable(obj)):
        return "SB3Agent(model), or SB3Agent(model, deterministic=True), from streamsampler.adapters.sb3"
    if is_module(obj):
        return (
            "TorchAgent(module, env.action_space), from streamsampler.adapters.torch; or, where module(observation) "
            "is an action, a function that returns it"
        )
    return None


def is_module(obj: Any) -> bool:
    """Return whether an object is a torch module; torch is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.nn.Module)


def is_agent(obj: Any) -> bool:
    """Return whether an object is certainly an agent: other callables, such as a torch module, may be parameters."""
    if isinstance(obj, type | str):
        return obj in NAMED_AGENTS
    has_method = any(callable(getattr(obj, name, None)) for name in ("get_action", "get_actions"))
    return has_method or inspect.isroutine(obj) or isinstance(obj, functools.partial)


def acts_alone(agent: Any) -> bool:
    """Return whether an agent, wrapped or not, has `get_action`."""
    return callable(getattr(agent, "get_action", None)) and getattr(agent, "wraps_what_acts_alone", True)


def agent_waits(agent: Any) -> bool:
    """Return whether an agent is asynchronous."""
    return has_coroutines(agent, "get_action", "get_actions")


_OF_ROWS = ("slots", "starts", "seeds", "draws")


def is_row_independent(agent: Any) -> bool:
    """Return an agent's `row_independent` (see `Agent`); raise UsageError unless True or False."""
    said = getattr(agent, "row_independent", False)
    if not isinstance(said, bool | np.bool_):
        raise UsageError(
            f"row_independent of the agent ({type(agent).__qualname__}) must be True or False, an attribute or a "
            f"property, but is {said!r}"
        )
    return bool(said)


def reset_agent_function(agent: Any) -> Callable[[int], None] | None:
    """Return a function to reset an agent with a seed at a trajectory's start; None without `reset`.

    Raises:
        UsageError: `reset` demands other arguments than a seed, a mask, both or nothing.
    """
    reset = getattr(agent, "reset", None)
    if not callable(reset):
        return None
    signature = signature_of(reset)
    if signature is None or binds(signature, seed=0):
        return lambda seed: reset(seed=seed)
    parameter = signature.parameters.get("seed")
    if parameter is not None and binds(signature, 0):
        # A positional-only seed, as in methods written in C.
        return lambda seed: reset(seed)
    if binds(signature):
        return lambda _: reset()
    if (name := mask_argument(reset)) is not None:
        if binds(signature, **{name: None}, seed=0):
            return lambda seed: reset(**{name: np.ones(1, dtype=np.bool_)}, seed=seed)
        if binds(signature, **{name: None}):
            return lambda _: reset(**{name: np.ones(1, dtype=np.bool_)})
    raise UsageError(
        f"the agent ({type(agent).__qualname__}) has reset{signature}, but it must accept reset(seed=…), reset(), or "
        "reset(do_resets) with a mask of the rows that start a trajectory"
    )


def shared_agent(agent: Any) -> Agent | None:
    """Return another agent with the same parameters and its own memory; None if the agent must be copied instead.

    `sharing_parameters` (see `Agent`) must be of the agent's own class, not found by a wrapper's `__getattr__`: the
    result would lack the wrapper.

    Raises:
        UsageError: The method returned the agent itself, or an object without its methods.
    """
    given: Any = agent.function if isinstance(agent, CallableAgent) else agent
    if not callable(getattr(type(given), "sharing_parameters", None)):
        return None
    shared = given.sharing_parameters()
    if shared is None:
        return None
    methods = [name for name in ("get_action", "reset") if callable(getattr(given, name, None))]
    is_other = shared is not given and not isinstance(shared, type)
    if not (is_other and all(callable(getattr(shared, name, None)) for name in methods)):
        raise UsageError(
            f"sharing_parameters of {type(given).__qualname__} must return another agent with the same methods, or "
            f"None, but returned {shared!r:.80}"
        )
    return as_agent(shared)


def give_spaces(agent: Agent, observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Call an agent's `set_spaces`, if it has that method."""
    set_spaces = getattr(agent, "set_spaces", None)
    if callable(set_spaces):
        set_spaces(observation_space, action_space)


def mask_argument(reset: Callable[..., Any]) -> str | None:
    """Return the name of a mask argument of `reset`, or None."""
    signature = signature_of(reset)
    return next((name for name in _MASKS if signature is not None and takes_keyword(signature, name)), None)


def takes_seed(reset: Callable[..., Any]) -> bool:
    """Return whether an agent's `reset` has the keyword `seed`."""
    signature = signature_of(reset)
    return signature is None or takes_keyword(signature, "seed")


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return a signature, or None (functions written in C)."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def binds(signature: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    """Return whether a call with these arguments fits a signature."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def row_keywords(get_actions: Callable[..., Any]) -> set[str]:
    """Return the keywords about rows in the signature of `get_actions`; see `Agent`."""
    signature = signature_of(get_actions)
    return {name for name in _OF_ROWS if signature is not None and takes_keyword(signature, name)}


def takes_masks(agent: Any, *, together: bool = False) -> bool:
    """Return whether `get_action` declares `action_mask`, or `get_actions` (`together`) declares `action_masks`."""
    method, keyword = ("get_actions", ACTION_MASKS) if together else ("get_action", ACTION_MASK)
    function = getattr(agent, method, None)
    return callable(function) and _declares(function, keyword)


def _declares(function: Callable[..., Any], keyword: str) -> bool:
    signature = signature_of(function)
    return signature is not None and takes_keyword(signature, keyword)


def takes_keyword(signature: inspect.Signature, name: str) -> bool:
    """Return whether a signature has a parameter with this keyword."""
    parameter = signature.parameters.get(name)
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
