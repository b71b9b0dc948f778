"""Parameters of torch modules as dicts of arrays, which are pickled without a copy. Does not import torch by itself."""

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
    """Return a torch module's `state_dict` as NumPy arrays by name.

    Arrays stay outside a pickle, unlike tensors, and are copied once. They share memory with parameters on the CPU.
    Tensors without a NumPy dtype (bfloat16) stay tensors, on the CPU; other objects are unchanged.
    """
    return {name: array_of(value) for name, value in module.state_dict().items()}


def array_of(value: Any) -> Any:
    """Return a tensor as an array, or on the CPU if NumPy has no such dtype; return other objects unchanged."""
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor


@dataclass(frozen=True)
class ModuleConverter:
    """Converts a torch module or its `state_dict` to parameters of a class `owner`; see `Agent`.

    Attributes:
        owner: The agent's class, for errors.
        shapes: Shapes of the agent's parameters by name; None for other objects.
        array_of: Converts a tensor to an array.
    """

    owner: str
    shapes: Mapping[str, tuple[int, ...] | None]
    array_of: Callable[[Any], Any] = array_of

    @classmethod
    def like(cls, owner: str, values: Mapping[str, Any], array_of: Callable[[Any], Any] = array_of) -> ModuleConverter:
        return cls(owner, {name: _shape_of(value) for name, value in values.items()}, array_of)

    def __call__(self, update: Any) -> Any:
        """Return an update's parameters; NotImplemented for an update of another kind.

        Raises:
            UsageError: The parameters do not fit the agent's module.
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
        wrong = [f"{name} is missing" for name in self.shapes.keys() - values.keys()]
        wrong += [f"{name} is not among its parameters" for name in values.keys() - self.shapes.keys()]
        for name, expected in self.shapes.items():
            shape = _shape_of(values.get(name))
            if shape is not None and expected is not None and shape != expected:
                wrong.append(f"{name} has the shape {shape}, but should have {expected}")
        if wrong:
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise UsageError(
                f"the parameters do not fit the module of the agent ({self.owner}): {min(wrong)}{more}. Pass the "
                f"result of get_param_values of such an agent, or a whole agent"
            )
        return values


def _shape_of(value: Any) -> tuple[int, ...] | None:
    try:
        return tuple(value.shape)
    except (AttributeError, TypeError):  # not an array
        return None


def load_arrays(module: Any, values: Any) -> None:
    """Copy a dict of arrays or tensors into a module's parameters; raise UsageError if they do not fit."""
    if not isinstance(values, dict):
        raise UsageError(
            f"the parameters of a torch module must be a dict, as get_param_values returns it, not a "
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
        # torch warns of read-only arrays, such as those in shared memory; they are only read here.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(value)


def refuse_lazy(values: Mapping[str, Any], name: str) -> None:
    """Refuse lazy parameters, which get shapes and values in the module's first call.

    Each worker would draw its own values, so batches would depend on the number of workers.
    """
    lazy = [path for path, value in values.items() if type(value).__name__.startswith("Uninitialized")]
    if lazy:
        raise UsageError(
            f"{name} has lazy parameters, which have no values before the first call: {', '.join(lazy)}. Each worker "
            "would draw its own. Call the module once first, on an observation such as "
            "torch.as_tensor(env.observation_space.sample())[None]"
        )


def on_cpu(module: Any) -> Any:
    """Return a module itself if it is on the CPU, otherwise a copy on the CPU."""
    if all(tensor.device.type == "cpu" for tensor in (*module.parameters(), *module.buffers())):
        return module
    return copy.deepcopy(module).to("cpu")
