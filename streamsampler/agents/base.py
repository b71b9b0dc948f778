"""What an agent is, and how objects are taken for one."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import pickle
import sys
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.agents.draws import Draws
from streamsampler.agents.random import RandomAgent
from streamsampler.core.errors import UsageError

__all__ = [
    "NAMED_AGENTS",
    "WHAT_AN_AGENT_IS",
    "Agent",
    "AgentLike",
    "CallableAgent",
    "adapter_line",
    "as_agent",
    "binds",
    "give_spaces",
    "is_agent",
    "is_module",
    "is_row_independent",
    "mask_argument",
    "probe",
    "reset_agent_function",
    "row_keywords",
    "signature_of",
    "takes_keyword",
    "takes_seed",
]  # fmt: skip

WHAT_AN_AGENT_IS = (
    "an object with get_action(observation) -> (action, agent_info), or a plain callable observation -> action"
)
_OPTIONAL_METHODS = frozenset(
    {"reset", "get_actions", "row_independent", "set_spaces", "get_param_values", "set_param_values"}
    | {"get_param_converter", "get_state", "set_state"}
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
    - ``get_actions(observations)``, for n observations side by side (leaves of shape (n, ...), the agent's to change),
      gives ``(actions, agent_infos)``: n actions, and a dict of arrays of (n, ...). `VecWorker` asks so, always for as
      many rows as it has environments: those of environments that wait have copies of other rows' observations, and
      what comes of them is dropped. An agent that remembers, or draws, takes some of these keywords: ``starts``, n
      booleans (the row begins a trajectory); ``draws``, a `streamsampler.agents.draws.Draws`, with a stream of random
      numbers for each row's trajectory: ``draws.random()`` of shape (n,), ``draws.normal(k)`` of shape (n, k);
      ``seeds``, n integers (what `reset` would get at the row's trajectory's start); ``slots``, the rows' numbers.
    - ``row_independent = True``, an attribute or a property, says that each row of a batch is a function of that row's
      observation, memory and draws alone, as long as batches have the same number of rows. Then `VecWorker` need not
      run trajectories in blocks, and calls no `reset` but that with a mask. An agent that draws from the global
      generators, or from one of its own for all rows, may not say so. Workers check what is said, by
      `streamsampler.agents.base.probe`. In blocks an agent with `get_actions` is reset once a block.
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
    - ``get_value(observation)``, of an agent whose infos have a number "value": that of the last observation, where a
      trajectory did not terminate; for `batch.last_values`. `DefaultWorker` asks at the trajectory's end; an agent with
      a memory must not change it then. `VecWorker` asks no agent that may have one.
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


AgentLike: TypeAlias = Agent | Callable[[Any], Any] | Literal["random"]
"""What is taken for an agent; see `as_agent`."""


class CallableAgent:
    """Makes an agent of a plain callable.

    The callable's own optional methods (see `Agent`), where it has them, are the agent's.

    Attributes:
        function: The callable, ``observation -> action``.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
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


def as_agent(obj: Any) -> Agent:
    """Return the agent that a user passed in any form.

    Args:
        obj: An agent, a plain callable ``observation -> action``, or "random".

    Returns:
        The object itself if it is an agent, else an agent that calls it, or a `RandomAgent`.

    Raises:
        UsageError: If it is neither.
    """
    if isinstance(obj, type):
        raise UsageError(
            f"the agent is the class {obj.__qualname__} itself: pass an instance of it. An agent is {WHAT_AN_AGENT_IS}"
        )
    if callable(getattr(obj, "get_action", None)):
        agent: Agent = obj
        return agent
    if (line := adapter_line(obj)) is not None:
        raise UsageError(f"the agent ({type(obj).__qualname__}) has no get_action: pass {line}")
    if callable(obj):
        return CallableAgent(obj)
    if isinstance(obj, str):
        if obj in NAMED_AGENTS:
            return RandomAgent()
        raise UsageError(f"no agent has the name {obj!r}: the one that has a name is 'random'")
    hint = (
        "; one for each worker goes into PerWorker([…]), without lists in it" if isinstance(obj, tuple | list) else ""
    )
    raise UsageError(f"an agent is {WHAT_AN_AGENT_IS}; this {type(obj).__qualname__} is neither{hint}")


