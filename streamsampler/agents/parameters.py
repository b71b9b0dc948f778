"""The parameters of torch modules as dicts of arrays, which serialise without a copy."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamsampler.agents.base import is_module
from streamsampler.agents.updates import is_parameters
from streamsampler.core.errors import UsageError


def arrays_of(module: Any) -> dict[str, Any]:
    """Return a module's `state_dict` as NumPy arrays.

    Pickled tensors become byte strings inside the pickle; arrays stay outside it, and are copied once.

    Args:
        module: A torch module.

    Returns:
        The arrays by name. They share memory with parameters on the CPU, as the tensors of a `state_dict` do. Entries
        that NumPy has no dtype for (bfloat16) stay tensors, on the CPU; what is no tensor stays as it is.
    """
    return {name: array_of(value) for name, value in module.state_dict().items()}


def array_of(value: Any) -> Any:
    """Return a tensor as an array, or on the CPU where NumPy has no such dtype; and what is no tensor as it is."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor


@dataclass(frozen=True)
class ModuleConverter:
    """Makes parameters of an agent update that is a torch module or its `state_dict`; see `Agent`.

    Attributes:
        owner: The agent's class, for errors.
        shapes: The shapes of the agent's parameters, by name; None where there is none.
        array_of: Makes an array of a tensor.
    """

    owner: str
    shapes: Mapping[str, tuple[int, ...] | None]
    array_of: Callable[[Any], Any] = array_of

    @classmethod
    def like(cls, owner: str, values: Mapping[str, Any], array_of: Callable[[Any], Any] = array_of) -> ModuleConverter:
        """Return a converter for an agent with these parameters."""
        return cls(owner, {name: _shape_of(value) for name, value in values.items()}, array_of)

    def __call__(self, update: Any) -> Any:
        """Return the parameters, or NotImplemented for an update that is neither.

        Raises:
            UsageError: They do not fit the agent's module.
        """
        if is_module(update):
            update = update.state_dict()
        elif not is_parameters(update):
            return NotImplemented
        elif not isinstance(update, dict):
            raise UsageError(
                f"{self.owner} takes a module, or its parameters as a dict, and agent_update is a "
                f"{type(update).__qualname__}"
            )
        refuse_lazy(update, "agent_update")
        return self.checked({name: self.array_of(value) for name, value in update.items()})

    def checked(self, values: dict[str, Any]) -> dict[str, Any]:
        """Return parameters that have the names and shapes of the agent's.

        Raises:
            UsageError: They have not.
        """
        wrong = [f"{name} is missing" for name in self.shapes.keys() - values.keys()]
        wrong += [f"{name} is none of its" for name in values.keys() - self.shapes.keys()]
        for name, expected in self.shapes.items():
            shape = _shape_of(values.get(name))
            if shape is not None and expected is not None and shape != expected:
                wrong.append(f"{name} has the shape {shape}, and should have {expected}")
        if wrong:
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise UsageError(
                f"the parameters do not fit the module of the agent ({self.owner}): {min(wrong)}{more}. Pass what "
                f"get_param_values of such an agent gives, or a whole agent"
            )
        return values


def _shape_of(value: Any) -> tuple[int, ...] | None:
    try:
        return tuple(value.shape)
    except (AttributeError, TypeError):  # no array
        return None


def load_arrays(module: Any, values: Any) -> None:
    """Copy arrays into a module's parameters; none of their memory is kept.

    Args:
        module: A torch module.
        values: What `arrays_of` gave; a `state_dict` will do as well.

    Raises:
        UsageError: No dict, or names or shapes that are not the module's.
    """
    if not isinstance(values, dict):
        raise UsageError(
            f"the parameters of a torch module are a dict, as get_param_values gives it, and this is a "
            f"{type(values).__name__}"
        )
    try:
        module.load_state_dict({name: _tensor_of(value) for name, value in values.items()})
    except RuntimeError as error:
        raise UsageError(f"the parameters do not fit the module: {error}") from error


def _tensor_of(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return value
    import torch

    with warnings.catch_warnings():
        # Arrays from shared memory may be read-only, of which torch warns. It is only read from.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(value)


def refuse_lazy(values: Mapping[str, Any], name: str) -> None:
    """Refuse parameters that get their shapes and values at the module's first call.

    Each worker would draw its own: batches would differ with the number of workers.

    Args:
        values: A module's `state_dict`.
        name: What the error calls the module.

    Raises:
        UsageError: There are such parameters; names them.
    """
    lazy = [path for path, value in values.items() if type(value).__name__.startswith("Uninitialized")]
    if lazy:
        raise UsageError(
            f"{name} has lazy parameters, which have no values before the first call: {', '.join(lazy)}. Each worker "
            "would draw its own. Call the module once before, on an observation such as "
            "torch.as_tensor(env.observation_space.sample())[None]"
        )


def on_cpu(module: Any) -> Any:
    """Return the module itself if it is on the CPU, else a copy that is."""
    if all(tensor.device.type == "cpu" for tensor in (*module.parameters(), *module.buffers())):
        return module
    return copy.deepcopy(module).to("cpu")
