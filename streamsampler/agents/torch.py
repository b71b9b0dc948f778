"""Agents made of PyTorch modules. Needs PyTorch: `pip install torch`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import DTypeLike, NDArray

from streamsampler.agents.draws import Draws
from streamsampler.agents.heads import ActsByHead, CategoricalHead, GaussianHead, Head, array_of, default_head
from streamsampler.agents.updates import ModuleConverter, arrays_of, load_arrays, on_cpu, refuse_lazy
from streamsampler.core.errors import UsageError
from streamsampler.core.extras import missing

__all__ = ["CategoricalHead", "GaussianHead", "Head", "TorchAgent"]

try:
    import torch
except ImportError as error:
    raise missing("TorchAgent", "torch", error) from error


class TorchAgent(ActsByHead):
    """Acts with a torch module.

    For example::

        policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        agent = TorchAgent(policy, gymnasium.make("CartPole-v1").action_space)
        with MultiprocessingSampler(agent, "CartPole-v1") as sampler:
            for _ in range(100):
                batch = sampler.obtain_samples(4000, agent_update=policy)
                improve(policy, batch)  # batch.agent_infos["log_prob"] is there

    An agent update may be a module like this one, its `state_dict`, or what `get_param_values` gives.

    The module is called with a batch of observations, (n, *O), also where n is 1: a tensor, or where the space is a
    Dict or Tuple a dict or tuple of them. The tensor is written over at the next call. It returns, with n rows each:

    - a tensor, which is the head's first parameter: logits, or the mean;
    - or a tuple with all of the head's parameters: `(mean, log_std)`;
    - or a dict with the head's parameters by name, `logits`, or `mean` and `log_std`. Its other entries are recorded in
      `agent_infos` as they are; but `value`, of (n,) or (n, 1), becomes one number a timestep, and the module is asked
      for that of each last observation that is not terminal: `batch.values` and `batch.last_values` have them.

    A Gaussian whose module returns no `log_std` takes the module's parameter of that name.

    Workers have a copy of the module, on the CPU and in evaluation mode (no dropout). It runs in inference mode, on as
    many threads as the sampler's `worker_threads` says. Actions are drawn from a generator of the agent's own, which
    `reset` seeds: so they depend on the trajectory's seed alone, and not on what the environment draws from the global
    ones. What the module itself draws comes from torch's global generator, which the worker seeds for each trajectory.
    (The agent's is a `numpy.random.RandomState`: of those at hand the quickest to seed, and its stream is frozen for
    good.)

    Args:
        module: The policy. The agent holds it; training it changes the agent in this process, and none in workers.
        head: A head, or an action space for its default: `CategoricalHead` for Discrete, `GaussianHead` for Box.
        deterministic: Take the mode of the distribution, as evaluations do, instead of drawing from it.
        dtype: What observations are converted to, a NumPy dtype. None leaves them as they are: float64, or uint8 for
            images, or int64 for an embedding. Nothing is scaled.

    Raises:
        UsageError: No module, a module with lazy parameters, or a space without a default head.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        head: Head | Space[Any],
        *,
        deterministic: bool = False,
        dtype: DTypeLike | None = np.float32,
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise UsageError(f"TorchAgent takes a torch.nn.Module, not {module!r}")
        if not isinstance(head, (Head, Space)):
            raise UsageError(f"TorchAgent takes a head or an action space, not {head!r}")
        refuse_lazy(module.state_dict(), "the module")
        self.module = module
        self.head = head if isinstance(head, Head) else default_head(head)
        self.deterministic = deterministic
        self._dtype = None if dtype is None else np.dtype(dtype)
        self._is_copy = False
        self._begin()

    def _begin(self) -> None:
        """Make what does not travel."""
        self._random = np.random.RandomState()
        self._inputs = _Inputs(self._dtype)
        self._inference = torch.inference_mode()
        self._log_std: NDArray[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            "module": on_cpu(self.module),
            "head": self.head,
            "deterministic": self.deterministic,
            "_dtype": self._dtype,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.module.eval()
        self._is_copy = True
        self._begin()

    def __repr__(self) -> str:
        return f"TorchAgent({type(self.module).__name__}, {type(self.head).__name__})"

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Choose an action.

        Args:
            observation: One of the environment's.

        Returns:
            The action, and infos: `log_prob`, what the head adds, and what else the module returned.

        Raises:
            ActionError: The module's output has the wrong shape, or logits that are not finite.
            UsageError: The module's output, or the observation, is of another kind.
        """
        output = self._forward(self._inputs.one, observation)
        if output.__class__ is torch.Tensor and len(self.head.names) == 1:
            return self.head.one((output,), self._random, self.deterministic)
        parameters, extras = self._parted(output)
        action, infos = self.head.one(parameters, self._random, self.deterministic)
        for key, rows in extras.items():
            infos[key] = rows[0]
        return action, infos

    @property
    def row_independent(self) -> bool:
        """Whether the module is in evaluation mode, as it is in workers, and the head's rows are independent."""
        return self.head.row_independent and not self.module.training

    def get_actions(self, observations: Any, *, draws: Draws | None = None) -> tuple[Any, dict[str, Any]]:
        """Choose an action for each of n observations, in one pass of the module.

        Args:
            observations: Tree of (n, *O).
            draws: What to draw from, for each row; None for the agent's one generator.

        Returns:
            The actions (n, *A), and infos of n rows each; see `get_action`.
        """
        parameters, extras = self._parted(self._forward(self._inputs.batch, observations))
        actions, infos = self.head.batch(parameters, self._drawn_from(draws), self.deterministic)
        return actions, infos | extras

    def get_value(self, observation: Any) -> float:
        """Return the module's `value` of one observation; for `batch.last_values`.

        Raises:
            UsageError: The module returns none, or several.
        """
        output = self._forward(self._inputs.one, observation)
        if not isinstance(output, Mapping) or "value" not in output:
            raise UsageError("the module returns no 'value': let it return a dict that has one")
        value = output["value"]
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            raise UsageError(f"the module's 'value' should be one number for each observation, and is {shape} for one")
        return float(value.reshape(()))

    def get_param_values(self) -> dict[str, Any]:
        """Return the module's `state_dict` as arrays, for `agent_update`; a module on the CPU shares their memory."""
        return arrays_of(self.module)

    def set_param_values(self, values: dict[str, Any]) -> None:
        """Copy parameters into the module.

        Args:
            values: What `get_param_values` gave, or a `state_dict`.

        Raises:
            UsageError: They are not the module's.
        """
        load_arrays(self.module, values)
        self._log_std = None

    def get_param_converter(self) -> ModuleConverter:
        """Return what makes parameters of an agent update that is a module like this agent's, or its `state_dict`."""
        return ModuleConverter.like(type(self).__name__, self.module.state_dict())

    def _forward(self, inputs: Callable[[Any], Any], observation: Any) -> Any:
        with self._inference:
            tensors = inputs(observation)
            return self.module(tensors) if self._is_copy else self._elsewhere(tensors)

    def _elsewhere(self, tensors: Any) -> Any:
        """Call the user's own module, on whatever device it is."""
        first = next(self.module.parameters(), None)
        if first is None or first.device.type == "cpu":
            return self.module(tensors)
        return _moved(self.module(_moved(tensors, first.device)), "cpu")

    def _parted(self, output: Any) -> tuple[tuple[Any, ...], dict[str, NDArray[Any]]]:
        """Return the head's parameters, and what else is recorded, as arrays."""
        names = self.head.names
        extras: dict[str, NDArray[Any]] = {}
        if output.__class__ is torch.Tensor:
            parameters: tuple[Any, ...] = (output,)
        elif isinstance(output, tuple) and 1 <= len(output) <= len(names):
            parameters = output
        elif isinstance(output, Mapping) and names[0] in output:
            parameters = tuple(output[name] for name in names if name in output)
            extras = {key: _extra(key, value, output[names[0]]) for key, value in output.items() if key not in names}
        else:
            raise UsageError(_what_is_returned(names, output))
        if len(parameters) < len(names):
            parameters += self._missing(names[len(parameters) :])
        return parameters, extras

    def _missing(self, names: tuple[str, ...]) -> tuple[Any, ...]:
        if names != ("log_std",) or not isinstance(getattr(self.module, "log_std", None), torch.Tensor):
            raise UsageError(
                f"the module returns no {' and '.join(names)}: let it return {' and '.join(self.head.names)}, or, "
                "with a Gaussian head, give it a parameter log_std"
            )
        if self._log_std is None or not self._is_copy:
            # The head takes the exponential again for another array. A copy's changes in set_param_values alone.
            self._log_std = self.module.log_std.detach().cpu().numpy()
        return (self._log_std,)


def _extra(key: str, value: Any, first: Any) -> NDArray[Any]:
    if not isinstance(value, torch.Tensor) or value.shape[:1] != first.shape[:1]:
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise UsageError(f"the module's {key!r} should be a tensor of {len(first)} rows, and is {shape}")
    array = array_of(value)
    return array.reshape(len(first)) if key == "value" and array.size == len(first) else array


def _what_is_returned(names: tuple[str, ...], output: Any) -> str:
    kind = type(output).__name__
    if isinstance(output, Mapping):
        kind += f" with {', '.join(map(repr, output))}"
    elif isinstance(output, tuple):
        kind += f" of {len(output)}"
    return (
        f"the module returned a {kind}; it should return a tensor ({names[0]}), a tuple ({', '.join(names)}), "
        "or a dict with these names and whatever else shall be recorded"
    )


def _moved(tree: Any, device: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: _moved(child, device) for key, child in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_moved(child, device) for child in tree)
    return tree.to(device) if isinstance(tree, torch.Tensor) else tree


class _Inputs:
    """Turns observations into tensors, in memory that is used again: half the cost of making new ones.

    Args:
        dtype: What to convert to; None keeps the observations' own.
    """

    def __init__(self, dtype: np.dtype[Any] | None) -> None:
        self._dtype = dtype
        self._children: dict[Any, _Inputs] = {}
        self._shape: tuple[int, ...] | None = None
        self._kind: np.dtype[Any] | None = None  # of the observations
        self._rows: Any = None
        self._row: Any = None
        self._tensor: Any = None
        self._row_tensor: Any = None

    def one(self, observation: Any) -> Any:
        """Return a batch of one."""
        if (
            observation.__class__ is not np.ndarray
            or observation.shape != self._shape
            or (observation.dtype is not self._kind and observation.dtype != self._kind)
        ):
            if isinstance(observation, Mapping):
                return {key: self._child(key).one(part) for key, part in observation.items()}
            if isinstance(observation, tuple):
                return tuple(self._child(key).one(part) for key, part in enumerate(observation))
            observation = _as_numbers(observation)
            self._fit(1, observation.shape, observation.dtype)
        self._row[...] = observation
        return self._row_tensor

    def batch(self, observations: Any) -> Any:
        """Return a batch of n."""
        if isinstance(observations, Mapping):
            return {key: self._child(key).batch(part) for key, part in observations.items()}
        if isinstance(observations, tuple):
            return tuple(self._child(key).batch(part) for key, part in enumerate(observations))
        observations = _as_numbers(observations)
        n = len(observations)
        self._fit(n, observations.shape[1:], observations.dtype)
        self._rows[:n] = observations
        return self._tensor[:n]

    def _child(self, key: Any) -> _Inputs:
        child = self._children.get(key)
        if child is None:
            child = self._children[key] = _Inputs(self._dtype)
        return child

    def _fit(self, n: int, shape: tuple[int, ...], kind: np.dtype[Any]) -> None:
        if shape == self._shape and kind == self._kind and n <= len(self._rows):
            return
        self._shape, self._kind = shape, kind
        self._rows = np.empty((n, *shape), self._dtype or kind)
        self._tensor = torch.from_numpy(self._rows)
        self._row, self._row_tensor = self._rows[:1], self._tensor[:1]


def _as_numbers(observation: Any) -> NDArray[Any]:
    array = np.asarray(observation)
    if array.dtype.kind not in "biuf":
        raise UsageError(
            f"an observation of dtype {array.dtype} is no tensor: {observation!r}; wrap the environment, or the module"
        )
    return array