def adapter_line(obj: Any) -> str | None:
    """Return what to write to make an agent of another library's policy; None for any other object."""
    if callable(getattr(obj, "predict", None)) and (is_module(obj) or not callable(obj)):
        return "SB3Agent(model), from streamsampler.agents.sb3"
    if is_module(obj):
        return (
            "TorchAgent(module, env.action_space), from streamsampler.agents.torch; or, where module(observation) "
            "is an action, a function that returns it"
        )
    return None


def is_module(obj: Any) -> bool:
    """Return whether an object is a torch module, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.nn.Module)


def is_agent(obj: Any) -> bool:
    """Return whether an object is certainly an agent: it has `get_action`, is a plain function or a name.

    Other callables, such as a torch module, may be the parameters of one.
    """
    if isinstance(obj, type | str):
        return obj in NAMED_AGENTS
    return callable(getattr(obj, "get_action", None)) or inspect.isroutine(obj) or isinstance(obj, functools.partial)


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


def takes_keyword(signature: inspect.Signature, name: str) -> bool:
    """Return whether a signature has a parameter that may be given by that name."""
    parameter = signature.parameters.get(name)
    return parameter is not None and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)


# ----------------------------------------------------------------------
# Find out whether the rows of an agent's batches depend on one another.


_WIDTH = 8
"""Multiples of this are the layer widths at which no row of a matrix product was seen to depend on others."""

_LARGE = 1e3
_LOG = logging.getLogger("streamsampler")

Answers = list[list[bytes]]
"""The bytes of each row, for each step."""


def probe(agent: Any, example: Any, n_rows: int) -> bool:
    """Check that each row of an agent's batches is a function of that row alone, by asking and comparing bits.

    For any two rows there are calls in which one keeps its observation and the other gets another one: that of its
    neighbour, zeros, and noise. An agent that remembers is asked for two steps each time. A call that raises says
    nothing, because no environment need send such observations; where all do, that is logged.

    Calls change an agent's memory, and may draw from the global generators: probe before trajectories begin.

    Args:
        agent: An agent with `get_actions`.
        example: Observations, tree of (m, *O); the more they differ the better.
        n_rows: The number of rows that the agent's batches are going to have.

    Returns:
        Whether that holds for other parameters as well. If no observation changes anything, as with a last layer of
        zeros, nothing is known of them.

    Raises:
        UsageError: A row depends on others, or the same batch gives something else when it is asked for again.
    """
    rows = np.arange(n_rows)
    given = _map(lambda leaf: _moderate(leaf[rows % len(leaf)]), example)
    zeros, ones, noise = (_map(others, given) for others in (np.zeros_like, np.ones_like, _noise))
    rolled = _map(lambda leaf: np.roll(leaf, 1, axis=0), given)
    ask = _question(agent, given, n_rows)
    plain, expected = next(((each, known) for each in (given, ones, zeros) if (known := ask(each))), (None, None))
    if expected is None:
        _LOG.warning("the agent (%s) could not be probed: it raises with all observations", type(agent).__qualname__)
        return False
    _compare(expected, ask(plain), rows, agent, _not_repeatable)
    conclusive = n_rows == 1
    for bit in range((n_rows - 1).bit_length()):
        for keeps in ((rows >> bit) % 2 == 0, (rows >> bit) % 2 == 1):
            for others in (rolled, zeros, noise):
                answers = ask(_map(lambda leaf, other, keeps=keeps: _merged(keeps, leaf, other), plain, others))
                _compare(expected, answers, rows[keeps], agent, _dependent)
                conclusive = conclusive or answers not in (None, expected)
    return conclusive


def _question(agent: Any, like: Any, n_rows: int) -> Callable[[Any], Answers | None]:
    """Return a function that asks an agent for a batch whose trajectories all begin, and, where it remembers, the next.

    Its observations always lie in the same memory, whose alignment could change bits. It returns None where the agent
    raises.
    """
    get_actions, reset = agent.get_actions, getattr(agent, "reset", None)
    names = row_keywords(get_actions)
    mask_name = mask_argument(reset) if callable(reset) and "starts" not in names else None
    memory = _map(_aligned_like, like)
    rows = np.arange(n_rows)
    begin = reset_agent_function(agent)
    if begin is not None:
        begin(0)  # as at a block's start: other batches may have had another number of rows

    def ask(observations: Any) -> Answers | None:
        answers = []
        keywords = {"slots": rows, "starts": rows >= 0, "seeds": rows, "draws": Draws.of(range(n_rows))}
        try:
            if reset is not None and mask_name is not None:
                reset(**{mask_name: rows >= 0}, **({"seed": 0} if takes_seed(reset) else {}))
            for _ in range(1 if mask_name is None and "starts" not in names else 2):
                _map(np.copyto, memory, observations)
                answer = get_actions(memory, **{name: keywords[name] for name in names})
                answers.append(_rows_of(answer, n_rows))
                keywords["starts"] = rows < 0
        except Exception:
            return None
        return answers

    return ask


def _compare(
    expected: Answers, answers: Answers | None, rows: NDArray[np.int64], agent: Any, reason: Callable[[Any], str]
) -> None:
    if answers is None:
        return
    for mine, other in zip(expected, answers, strict=True):
        for row in rows.tolist():
            if mine[row] != other[row]:
                raise UsageError(
                    f"the agent ({type(agent).__qualname__}) says row_independent = True, but row {row} of {len(mine)} "
                    f"came out otherwise when {reason(agent)}. Or let it say row_independent = False, or pass "
                    'worker_args={"block_size": n}: then trajectories run in fixed blocks of n'
                )


def _not_repeatable(agent: Any) -> str:  # noqa: ARG001 - see _dependent
    return (
        "the same batch was asked for again: the agent draws from a generator of its own or a global one, or keeps "
        "something from call to call. Let get_actions take the keyword draws"
    )


def _dependent(agent: Any) -> str:
    values: Any = None
    with contextlib.suppress(Exception):
        values = agent.get_param_values()
    shapes = {name: np.shape(value) for name, value in values.items()} if isinstance(values, Mapping) else {}
    odd = [f"{name} {shape}" for name, shape in shapes.items() if len(shape) > 1 and shape[0] % _WIDTH]
    widths = f"layers whose widths are no multiples of {_WIDTH} ({', '.join(odd)}), or " if odd else ""
    return (
        f"other rows had other observations. That can come from {widths}normalisation over the batch (such as batch "
        "normalisation in training mode), or code that mixes rows. Change that"
    )


def _rows_of(answer: Any, n_rows: int) -> list[bytes]:
    """Return the bytes of each row of a tree of (n, ...), or of a sequence of n values."""
    if isinstance(answer, Mapping) or (isinstance(answer, tuple) and all(hasattr(part, "__len__") for part in answer)):
        parts = [_rows_of(child, n_rows) for child in (answer.values() if isinstance(answer, Mapping) else answer)]
        return [b"".join(row[i] for row in parts) for i in range(n_rows)]
    if not isinstance(answer, list | tuple) and not (array := np.asarray(answer)).dtype.hasobject:
        return [array[i].tobytes() for i in range(n_rows)]
    return [pickle.dumps(answer[i]) for i in range(n_rows)]


def _map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return the tree of what a function makes of the leaves of trees of one structure."""
    if isinstance(tree, Mapping):
        return {key: _map(function, child, *(other[key] for other in others)) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_map(function, *children) for children in zip(tree, *others, strict=True))
    return function(tree, *others)


def _moderate(leaf: NDArray[Any]) -> NDArray[Any]:
    """Return an example without numbers so large that nothing else shows next to them."""
    return leaf if leaf.dtype.kind != "f" else np.where(np.abs(leaf) < _LARGE, leaf, _noise(leaf))


def _noise(leaf: NDArray[Any]) -> NDArray[Any]:
    if leaf.dtype.kind == "f":
        return np.random.default_rng(0).standard_normal(leaf.shape).astype(leaf.dtype)
    # Other indices, masks and pixels, most of which are in the space.
    return leaf ^ np.ones_like(leaf) if leaf.dtype.kind in "iub" else leaf


def _merged(keeps: NDArray[np.bool_], leaf: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    merged = new.copy()
    merged[keeps] = leaf[keeps]
    return merged


def _aligned_like(leaf: NDArray[Any]) -> NDArray[Any]:
    """Return an empty array like another one, at a multiple of 64 bytes."""
    memory = np.empty(leaf.nbytes + 64, dtype=np.uint8)
    begin = -memory.ctypes.data % 64
    return np.ndarray(leaf.shape, leaf.dtype, memory, begin) if not leaf.dtype.hasobject else np.empty_like(leaf)
