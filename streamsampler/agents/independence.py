"""Test whether the rows of an agent's batches are independent of each other."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streamsampler.agents.base import mask_argument, reset_agent_function, row_keywords, takes_masks, takes_seed
from streamsampler.agents.draws import Draws
from streamsampler.agents.masks import ACTION_MASKS
from streamsampler.core.errors import UsageError
from streamsampler.data.digests import digest
from streamsampler.data.trees import map_trees

__all__ = ["NOTHING_KNOWN", "Independence", "probe"]

_WIDTH = 8
"""At layer widths that are multiples of this, no row of a matrix product was seen to depend on others."""

_LARGE = 1e3
_LOG = logging.getLogger("streamsampler")

Answers = list[list[bytes]]
"""The bytes of each row, for each step."""


class Independence(NamedTuple):
    """The result of a probe: no row was seen to depend on others.

    Attributes:
        conclusive: Whether this holds for other parameters, too: not if no observation changes any result, as with a
            last layer of zeros.
        of_place: Whether a row's result is the same at any position of the batch. False for an agent with `slots`.
    """

    conclusive: bool
    of_place: bool


NOTHING_KNOWN = Independence(conclusive=False, of_place=False)
"""The result for an agent that raises with all observations."""


def probe(agent: Any, example: Any, n_rows: int, mask_size: int | None = None) -> Independence:
    """Check that each row of an agent's batches is a function of that row alone, by comparing bits.

    For any two rows, some call changes the observation of only one: to its neighbour's, zeros, or noise. Agents with a
    memory make two steps each time. Calls that raise have no weight, because no environment need send such
    observations; if all raise, a warning is logged. Last, rows move to other positions. Calls change an agent's memory,
    and may draw from global generators: probe before trajectories start.

    Args:
        agent: An agent with `get_actions`.
        example: Observations, a tree of (m, *O), as different as possible.
        n_rows: The number of rows of later batches.
        mask_size: The size of the agent's action masks; None without masks. All actions are allowed.

    Raises:
        UsageError: A row depends on others, or the same batch has different results in two calls.
    """
    rows = np.arange(n_rows)
    given = map_trees(lambda leaf: _moderate(leaf[rows % len(leaf)]), example)
    zeros, ones, noise = (map_trees(others, given) for others in (np.zeros_like, np.ones_like, _noise))
    rolled = map_trees(lambda leaf: np.roll(leaf, 1, axis=0), given)
    masks = None if mask_size is None else np.ones((n_rows, mask_size), np.bool_)
    ask = _question(agent, given, n_rows, {ACTION_MASKS: masks} if takes_masks(agent, together=True) else {})
    plain, expected = next(((each, known) for each in (given, ones, zeros) if (known := ask(each))), (None, None))
    if expected is None:
        _LOG.warning("the agent (%s) could not be probed: it raises with all observations", type(agent).__qualname__)
        return NOTHING_KNOWN
    _compare(expected, ask(plain), rows, agent, others_changed=False)
    conclusive = n_rows == 1
    for bit in range((n_rows - 1).bit_length()):
        for keeps in ((rows >> bit) % 2 == 0, (rows >> bit) % 2 == 1):
            for others in (rolled, zeros, noise):
                answers = ask(map_trees(lambda leaf, other, keeps=keeps: _merged(keeps, leaf, other), plain, others))
                _compare(expected, answers, rows[keeps], agent, others_changed=True)
                conclusive = conclusive or answers not in (None, expected)
    of_place = "slots" not in row_keywords(agent.get_actions) and _is_of_place(ask, plain, expected)
    return Independence(conclusive, of_place)


def _is_of_place(ask: Callable[..., Answers | None], plain: Any, expected: Answers) -> bool:
    """Return whether rows have equal results shifted by a row, by half a batch, and reversed."""
    rows = np.arange(len(expected[0]))
    for order in (np.roll(rows, 1), np.roll(rows, len(rows) // 2), rows[::-1]):
        answers = ask(map_trees(lambda leaf, order=order: leaf[order], plain), order)
        if answers != [[step[row] for row in order.tolist()] for step in expected]:
            return False
    return True


def _question(agent: Any, like: Any, n_rows: int, masks: Mapping[str, Any]) -> Callable[..., Answers | None]:
    """Return a function that asks an agent for a batch of new trajectories and, if it has a memory, for the next step.

    Observations are always in the same memory, because alignment can change bits. It returns None if the agent raises.
    """
    get_actions, reset = agent.get_actions, getattr(agent, "reset", None)
    names = row_keywords(get_actions)
    mask_name = mask_argument(reset) if callable(reset) and "starts" not in names else None
    memory = map_trees(_aligned_like, like)
    rows = np.arange(n_rows)
    begin = reset_agent_function(agent)
    if begin is not None:
        begin(0)  # as at a block's start: earlier batches may have had another number of rows

    def ask(observations: Any, order: NDArray[np.int64] = rows) -> Answers | None:
        answers = []
        keywords = {"slots": rows, "starts": rows >= 0, "seeds": order, "draws": Draws.of(order.tolist())}
        try:
            if reset is not None and mask_name is not None:
                reset(**{mask_name: rows >= 0}, **({"seed": 0} if takes_seed(reset) else {}))
            for _ in range(1 if mask_name is None and "starts" not in names else 2):
                map_trees(np.copyto, memory, observations)
                own = {name: None if mask is None else mask.copy() for name, mask in masks.items()}
                answer = get_actions(memory, **{name: keywords[name] for name in names}, **own)
                answers.append(_rows_of(answer, n_rows))
                keywords["starts"] = rows < 0
        except Exception:
            return None
        return answers

    return ask


def _compare(
    expected: Answers, answers: Answers | None, rows: NDArray[np.int64], agent: Any, *, others_changed: bool
) -> None:
    if answers is None:
        return
    for mine, other in zip(expected, answers, strict=True):
        for row in rows.tolist():
            if mine[row] != other[row]:
                reason = _dependent(agent) if others_changed else _NOT_REPEATABLE
                raise UsageError(
                    f"the agent ({type(agent).__qualname__}) has row_independent = True, but row {row} of {len(mine)} "
                    f"changed when {reason}. Otherwise set row_independent = False, or pass "
                    'worker_args={"block_size": n}: then trajectories run in fixed blocks of n'
                )


_NOT_REPEATABLE = (
    "the same batch was passed again: the agent draws from its own generator or a global one, or remembers earlier "
    "calls. Let get_actions accept the keyword draws"
)


def _dependent(agent: Any) -> str:
    values: Any = None
    with contextlib.suppress(Exception):
        values = agent.get_param_values()
    shapes = {name: np.shape(value) for name, value in values.items()} if isinstance(values, Mapping) else {}
    odd = [f"{name} {shape}" for name, shape in shapes.items() if len(shape) > 1 and shape[0] % _WIDTH]
    widths = f"layers whose widths are not multiples of {_WIDTH} ({', '.join(odd)}), or " if odd else ""
    return (
        f"other rows had other observations. Possible causes are {widths}normalisation over the batch (such as batch "
        "normalisation in training mode), or code that mixes rows. Remove the cause"
    )


def _rows_of(answer: Any, n_rows: int) -> list[bytes]:
    """Return the bytes of each row of a tree of (n, ...), or of a sequence of n values."""
    if isinstance(answer, Mapping) or (isinstance(answer, tuple) and all(hasattr(part, "__len__") for part in answer)):
        parts = [_rows_of(child, n_rows) for child in (answer.values() if isinstance(answer, Mapping) else answer)]
        return [b"".join(row[i] for row in parts) for i in range(n_rows)]
    if not isinstance(answer, list | tuple) and not (array := np.asarray(answer)).dtype.hasobject:
        return [array[i].tobytes() for i in range(n_rows)]
    return [b"%d" % digest((answer[i],)) for i in range(n_rows)]


def _moderate(leaf: NDArray[Any]) -> NDArray[Any]:
    """Replace numbers large enough to hide all others."""
    return leaf if leaf.dtype.kind != "f" else np.where(np.abs(leaf) < _LARGE, leaf, _noise(leaf))


def _noise(leaf: NDArray[Any]) -> NDArray[Any]:
    if leaf.dtype.kind == "f":
        return np.random.default_rng(0).standard_normal(leaf.shape).astype(leaf.dtype)
    # Different indices, masks and pixels, mostly still in the space.
    return leaf ^ np.ones_like(leaf) if leaf.dtype.kind in "iub" else leaf


def _merged(keeps: NDArray[np.bool_], leaf: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    merged = new.copy()
    merged[keeps] = leaf[keeps]
    return merged


def _aligned_like(leaf: NDArray[Any]) -> NDArray[Any]:
    """Return an uninitialised array of the same form, aligned to 64 bytes."""
    memory = np.empty(leaf.nbytes + 64, dtype=np.uint8)
    begin = -memory.ctypes.data % 64
    return np.ndarray(leaf.shape, leaf.dtype, memory, begin) if not leaf.dtype.hasobject else np.empty_like(leaf)
