"""Agents made of PyTorch modules, recurrent or not. Needs PyTorch: `pip install torch`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Space
from numpy.typing import DTypeLike, NDArray

from streamsampler.agents.draws import Draws
from streamsampler.agents.heads import ActsByHead, CategoricalHead, GaussianHead, Head, array_of, default_head
from streamsampler.agents.mlp import MlpAgent
from streamsampler.agents.module_parameters import ModuleConverter, arrays_of, load_arrays, on_cpu, refuse_lazy
from streamsampler.core.errors import UsageError, positive
from streamsampler.core.extras import missing
from streamsampler.core.keywords import suggesting
from streamsampler.data.trees import n_rows_of

__all__ = ["CategoricalHead", "GaussianHead", "Head", "TorchAgent"]

try:
    import torch

    from streamsampler.agents.kernels import LayerCalls
    from streamsampler.agents.torch_inputs import TensorInputs
    from streamsampler.agents.torch_states import (
        describe_state,
        forms_of,
        map_states,
        moved_to,
        own_state,
        reset_states,
        state_as_infos,
        state_rows,
    )  # fmt: skip
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
                improve(policy, batch)  # uses batch.agent_infos["log_prob"]

    An agent update may be a similar module, its `state_dict`, or a result of `get_param_values`.

    The module is called with a batch of observations, (n, *O), even for n = 1: a tensor, or a dict or tuple of tensors
    for a Dict or Tuple space. The next call overwrites the tensor. The module returns, with n rows each:

    - a tensor, the head's first parameter: logits, or the mean;
    - or a tuple of the head's parameters: `(mean, log_std)`;
    - or a dict of the head's parameters by name: `logits`, or `mean` and `log_std`. Other entries are recorded in
      `agent_infos`. The entry `value`, (n,) or (n, 1), becomes a number per timestep, and is also computed for last
      observations that are not terminal: see `batch.values` and `batch.last_values`.

    If a module returns no `log_std`, a Gaussian head uses the module's parameter of that name.

    *A recurrent module* has a method `initial_state(n)`, which returns the memory of n rows at the start of
    trajectories: (n, *S), a tensor, or a tuple or dict of tensors. It is called as `module(observations, state)`, and
    returns `(outputs, state)` with a state of the same shapes and dtypes. (`torch.nn.LSTM` has rows on its second axis:
    let the module swap them.) It may change its input in place and return it. Each row of a batch has its own state; an
    episode in fragments resumes with its state in another worker. `agent_infos["state"]` has the states where sequences
    for learning may start: at the first timestep of each trajectory, or part of an episode, and at each
    `state_every`-th after it; a tuple becomes a dict by position. `batch.minibatches(…, by="sequence")` cuts there.

    Workers have a copy of the module on the CPU, in evaluation mode (no dropout) and inference mode, on the threads of
    the sampler's `worker_threads`. Actions are drawn from the agent's own generator, seeded by `reset`: a
    `numpy.random.RandomState`, the fastest to seed, with a stream frozen for good. The module's own draws come from
    torch's global generator, seeded for each trajectory, or by `VecWorker` for each block (`block_size` is then
    required).

    Args:
        module: The policy. The agent holds it: training changes the agent in this process, but not in workers.
        head: A head, or an action space for its default: `CategoricalHead` for Discrete, `GaussianHead` for Box.
        deterministic: Choose the mode of the distribution instead of drawing from it.
        dtype: A NumPy dtype for observations. None leaves them unchanged: float64, uint8 for images, or int64 for an
            embedding. Values are not scaled.
        state_every: For a recurrent module, the timesteps between recorded states; None records only the states at the
            start of trajectories, or of parts of episodes.

    Raises:
        UsageError: The module is not a torch module, has lazy parameters, or the space has no default head;
            `state_every` is below 1, or the module is not recurrent; or a subclass of this class has a recurrent
            module.
    """

    def __new__(cls, module: Any = None, *args: Any, **kwargs: Any) -> TorchAgent:
        """Make a `RecurrentTorchAgent` for a recurrent module."""
        del args, kwargs  # for __init__
        return super().__new__(RecurrentTorchAgent if cls is TorchAgent and _remembers(module) else cls)

    @suggesting()
    def __init__(
        self,
        module: torch.nn.Module,
        head: Head | Space[Any],
        *,
        deterministic: bool = False,
        dtype: DTypeLike | None = np.float32,
        state_every: int | None = None,
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
        if state_every is not None and not _remembers(module):
            raise UsageError(f"state_every={state_every!r} is for a recurrent module, which has initial_state(n)")
        if _remembers(module) and not isinstance(self, RecurrentTorchAgent):
            raise UsageError(
                f"{type(self).__name__} has no state, but the module has initial_state: derive it from "
                "streamsampler.adapters.torch.RecurrentTorchAgent"
            )
        self._state_every = None if state_every is None else positive("state_every", state_every)
        self._is_copy = False
        self._begin()

    def _begin(self) -> None:
        """Create the parts that are not pickled."""
        self._random = np.random.RandomState()
        self._inputs = TensorInputs(self._dtype)
        self._inference = torch.inference_mode()
        self._layer_calls = LayerCalls()
        self._known = _OfParameters()

    def sharing_parameters(self) -> TorchAgent | None:
        """Return an agent with the same module and head, also after updates, and its own generator and states.

        It returns None in your subclass, which may have further state, unless that overrides this method.
        """
        if type(self) not in (TorchAgent, RecurrentTorchAgent):
            return None
        shared: TorchAgent = object.__new__(type(self))
        shared.__dict__.update(self.__dict__)
        shared._begin()
        shared._layer_calls, shared._known = self._layer_calls, self._known
        return shared

    def __getstate__(self) -> dict[str, Any]:
        return {
            "module": on_cpu(self.module),
            "head": self.head,
            "deterministic": self.deterministic,
            "_dtype": self._dtype,
            "_state_every": self._state_every,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.module.eval()
        self._is_copy = True
        self._begin()

    def __repr__(self) -> str:
        return f"TorchAgent({type(self.module).__name__}, {type(self.head).__name__})"

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Choose an action; infos have `log_prob`, and further entries of head and module.

        Raises:
            ActionError: The module's output has a wrong shape, or logits are not finite.
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
        """Whether the module is in evaluation mode, and the head's rows are independent."""
        return self.head.row_independent and not self.module.training

    def get_actions(self, observations: Any, *, draws: Draws | None = None) -> tuple[Any, dict[str, Any]]:
        """Choose an action for each of n observations, in a single pass of the module; see `get_action`.

        Args:
            observations: Tree of (n, *O).
            draws: Draws for each row; None for the agent's own generator.
        """
        parameters, extras = self._parted(self._forward(self._inputs.batch, observations))
        actions, infos = self.head.batch(parameters, self._drawn_from(draws), self.deterministic)
        return actions, infos | extras

    def get_value(self, observation: Any) -> float:
        """Return the module's `value` of an observation; raise UsageError unless it returns a single value."""
        output = self._forward(self._inputs.one, observation)
        if not isinstance(output, Mapping) or "value" not in output:
            raise UsageError("the module returns no 'value': let it return a dict with 'value'")
        value = output["value"]
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            raise UsageError(f"the module's 'value' should be one number for each observation, but is {shape} for one")
        return float(value.reshape(()))

    def get_param_values(self) -> dict[str, Any]:
        """Return the module's `state_dict` as arrays, which share memory with a module on the CPU."""
        return arrays_of(self.module)

    def set_param_values(self, values: dict[str, Any]) -> None:
        """Copy parameters from `get_param_values`, or a `state_dict`, into the module."""
        load_arrays(self.module, values)
        self._known.log_std = None

    def get_param_converter(self) -> ModuleConverter:
        """Return a converter for a similar module, or its `state_dict`."""
        return ModuleConverter.like(type(self).__name__, self.module.state_dict())

    def to_numpy(self, observations: Any = None) -> MlpAgent:
        """Make an equivalent agent in NumPy: small networks take half the time, and workers do not import torch.

        For example::

            agent = TorchAgent(policy, env.action_space).to_numpy()
            print(agent)  # MlpAgent(4-64-64-2, CategoricalHead, largest_difference=2.4e-07)

        It accepts the same agent updates, and draws the same random numbers; its network's outputs differ by at most
        `agent.largest_difference`.

        Args:
            observations: Observations for a comparison of outputs, (n, *O). None for 512 vectors of normal numbers,
                half of them ten times as large.

        Raises:
            UsageError: The module is not an `nn.Sequential` of layers that `MlpAgent` knows, lacks `log_std` for a
                Gaussian head, or its outputs differ by more than rounding; or this agent is of a subclass.
        """
        log_std = getattr(self.module, "log_std", None) if "log_std" in self.head.names else None
        agent = MlpAgent(self.module, self.head, log_std=log_std, deterministic=self.deterministic)
        if type(self) is not TorchAgent:
            raise UsageError(f"{type(self).__name__} may do more than a TorchAgent: make an MlpAgent of its network")
        dtype = self._dtype or next((value.dtype for value in self.get_param_values().values()), None)
        agent.compare(lambda rows: array_of(self._forward(self._inputs.batch, rows.astype(dtype))), observations)
        return agent

    def _forward(self, inputs: Callable[[Any], Any], observation: Any) -> Any:
        with self._inference:
            tensors = inputs(observation)
            return self._layer_calls(self.module, tensors) if self._is_copy else self._elsewhere(tensors)

    def _elsewhere(self, *inputs: Any) -> Any:
        """Call the user's own module on its device."""
        first = next(self.module.parameters(), None)
        if first is None or first.device.type == "cpu":
            return self.module(*inputs)
        return moved_to(self.module(*moved_to(inputs, first.device)), "cpu")

    def _parted(self, output: Any) -> tuple[tuple[Any, ...], dict[str, NDArray[Any]]]:
        """Split an output into the head's parameters and further infos, as arrays."""
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
        if self._known.log_std is None or not self._is_copy:
            # The head computes the exponential again for a new array; only set_param_values changes a copy's parameter.
            self._known.log_std = self.module.log_std.detach().cpu().numpy()
        return (self._known.log_std,)


def _remembers(module: Any) -> bool:
    return callable(getattr(module, "initial_state", None))


class RecurrentTorchAgent(TorchAgent):
    """A `TorchAgent` with a recurrent module; see there."""

    def _begin(self) -> None:
        super()._begin()
        self._state: Any = None  # each row's memory, before its next timestep
        self._ages = np.zeros(0, np.int64)  # each row's timesteps since its trajectory, or part, started

    def reset(self, seed: int) -> None:
        """Seed the generator of actions, and clear the memory."""
        super().reset(seed)
        self._state = None

    def begin_part(self) -> None:
        """Record all rows' states at the next timestep, where episodes continue in a new fragment."""
        self._ages[:] = 0

    def get_state(self) -> Any:
        """Return the states of generator and module, and the rows' ages."""
        return super().get_state(), copy.deepcopy(self._state), self._ages.copy()

    def set_state(self, state: Any) -> None:
        """Set the states of generator and module, and the rows' ages."""
        generator, self._state, ages = copy.deepcopy(state)
        super().set_state(generator)
        self._ages = ages

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        """Choose an action, and update the memory; the infos have `state` at timesteps where it is recorded."""
        recorded = self._advance(1, None)
        action, infos = super().get_action(observation)
        return action, _with_state(infos, {"state": state_rows(recorded["state"], 0)} if recorded else {})

    def get_actions(
        self, observations: Any, *, draws: Draws | None = None, starts: NDArray[np.bool_] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Choose an action for each of n observations, always the same n; see `TorchAgent.get_actions`.

        Without `starts`, (n,) bool, all rows start a trajectory in the first call after `reset`, and none later.
        """
        recorded = self._advance(n_rows_of(observations), starts)
        actions, infos = super().get_actions(observations, draws=draws)
        return actions, _with_state(infos, recorded)

    def get_value(self, observation: Any, *, slot: int = 0) -> float:
        """Return the module's `value` of an observation with the memory of row `slot`, which does not change."""
        state = self._state
        self._state = self._initial(1) if state is None else own_state(state_rows(state, slice(slot, slot + 1)))
        try:
            return super().get_value(observation)
        finally:
            self._state = state

    def _advance(self, n: int, starts: NDArray[np.bool_] | None) -> dict[str, Any]:
        """Start trajectories in rows, and return the states to record before this timestep."""
        if self._state is None or len(self._ages) != n:
            self._state, self._ages = self._initial(n), np.zeros(n, np.int64)
        elif starts is not None and starts.any():
            starting = torch.from_numpy(starts)
            self._state = map_states(partial(reset_states, starting), self._initial(n), self._state)
            self._ages[starts] = 0
        due = self._ages == 0 if self._state_every is None else self._ages % self._state_every == 0
        self._ages += 1
        if not due.any():
            return {}
        arrays = map_states(lambda leaf: array_of(leaf).copy(), self._state)
        return {"state": state_as_infos(arrays)} | ({} if due.all() else {"_state": due})

    def _initial(self, n: int) -> Any:
        with self._inference:
            state = own_state(moved_to(self.module.initial_state(n), "cpu"))
        forms = forms_of(state)
        if not forms or any(form is None or form[0][:1] != (n,) for form in forms.values()):
            raise UsageError(
                f"the module's initial_state({n}) should be a tensor with {n} rows, or a tuple or a dict by name of "
                f"such tensors, but is {describe_state(state)}"
            )
        return state

    def _forward(self, inputs: Callable[[Any], Any], observation: Any) -> Any:
        with self._inference:
            tensors = inputs(observation)
            returned = (self.module if self._is_copy else self._elsewhere)(tensors, self._state)
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise UsageError(
                f"a module with initial_state should return (outputs, state), but returned {describe_state(returned)}"
            )
        outputs, state = returned
        if forms_of(state) != forms_of(self._state):
            raise UsageError(
                f"the module received the state {describe_state(self._state)}, but returned "
                f"{describe_state(state)}: shapes and dtypes must be the same"
            )
        with self._inference:
            self._state = own_state(state)
        return outputs


def _with_state(infos: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    if "state" in infos or "_state" in infos:
        raise UsageError("the module's memory is recorded as 'state': give its own output 'state' another name")
    return infos | recorded


def _extra(key: str, value: Any, first: Any) -> NDArray[Any]:
    if not isinstance(value, torch.Tensor) or value.shape[:1] != first.shape[:1]:
        shape = tuple(value.shape) if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
        raise UsageError(f"the module's {key!r} should be a tensor of {len(first)} rows, but is {shape}")
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
        "or a dict with these names and further entries to record"
    )


class _OfParameters:
    """Caches of parameters, common to all agents that share them.

    Attributes:
        log_std: The module's parameter; None before its first use and after updates.
    """

    log_std: NDArray[Any] | None = None
