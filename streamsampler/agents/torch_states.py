"""States of recurrent torch modules: a tensor, or a tuple or dict of tensors, with a row for each trajectory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch


def map_states(function: Callable[..., Any], state: Any, *others: Any) -> Any:
    """Replace each tensor of a state by a function of it, and of other states' tensors at the same position."""
    if isinstance(state, Mapping):
        return {key: map_states(function, child, *(it[key] for it in others)) for key, child in state.items()}
    if isinstance(state, tuple):
        return _tuple_like(state, [map_states(function, *children) for children in zip(state, *others, strict=True)])
    return function(state, *others)


def reset_states(starting: torch.Tensor, new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """Return the new state in rows that start a trajectory, the old state in others; shapes (n, …)."""
    return torch.where(starting.reshape(-1, *[1] * (new.dim() - 1)), new, old)


def own_state(state: Any) -> Any:
    """Copy a state: a module may return its input, or change it in place."""
    return map_states(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, state)


def state_rows(state: Any, rows: int | slice) -> Any:
    return map_states(lambda leaf: leaf[rows], state)


def state_as_infos(state: Any) -> Any:
    """Return a state for infos: tuples become dicts by position."""
    if isinstance(state, Mapping):
        return {key: state_as_infos(child) for key, child in state.items()}
    return {str(key): state_as_infos(child) for key, child in enumerate(state)} if isinstance(state, tuple) else state


def forms_of(state: Any) -> dict[Any, tuple[tuple[int, ...], torch.dtype] | None]:
    """Return each tensor's shape and dtype by its path in a state; None for objects of other kinds."""
    if state.__class__ is torch.Tensor:
        return {(): (tuple(state.shape), state.dtype)}
    if isinstance(state, tuple) or (isinstance(state, Mapping) and all(isinstance(key, str) for key in state)):
        items = state.items() if isinstance(state, Mapping) else enumerate(state)
        return {(key, *path): form for key, child in items for path, form in forms_of(child).items()}
    return {(): None}


def describe_state(state: Any) -> str:
    if isinstance(state, Mapping):
        return "{" + ", ".join(f"{key!r}: {describe_state(child)}" for key, child in state.items()) + "}"
    if isinstance(state, tuple):
        return f"({', '.join(map(describe_state, state))})"
    if isinstance(state, torch.Tensor):
        return f"{tuple(state.shape)} {str(state.dtype).removeprefix('torch.')}"
    return f"a {type(state).__name__}"


def moved_to(tree: Any, device: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: moved_to(child, device) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return _tuple_like(tree, [moved_to(child, device) for child in tree])
    return tree.to(device) if isinstance(tree, torch.Tensor) else tree


def _tuple_like(given: tuple[Any, ...], children: list[Any]) -> tuple[Any, ...]:
    return type(given)(*children) if hasattr(given, "_fields") else tuple(children)
