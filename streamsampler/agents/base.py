"""What an agent is, and how objects are taken for one."""

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
"""What the argument of `reset` is called that takes a mask: in garage, and in rllab before."""


@runtime_checkable
class Agent(Protocol):
    """What turns observations into actions.

    Only `get_action` is required. These methods are used where an agent has them:

    - ``reset(seed=…)`` at each trajectory's start, with a seed that is the trajectory's alone. An agent that draws from
      a generator of its own seeds it here, and one with a memory clears it. ``reset()`` will do for the latter.
    - ``get_actions(observations)``, which alone will do where only that is called: with `VecWorker`, with
      ``inference="parent"``, and with `AsyncWorker`, where it may be an ``async def``; for n observations side by side
      (leaves of shape (n, ...), the agent's to change), gives ``(actions, agent_infos)``: n actions, and a dict of
      arrays of (n, ...). `VecWorker` asks so, always for as many rows: as it may have environments, or a few more
      (`workers.vec.lanes.rows_of_lanes`). Rows in which nothing runs have copies of other rows' observations, and what
      comes of them is dropped. An agent that remembers, or draws, takes some of these keywords: ``starts``, n booleans
      (the row begins a trajectory); ``draws``, a `streamsampler.agents.draws.Draws`, with a stream of random numbers
      for each row's trajectory: ``draws.random()`` of shape (n,), ``draws.normal(k)`` of shape (n, k); ``seeds``, n
      integers (what `reset` would get at the row's trajectory's start); ``slots``, the rows' numbers. Rows above the
      environments' have ``slots`` above theirs, ``starts`` False, and ``draws`` that nothing uses.
    - ``row_independent = True``, an attribute or a property, says that each row of a batch is a function of that row's
      observation, memory and draws alone, as long as batches have the same number of rows. Then `VecWorker` need not
      run trajectories in blocks, and calls no `reset` but that with a mask. An agent that draws from the global
      generators, or from one of its own for all rows, may not say so. Workers check what is said, by
      `streamsampler.agents.independence.probe`. In blocks an agent with `get_actions` is reset once a block.
    - ``reset(do_resets)`` (or ``reset(dones)``), without the keyword ``starts`` of `get_actions`, is called with a
      boolean mask of n rows whenever rows begin trajectories: True for those; all True at first and in a new block.
      If it takes ``seed`` besides, it is called for one row after the other. `DefaultWorker` gives no mask, or one of
      one True where it has no default.
    - ``set_spaces(observation_space, action_space)`` gives a worker's copy of the agent the environment's spaces, once,
      before it takes parameters or acts. They are the environment's own objects: copy what you draw from. After an
      ``env_update`` workers get a new copy of such an agent.
    - ``get_param_values()`` and ``set_param_values(values)``: an agent update that is a tuple, a dict or an array goes
      to the latter.
    - ``get_state()`` and ``set_state(state)``, of an agent with a ``reset`` or ``starts``: what it remembers and draws
      from in the middle of a trajectory, as something that can be pickled, for another copy of the agent.
      `obtain_fragments` needs both to go on with an episode whose worker was lost.
    - ``sharing_parameters()``, of an agent with a ``reset``: gives another agent that remembers and draws on its own,
      and has the same parameters, which are not copied; None where there can be none. `AsyncWorker` then needs no copy
      of the agent for each trajectory in flight. It asks again after each update, which only the agent itself gets.
    - ``begin_part()`` is called before the first action in each call of `obtain_fragments`, where episodes go on: an
      agent that records what it remembers does so there, for learners that begin a sequence there.
    - The keywords ``action_mask`` of `get_action` and ``action_masks`` of ``get_actions``: which actions the
      environment allows; see `streamsampler/docs/agents.md`.
    - ``get_value(observation)``, of an agent whose infos have a number "value": that of the last observation, where a
      trajectory did not terminate; for `batch.last_values`. An agent with a memory is asked at the trajectory's end,
      and must not change it then; where several of its rows have a memory each, it takes the row's number as the
      keyword ``slot``, or is not asked.
    - ``get_param_converter()`` gives a small function that the sampler keeps, pickled, in its own process. It is asked
      about each agent update before that is sent, and returns what goes to `set_param_values` where the update is of
      the agent's own kind, such as a module; `NotImplemented` where it is not. What it raises refuses the update.

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
            The action, and a dict of whatever shall be recorded with it.
        """
        ...


class AgentOfRows(Protocol):
    """An agent that has `get_actions` alone; see `Agent`."""

    @property
    def get_actions(self) -> Callable[..., Any]:
        """Chooses the actions of several rows."""


class MaskedAgent(Protocol):
    """An agent that takes masks of actions, for type checkers; see `agents`."""

    def get_action(self, observation: Any, /, *, action_mask: Any) -> tuple[Any, dict[str, Any]]:
        """Choose an action that the mask allows."""
        ...


