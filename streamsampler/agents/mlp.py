"""Small torch networks that workers compute with NumPy.

With 2x64 units, actions take half of torch's time, for a single observation as for 128: at this size, torch mostly
spends its time in dispatch. Workers without torch also start two seconds earlier, and each saves torch's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import NDArray

from streamsampler.agents.draws import Draws
from streamsampler.agents.heads import ActsByHead, GaussianHead, Head, default_head
from streamsampler.agents.module_parameters import ModuleConverter
from streamsampler.core.errors import ActionError, UsageError
from streamsampler.core.keywords import suggesting

Activation = Callable[[NDArray[Any]], NDArray[Any]]
Layer = str | Activation
"""An activation, or a linear layer's name: its parameters are `name.weight` and `name.bias`."""


def _relu(x: NDArray[Any]) -> NDArray[Any]:
    y: NDArray[Any] = np.maximum(x, 0.0)
    return y


def _sigmoid(x: NDArray[Any]) -> NDArray[Any]:
    # The hyperbolic tangent does not overflow.
    return 0.5 * (1.0 + np.tanh(0.5 * x))


_ACTIVATIONS: dict[str, Activation] = {"ReLU": _relu, "Tanh": np.tanh, "Sigmoid": _sigmoid}
_EXAMPLES, _SCALES = 256, (1.0, 10.0)
"""Default comparison: this many observations of each scale."""
_ROUNDING = 1e-3
"""Above this share of the largest output, a difference is no rounding of float32."""


