"""The parameters of torch modules as dicts of arrays, which serialise without a copy."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from streamsampler.errors import UsageError

__all__ = ["arrays_of", "load_arrays", "on_cpu", "one_thread"]


def arrays_of(module: Any) -> dict[str, Any]:
    """A module's `state_dict` as NumPy arrays.

    Pickled tensors become byte strings inside the pickle; arrays stay outside it, and are copied once.

    Args:
        module: A torch module.

    Returns:
        The arrays by name. They share memory with parameters on the CPU, as the tensors of a `state_dict` do. Entries
        that NumPy has no dtype for (bfloat16) stay tensors, on the CPU; what is no tensor stays as it is.
    """
    return {name: _array_of(value) for name, value in module.state_dict().items()}


def _array_of(value: Any) -> Any:
    if not hasattr(value, "detach"):
        return value
    tensor = value.detach().cpu()
    try:
        return tensor.numpy()
    except TypeError:
        return tensor


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


def on_cpu(module: Any) -> Any:
    """The module itself if it is on the CPU, else a copy that is."""
    if all(tensor.device.type == "cpu" for tensor in (*module.parameters(), *module.buffers())):
        return module
    return copy.deepcopy(module).to("cpu")


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread, in this block alone.

    There is a worker on each core already. And the same numbers must come out in a worker and in the user's own
    process, whose setting is not ours to change: some sums depend on how many threads share them.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