class AwaitedAgent(Protocol):
    """An agent that waits, such as for a language model, for type checkers; see `streamsampler.AsyncWorker`."""

    async def get_action(self, observation: Any, /) -> tuple[Any, dict[str, Any]]:
        """Choose an action."""
        ...


class _MaskedFunction(Protocol):
    """A plain callable that does so."""

    def __call__(self, observation: Any, /, *, action_mask: Any) -> Any: ...


AgentLike: TypeAlias = (
    Agent | AgentOfRows | MaskedAgent | AwaitedAgent | Callable[[Any], Any] | _MaskedFunction | Literal["random"]
)
"""What is taken for an agent; see `as_agent`."""


_UNAWAITED = (
    *("reset", "set_param_values", "get_state", "set_state", "set_spaces", "get_param_values", "begin_part"),
    "sharing_parameters",
)


class CallableAgent:
    """Makes an agent of a plain callable.

    The callable's own optional methods (see `Agent`), where it has them, are the agent's.

    Attributes:
        function: The callable, ``observation -> action``.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __repr__(self) -> str:
        return f"CallableAgent({self.function!r})"

    def __getattr__(self, name: str) -> Any:
        # Only these, and never by way of self.function: it is not there yet while the agent is being unpickled.
        if name in _OPTIONAL_METHODS and "function" in self.__dict__:
            return getattr(self.__dict__["function"], name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Call the function; there are no infos."""
        return self.function(observation), {}


class _AwaitedCallableAgent(CallableAgent):
    """Makes an agent of an `async def`."""

    async def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:  # type: ignore[override]
        """Call the function; there are no infos."""
        return await self.function(observation), {}


class _MaskedCallableAgent(CallableAgent):
    """Makes an agent of a plain callable that takes the keyword `action_mask`."""

    def get_action(self, observation: Any, *, action_mask: Any = None) -> tuple[Any, dict[str, Any]]:
        """Call the function; there are no infos."""
        return self.function(observation, action_mask=action_mask), {}