class MlpAgent(ActsByHead):
    """Acts with an `nn.Sequential` of Linear, ReLU, Tanh and Sigmoid modules, without torch in the workers.

    For example::

        policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
        agent = MlpAgent(policy, gymnasium.make("CartPole-v1").action_space)
        batch = sampler.obtain_samples(4000, agent_update=agent.get_param_values())

    An agent update may also be a similar network, or its `state_dict`; with a Gaussian head, `log_std` is a parameter,
    too.

    Results, infos and seeding are those of `TorchAgent` with the module, up to float32's last digits.
    `TorchAgent.to_numpy` makes an MlpAgent, and compares both.

    Args:
        network: An `nn.Sequential`, nested or not. Observations are vectors, or of any shape after a leading Flatten.
            The agent holds the network: `get_param_values`, `reset` and pickling read its current parameters.
        head: A head, or an action space for its default: `CategoricalHead` for Discrete, `GaussianHead` for Box.
        log_std: For a Gaussian head, the parameter with the logarithm of the standard deviation, (*A) or flat.
        deterministic: Choose the mode of the distribution instead of drawing from it.

    Attributes:
        largest_difference: The largest difference from torch's outputs that `compare` found; None before.

    Raises:
        UsageError: The network has other layers, the space has no default head, or `log_std` is missing or superfluous.
    """

    largest_difference: float | None = None

    @suggesting()
    def __init__(
        self, network: Any, head: Head | Space[Any], *, log_std: Any = None, deterministic: bool = False
    ) -> None:
        self.head = head if isinstance(head, Head) else default_head(head)
        self.deterministic = deterministic
        self._flatten = False
        self._layers: list[Layer] = []
        for name, module in _flat(network, ""):
            self._add(name, module)
        if (log_std is not None) != isinstance(self.head, GaussianHead):
            raise UsageError(
                "a Gaussian head needs log_std: an argument of MlpAgent, a parameter of the module of TorchAgent"
                if log_std is None
                else f"log_std is for Gaussian heads, not for a {type(self.head).__name__}"
            )
        self._source: tuple[Any, Any] | None = (network, log_std)
        self._random = np.random.RandomState()
        self._steps: list[tuple[NDArray[Any], NDArray[Any] | None] | Activation] = []
        self._log_std: NDArray[Any] | None = None
        self.set_param_values(self.get_param_values())

    def _add(self, name: str, module: Any) -> None:
        kind = type(module).__name__
        if kind == "Linear":
            self._layers.append(name)
        elif kind in _ACTIVATIONS:
            self._layers.append(_ACTIVATIONS[kind])
        elif kind == "Flatten" and not self._layers:
            self._flatten = True
        else:
            known = ", ".join(["Linear", *_ACTIVATIONS])
            raise UsageError(
                f"MlpAgent supports {known}, but {name} of the network is a {kind}: use TorchAgent for any module"
            )

    def __getstate__(self) -> dict[str, Any]:
        if self._source is not None:
            self.set_param_values(self.get_param_values())
        return {key: value for key, value in self.__dict__.items() if key != "_random"} | {"_source": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._random = np.random.RandomState()

    def sharing_parameters(self) -> MlpAgent | None:
        """Return an agent with the same arrays (until an update) and its own generator; None for a subclass."""
        if type(self) is not MlpAgent:
            return None
        shared: MlpAgent = object.__new__(MlpAgent)
        shared.__setstate__(self.__dict__)
        return shared

    def __repr__(self) -> str:
        weights = [step[0] for step in self._steps if isinstance(step, tuple)]
        widths = [str(weight.shape[0]) for weight in weights[:1]] + [str(weight.shape[1]) for weight in weights]
        said = "" if self.largest_difference is None else f", largest_difference={self.largest_difference:.2g}"
        return f"MlpAgent({'-'.join(widths)}, {type(self.head).__name__}{said})"

    def compare(self, outputs_of: Callable[[NDArray[Any]], NDArray[Any]], observations: Any = None) -> None:
        """Compare the network's outputs with torch's, and set `largest_difference`.

        Args:
            outputs_of: Returns torch's outputs for observations, (n, …).
            observations: (n, *O); None for 512 vectors of normal numbers, half of them ten times as large.

        Raises:
            UsageError: The outputs differ by more than rounding.
        """
        if observations is None:
            n_inputs = next((step[0].shape[0] for step in self._steps if isinstance(step, tuple)), 1)
            drawn = np.random.RandomState(0).standard_normal((len(_SCALES), _EXAMPLES, n_inputs))
            observations = (drawn * np.reshape(_SCALES, (-1, 1, 1))).reshape(-1, n_inputs)
        rows = np.asarray(observations, dtype=np.float32)
        expected = outputs_of(rows).astype(np.float64)
        difference, largest = np.abs(self._outputs(rows)[0] - expected).max(), np.abs(expected).max()
        if not difference <= _ROUNDING * max(1.0, largest):
            raise UsageError(
                f"outputs of the network, up to {largest:.3g}, differ in NumPy by {difference:.3g}: it has more than "
                "its layers, such as hooks, or computes with a lower precision than float32. Use TorchAgent for any "
                "module"
            )
        self.largest_difference = float(difference)

    def reset(self, seed: int) -> None:
        """Seed the generator of actions; read the network's current parameters."""
        if self._source is not None:
            self.set_param_values(self.get_param_values())
        super().reset(seed)

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Choose an action for an observation of any numeric dtype; infos have `log_prob` and the head's entries.

        Raises:
            ActionError: The network's output is not finite, or does not fit.
            UsageError: The observation does not fit the network.
        """
        outputs = self._outputs(np.asarray(observation, dtype=np.float32)[None])
        return self.head.one(outputs, self._random, self.deterministic)

    @property
    def row_independent(self) -> bool:
        """Whether the head's rows are independent."""
        return self.head.row_independent

    def get_actions(self, observations: Any, *, draws: Draws | None = None) -> tuple[Any, dict[str, Any]]:
        """Choose an action for each of n observations, (n, *O), drawn from `draws` if passed."""
        outputs = self._outputs(np.asarray(observations, dtype=np.float32))
        return self.head.batch(outputs, self._drawn_from(draws), self.deterministic)

    def _outputs(self, rows: NDArray[Any]) -> tuple[Any, ...]:
        if self._flatten:
            rows = rows.reshape(len(rows), -1)
        elif rows.ndim != 2:
            raise UsageError(f"observations have the shape {rows.shape[1:]}; start the network with nn.Flatten()")
        for step in self._steps:
            if step.__class__ is not tuple:
                rows = step(rows)  # type: ignore[operator]
                continue
            weight, bias = step
            try:
                rows = rows @ weight
            except ValueError:
                raise ActionError(
                    f"a layer with {weight.shape[0]} inputs received rows of {rows.shape[1]} numbers"
                ) from None
            if bias is not None:
                rows += bias
        return (rows,) if self._log_std is None else (rows, self._log_std)

    def get_param_values(self) -> dict[str, NDArray[Any]]:
        """Return the parameters by their names in the network's `state_dict`, and `log_std`."""
        if self._source is None:
            return self._values
        network, log_std = self._source
        values = {name: _array_of(tensor) for name, tensor in network.state_dict().items()}
        return values if log_std is None else values | {"log_std": _array_of(log_std)}

    def set_param_values(self, values: dict[str, NDArray[Any]]) -> None:
        """Set the parameters, from `get_param_values`; the original network does not change."""
        names = {f"{layer}.weight" for layer in self._layers if isinstance(layer, str)}
        names |= {"log_std"} if isinstance(self.head, GaussianHead) else set()
        if not isinstance(values, dict) or not names <= values.keys():
            raise UsageError(
                f"the parameters must be a dict with {', '.join(sorted(names))}, as get_param_values returns it"
            )
        self._values = {name: np.array(value, dtype=np.float32) for name, value in values.items()}
        self._steps = [
            (np.ascontiguousarray(self._values[f"{layer}.weight"].T), self._values.get(f"{layer}.bias"))
            if isinstance(layer, str)
            else layer
            for layer in self._layers
        ]
        self._log_std = self._values.get("log_std")

    def get_param_converter(self) -> ModuleConverter:
        """Return a converter for a similar network, or its `state_dict`."""
        return ModuleConverter.like(type(self).__name__, self._values, _array_of)


def _flat(network: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if type(network).__name__ != "Sequential":
        raise UsageError(f"MlpAgent takes an nn.Sequential, not {network!r}; TorchAgent takes any module")
    for name, module in network.named_children():
        if type(module).__name__ == "Sequential":
            yield from _flat(module, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", module


def _array_of(value: Any) -> NDArray[Any]:
    array: NDArray[Any] = value.detach().float().cpu().numpy() if hasattr(value, "detach") else np.asarray(value)
    return array