def as_agent(obj: Any) -> Agent:
    """Return the agent that a user passed in any form.

    Args:
        obj: An agent, a plain callable ``observation -> action``, or "random".

    Returns:
        The object itself if it is an agent, also one that has `get_actions` alone (see `acts_alone`); else an agent
        that calls it, or a `RandomAgent`.

    Raises:
        UsageError: If it is neither.
    """
    if isinstance(obj, type):
        raise UsageError(
            f"the agent is the class {obj.__qualname__} itself: pass an instance of it. An agent is {WHAT_AN_AGENT_IS}"
        )
    if unawaited := [name for name in _UNAWAITED if has_coroutines(obj, name)]:
        raise UsageError(
            f"{type(obj).__qualname__} has async def {unawaited[0]}, which nothing awaits: make it an ordinary method. "
            "Only get_action, get_actions and get_value may wait"
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
    """Return the message that refuses an object as an agent, and says if it is an environment."""
    if isinstance(obj, str):
        if obj in registry:
            return f"{obj!r} is an environment: {AGENT_FIRST}"
        return f"no agent has the name {obj!r}: the one that has a name is 'random'"
    if callable(getattr(obj, "step", None)) and callable(getattr(obj, "reset", None)):
        return f"this {type(obj).__qualname__} is an environment: {AGENT_FIRST}"
    hint = (
        "; one for each worker goes into PerWorker([…]), without lists in it" if isinstance(obj, tuple | list) else ""
    )
    return f"an agent is {WHAT_AN_AGENT_IS}; this {type(obj).__qualname__} is neither{hint}"


def adapter_line(obj: Any) -> str | None:
    """Return what to write to make an agent of another library's policy; None for any other object."""
    if callable(getattr(obj, "predict", None)) and (is_module(obj) or not callable(obj)):
        return "SB3Agent(model), or SB3Agent(model, deterministic=True), from streamsampler.adapters.sb3"
    if is_module(obj):
        return (
            "TorchAgent(module, env.action_space), from streamsampler.adapters.torch; or, where module(observation) "
            "is an action, a function that returns it"
        )
    return None


def is_module(obj: Any) -> bool:
    """Return whether an object is a torch module, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.nn.Module)


def is_agent(obj: Any) -> bool:
    """Return whether an object is certainly an agent: it has `get_action` or `get_actions`, is a function or a name.

    Other callables, such as a torch module, may be the parameters of one.
    """
    if isinstance(obj, type | str):
        return obj in NAMED_AGENTS
    has_method = any(callable(getattr(obj, name, None)) for name in ("get_action", "get_actions"))
    return has_method or inspect.isroutine(obj) or isinstance(obj, functools.partial)


def acts_alone(agent: Any) -> bool:
    """Return whether an agent chooses single actions; an agent, or a wrapped one, with only `get_actions` does not."""
    return callable(getattr(agent, "get_action", None)) and getattr(agent, "wraps_what_acts_alone", True)


def agent_waits(agent: Any) -> bool:
    """Return whether an agent is asynchronous."""
    return has_coroutines(agent, "get_action", "get_actions")


_OF_ROWS = ("slots", "starts", "seeds", "draws")


def is_row_independent(agent: Any) -> bool:
    """Return whether an agent says that each row of a batch is a function of that row alone; see `Agent`.

    Raises:
        UsageError: It says neither True nor False.
    """
    said = getattr(agent, "row_independent", False)
    if not isinstance(said, bool | np.bool_):
        raise UsageError(
            f"row_independent of the agent ({type(agent).__qualname__}) is True or False, an attribute or a property, "
            f"and is {said!r}"
        )
    return bool(said)


def reset_agent_function(agent: Any) -> Callable[[int], None] | None:
    """Return the function that resets an agent at a trajectory's start, or None.

    Args:
        agent: An agent, with a `reset` that takes a seed, or nothing, or without one.

    Returns:
        A function to call with the seed at each trajectory's start, or None if the agent has no reset.

    Raises:
        UsageError: If its reset demands other arguments.
    """
    reset = getattr(agent, "reset", None)
    if not callable(reset):
        return None
    signature = signature_of(reset)
    if signature is None or binds(signature, seed=0):
        return lambda seed: reset(seed=seed)
    parameter = signature.parameters.get("seed")
    if parameter is not None and binds(signature, 0):
        # A positional-only seed, as methods written in C have it.
        return lambda seed: reset(seed)
    if binds(signature):
        return lambda _: reset()
    if (name := mask_argument(reset)) is not None:
        if binds(signature, **{name: None}, seed=0):
            return lambda seed: reset(**{name: np.ones(1, dtype=np.bool_)}, seed=seed)
        if binds(signature, **{name: None}):
            return lambda _: reset(**{name: np.ones(1, dtype=np.bool_)})
    raise UsageError(
        f"the agent ({type(agent).__qualname__}) has reset{signature}; it is called as reset(seed=…), or as reset() "
        "if it takes no seed; or with a mask of slots that begin, do_resets"
    )


def shared_agent(agent: Any) -> Agent | None:
    """Return another agent that has an agent's parameters, and remembers on its own; None if it has to be copied.

    See `sharing_parameters` of `Agent`. Its class has to have that: what passes on all that it has not to an agent
    inside, by `__getattr__`, would be left out.

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
            f"None, and returned {shared!r:.80}"
        )
    return as_agent(shared)


def give_spaces(agent: Agent, observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Call an agent's `set_spaces`, if it has that."""
    set_spaces = getattr(agent, "set_spaces", None)
    if callable(set_spaces):
        set_spaces(observation_space, action_space)


def mask_argument(reset: Callable[..., Any]) -> str | None:
    """Return the argument of an agent's `reset` that takes the mask of slots that begin a trajectory, or None."""
    signature = signature_of(reset)
    return next((name for name in _MASKS if signature is not None and takes_keyword(signature, name)), None)


def takes_seed(reset: Callable[..., Any]) -> bool:
    """Return whether an agent's `reset` takes a seed by keyword."""
    signature = signature_of(reset)
    return signature is None or takes_keyword(signature, "seed")


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature, or None where Python knows none (functions written in C)."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def binds(signature: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    """Return whether a function with that signature can be called with these arguments."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def row_keywords(get_actions: Callable[..., Any]) -> set[str]:
    """Return which keywords an agent's `get_actions` takes that are about rows; see `Agent`."""
    signature = signature_of(get_actions)
    return {name for name in _OF_ROWS if signature is not None and takes_keyword(signature, name)}


def takes_masks(agent: Any, *, together: bool = False) -> bool:
    """Return whether an agent declares the keyword that masks of actions come by; see `agents`.

    Args:
        agent: The agent.
        together: Whether it is asked by `get_actions`, with `action_masks`; otherwise by `get_action`, with
            `action_mask`.
    """
    method, keyword = ("get_actions", ACTION_MASKS) if together else ("get_action", ACTION_MASK)
    function = getattr(agent, method, None)
    return callable(function) and _declares(function, keyword)


def _declares(function: Callable[..., Any], keyword: str) -> bool:
    signature = signature_of(function)
    return signature is not None and takes_keyword(signature, keyword)


def takes_keyword(signature: inspect.Signature, name: str) -> bool:
    """Return whether a signature has a parameter that may be given by that name."""
    parameter = signature.parameters.get(name)
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
