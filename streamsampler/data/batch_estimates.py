"""Inputs of on-policy algorithms, computed from a batch: returns, advantages, minibatches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from streamsampler.core.errors import DataError, UsageError, number, positive
from streamsampler.data.batch_fields import ActionsT, BatchFields, ObservationsT
from streamsampler.data.infos import is_mask
from streamsampler.data.trees import Tree, take

Floats = NDArray[np.float64]

_FEW = 24  # trajectories: below this, a Python loop is faster than a NumPy call for each timestep


class VTrace(NamedTuple):
    """The estimates of V-trace (see `TrajectoryBatch.vtrace`).

    Attributes:
        targets: (T,) regression targets for the values.
        advantages: (T,) of the actions, clipped importance weights included.
    """

    targets: Any
    advantages: Any


class Sequences(NamedTuple):
    """A minibatch of n sequences of timesteps, of length L (see `TrajectoryBatch.minibatches`).

    Attributes:
        rows: (n, L) int64, rows of the arrays of T timesteps; padded with the sequence's last row.
        mask: (n, L) bool: false for padding.
        states: NumPy arrays of (n, *S), in a dict if the agent's memory has several (a tuple's by position, "0", "1"):
            the memory before each sequence's first timestep.
    """

    rows: NDArray[np.int64]
    mask: NDArray[np.bool_]
    states: Any


def accumulate_backwards(
    terms: Floats, lengths: NDArray[np.int64], factors: float | Floats, last: Floats | None = None
) -> Floats:
    """Return `y[t] = terms[t] + factors[t] * y[t + 1]`, from the end of each trajectory backwards, (T,).

    All trajectories advance together from their ends: step k is a NumPy call over the trajectories of at least k
    timesteps. When fewer than `_FEW` remain, each is computed in Python, to the same bits. `last` has the value after
    each trajectory's last timestep; None for zeros.
    """
    longest_first = np.argsort(-lengths, kind="stable")
    sizes = lengths[longest_first]
    at = np.cumsum(lengths)[longest_first]  # the row after the next row
    results = np.empty(len(terms))
    following = np.zeros(len(sizes)) if last is None else last[longest_first]
    # How many trajectories take part in each step, while they are enough.
    n_steps = int(sizes[_FEW - 1]) if len(sizes) >= _FEW else 0
    n_active = np.searchsorted(-sizes, -np.arange(1, n_steps + 1), side="right")
    one = float(factors) if np.ndim(factors) == 0 else None
    each = np.broadcast_to(factors, terms.shape)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite rewards are data
        for step, n in enumerate(n_active.tolist(), start=1):
            rows = at[:n] - step
            factor = each[rows] if one is None else one
            following[:n] = results[rows] = terms[rows] + factor * following[:n]
    for long in np.flatnonzero(sizes > n_steps).tolist():
        start, stop = int(at[long] - sizes[long]), int(at[long]) - n_steps
        value, backwards = float(following[long]), []
        for term, factor in zip(terms[start:stop][::-1].tolist(), each[start:stop][::-1].tolist(), strict=True):
            value = term + factor * value
            backwards.append(value)
        results[start:stop] = backwards[::-1]
    return results


def following_values(values: Floats, last: Floats, lengths: NDArray[np.int64]) -> Floats:
    following = np.empty(len(values))
    following[:-1] = values[1:]
    following[np.cumsum(lengths) - 1] = last
    return following


class BatchEstimates(BatchFields[ObservationsT, ActionsT]):
    """The members of a `TrajectoryBatch` for learning algorithms: returns, advantages, minibatches.

    Values are arrays or PyTorch tensors. Results are computed in float64, without gradients. For tensors they are
    returned on the same device with the same dtype (float64 for integers), for arrays as float64.
    """

    @property
    def values(self) -> NDArray[Any]:
        """(T,) the agent's own values of `observations`, which it recorded as "value" in `agent_infos`.

        Raises:
            DataError: The values are missing in some timesteps, or are not single numbers.
        """
        values = self.agent_infos.get("value")
        if values is None or "_value" in self.agent_infos or np.shape(values) != self.rewards.shape:
            raise DataError(
                'the agent did not record a value in each timestep: return one number "value" in its infos (from a '
                "TorchAgent's module), or pass values"
            )
        return values

    @property
    def last_values(self) -> NDArray[np.float64]:
        """(N,) the agent's own values of `last_observations`, 0 after terminal ones; from `get_value`, in the worker.

        Raises:
            DataError: The agent recorded none.
        """
        found = np.asarray(self.episode_infos.get("last_value", np.zeros(len(self.lengths))), dtype=np.float64)
        there = np.asarray(self.episode_infos.get("_last_value", "last_value" in self.episode_infos))
        if missing := int((~self.terminated & ~there).sum()):
            raise DataError(
                f"{missing} of {len(self.lengths)} trajectories did not terminate, and the agent recorded no value of "
                "their last observations: give it a method get_value(observation) (with a keyword slot, the row, if it "
                "has get_actions and a memory), or pass last_values"
            )
        return np.where(self.terminated, 0.0, found)

    def discounted_returns(self, gamma: float) -> NDArray[np.float64]:
        """Return the discounted return from each timestep to the end of its trajectory, (T,) float64.

        The plain recursion from the end backwards, `G[t] = r[t] + gamma * G[t + 1]`, with nothing after the end: a
        truncated trajectory is not bootstrapped; `returns_to_go` does that.

        Args:
            gamma: The discount.
        """
        return accumulate_backwards(self.rewards, self.lengths, number("gamma", gamma))

    def returns_to_go(self, gamma: float, last_values: Any = None) -> Any:
        """Return the discounted return from each timestep on, bootstrapped at truncated ends.

        Args:
            gamma: The discount, 0 to 1.
            last_values: (N,) the values of `last_observations`, ignored after terminal states. Optional if all are
                terminated.

        Returns:
            (T,) float64, or a tensor like `last_values`.

        Raises:
            DataError: `last_values` has another shape, or is missing and a trajectory was truncated.
            UsageError: The discount is below 0 or above 1.
        """
        last = self._last(last_values)
        gamma = _share(gamma, "gamma")
        return _like(last_values, accumulate_backwards(self.rewards, self.lengths, gamma, last))

    def advantages(
        self, values: Any = None, last_values: Any = None, gamma: float = 0.99, lambda_: float = 0.95
    ) -> Any:
        """Compute generalised advantage estimates (Schulman et al., 2016).

        `A[t] = d[t] + gamma * lambda_ * A[t + 1]` with the errors `d[t] = r[t] + gamma * V[t + 1] - V[t]`. After a
        truncated trajectory V is its last value, after a terminated trajectory 0.

        Args:
            values: (T,) the values of `observations`; None for the agent's own, the batch's `values` and `last_values`.
            last_values: See `returns_to_go`.
            gamma: The discount, 0 to 1.
            lambda_: The weight of longer estimates, 0 to 1. With 1 the result is `returns_to_go` less the values.

        Returns:
            (T,) float64, or a tensor like `values`.

        Raises:
            DataError: Values or last values have another shape, or are missing and a trajectory was truncated.
            UsageError: A discount or weight is below 0 or above 1.
        """
        given, last_values = self._given(values, last_values)
        floats, last = self._values(given), self._last(last_values)
        gamma, lambda_ = _share(gamma, "gamma"), _share(lambda_, "lambda_")
        with np.errstate(over="ignore", invalid="ignore"):
            errors = self.rewards + gamma * following_values(floats, last, self.lengths) - floats
        return _like(given, accumulate_backwards(errors, self.lengths, gamma * lambda_))

    def td_lambda(self, values: Any = None, last_values: Any = None, gamma: float = 0.99, lambda_: float = 0.95) -> Any:
        """Compute the lambda-returns, TD(lambda)'s targets for the values (Sutton, 1988): `advantages` plus values.

        Arguments, result and errors are those of `advantages`.
        """
        values, last_values = self._given(values, last_values)
        plain = self.advantages(_array(values, "values"), last_values, gamma, lambda_)
        return _like(values, plain + self._values(values))

    def vtrace(
        self, values: Any, last_values: Any = None, *, log_ratios: Any, gamma: float = 0.99, lambda_: float = 1.0,
        clip_rho: float = 1.0, clip_c: float = 1.0,
    ) -> VTrace:  # fmt: skip
        """Compute V-trace's targets and advantages (Espeholt et al., 2018, IMPALA), for data of an older policy.

        If the learning policy is the one that sampled, and nothing is clipped, the targets are those of `td_lambda`.

        Args:
            values: (T,) the values of `observations` under the learning policy.
            last_values: See `returns_to_go`.
            log_ratios: (T,) log-probability of each action under the learning policy, less that under the sampling
                policy.
            gamma: The discount, 0 to 1.
            lambda_: The weight of longer estimates, 0 to 1.
            clip_rho: The upper bound of importance weights in the errors.
            clip_c: Their upper bound in the traces.

        Returns:
            Targets and advantages, (T,) float64 each, or tensors like `values`.

        Raises:
            DataError: Values, last values or ratios have another shape, or last values are missing and a trajectory was
                truncated.
            UsageError: A discount or weight is below 0 or above 1, or a clip is not above 0.
        """
        clip_rho, clip_c = number("clip_rho", clip_rho), number("clip_c", clip_c)
        if not (clip_rho > 0 and clip_c > 0):
            raise UsageError(f"clip_rho and clip_c must be above 0, not {clip_rho} and {clip_c}")
        with np.errstate(over="ignore"):  # an infinite weight is clipped below
            ratios = np.exp(self._values(log_ratios, "log_ratios"))
        floats, last, rewards, lengths = self._values(values), self._last(last_values), self.rewards, self.lengths
        gamma, lambda_ = _share(gamma, "gamma"), _share(lambda_, "lambda_")
        rho, trace = np.minimum(ratios, clip_rho), lambda_ * np.minimum(ratios, clip_c)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = rho * (rewards + gamma * following_values(floats, last, lengths) - floats)
            targets = floats + accumulate_backwards(errors, lengths, gamma * trace)
            found = rho * (rewards + gamma * following_values(targets, last, lengths) - floats)
        return VTrace(_like(values, targets), _like(values, found))

    @property
    def states_at(self) -> NDArray[np.int64]:
        """(S,) int64, rising: the timesteps, of T, before which the agent's state was recorded; see `TorchAgent`.

        Raises:
            DataError: The agent recorded none.
        """
        if not len(self.rewards):
            return np.zeros(0, np.int64)
        present = _recorded_states(self.agent_infos)[1]
        return np.arange(len(self.rewards)) if present is None else np.flatnonzero(present)

    @overload
    def minibatches(
        self, size: int, *, seed: int, by: Literal["timestep", "trajectory"] = "timestep", epochs: int = 1
    ) -> Iterator[NDArray[np.int64]]: ...
    @overload
    def minibatches(
        self, size: int, *, seed: int, by: Literal["sequence"], epochs: int = 1, length: int | None = None
    ) -> Iterator[Sequences]: ...

    def minibatches(
        self, size: int, *, seed: int, by: Literal["timestep", "trajectory", "sequence"] = "timestep",
        epochs: int = 1, length: int | None = None,
    ) -> Iterator[Any]:  # fmt: skip
        """Shuffle the batch into minibatches, in a new order each epoch.

        ```python
        for rows in batch.minibatches(256, seed=iteration, epochs=10):
            loss(observations[rows], actions[rows], advantages[rows])
        for few in batch.minibatches(8, seed=iteration, by="trajectory"):
            loss(batch[few].padded("observations"))
        for rows, mask, states in batch.minibatches(8, seed=iteration, by="sequence", length=16):
            loss(observations[rows], states, advantages[rows], mask)
        ```

        Sequences are for recurrent agents. They start with each trajectory and every `length` timesteps after that,
        where the agent recorded its state (`states_at`).

        Args:
            size: How many timesteps, trajectories or sequences each has; an epoch's last minibatch may be smaller.
            seed: Determines the order.
            by: The unit to shuffle.
            epochs: How often each unit appears.
            length: The maximum length of a sequence, a multiple of the agent's `state_every`; None for whole
                trajectories.

        Yields:
            (size,) int64: rows of the arrays of T timesteps, or positions of trajectories; with `by="sequence"`:
            `Sequences`.

        Raises:
            UsageError: A size, a length or a number of epochs is below 1, the seed is no integer of at least 0, `by` is
                unknown, `length` is given without sequences, or no state was recorded after `length` timesteps.
            DataError: Sequences are requested and the agent recorded no state, in the batch or in a trajectory.
        """
        if by not in ("timestep", "trajectory", "sequence"):
            raise UsageError(f"by must be 'timestep', 'trajectory' or 'sequence', not {by!r}")
        if length is not None and by != "sequence":
            raise UsageError(f"length={length!r} needs by='sequence', not by={by!r}")
        size, epochs, seed = positive("size", size), positive("epochs", epochs), positive("seed", seed, least=0)
        if by == "sequence":
            return self._sequences(size, seed, epochs, None if length is None else positive("length", length))
        return _shuffled(len(self.rewards if by == "timestep" else self.lengths), size, seed, epochs)

    def _sequences(self, size: int, seed: int, epochs: int, length: int | None) -> Iterator[Sequences]:
        if not len(self.rewards):
            return iter(())
        states, present = _recorded_states(self.agent_infos)
        if present is not None and len(without := np.flatnonzero(~present[self.starts])):
            raise DataError(
                f"{len(without)} of {len(self.lengths)} trajectories, the first at position {without[0]}, have no "
                "recorded state: sequences need an agent with a memory"
            )
        longest = int(self.lengths.max(initial=1))
        most = longest if length is None else min(length, longest)
        counts = -(-self.lengths // most)
        owners = np.repeat(np.arange(len(counts)), counts)
        places = np.arange(len(owners)) - (np.cumsum(counts) - counts)[owners]
        first = self.starts[owners] + places * most
        if present is not None and not present[first].all():
            missing = first[np.argmin(present[first])]
            raise UsageError(
                f"length={length} cuts before timestep {missing} of {len(self.rewards)}, where the agent recorded no "
                "state: use a multiple of the state_every of its TorchAgent, or None"
            )
        last = np.minimum(first + most, (self.starts + self.lengths)[owners]) - 1

        def sequences() -> Iterator[Sequences]:
            for few in _shuffled(len(first), size, seed, epochs):
                rows = first[few, None] + np.arange(most)
                mask = rows <= last[few, None]
                yield Sequences(np.minimum(rows, last[few, None]), mask, take(states, first[few]))

        return sequences()

    def _given(self, values: Any, last_values: Any) -> tuple[Any, Any]:
        """Return values and last values, by default the agent's own."""
        if values is not None:
            return values, last_values
        return self.values, self.last_values if last_values is None else last_values

    def _values(self, values: Any, name: str = "values") -> Floats:
        found = _array(values, name)
        if found.shape != self.rewards.shape:
            raise DataError(
                f"{name} have the shape {found.shape}, but should have ({len(self.rewards)},), one value for each "
                "timestep of the batch"
            )
        return found

    def _last(self, last_values: Any) -> Floats:
        """Return the value after each trajectory's last timestep."""
        n = len(self.lengths)
        if last_values is None:
            if len(ends := np.flatnonzero(~self.terminated)):
                raise DataError(
                    f"{len(ends)} of {n} trajectories did not terminate, the first at position {ends[0]}: pass "
                    "last_values, the values of last_observations, to bootstrap from"
                )
            return np.zeros(n)
        found = _array(last_values, "last_values")
        if found.shape != (n,):
            raise DataError(
                f"last_values have the shape {found.shape}, but should have ({n},), one value for each trajectory"
            )
        return np.where(self.terminated, 0.0, found)


def _recorded_states(infos: dict[str, Any]) -> tuple[Tree, NDArray[np.bool_] | None]:
    """Return the agent's recorded states, and a mask of their timesteps (None: all)."""
    if "state" not in infos:
        raise DataError(
            "the agent recorded no state: sequences need an agent with a memory, such as a TorchAgent of a module with "
            "initial_state(n)"
        )
    found, present = infos["state"], infos.get("_state")
    while isinstance(found, dict):
        key = next(key for key in found if not is_mask(key, found))
        found, present = found[key], found.get(f"_{key}", present)
    return _without_masks(infos["state"]), present


def _without_masks(states: Any) -> Any:
    if not isinstance(states, dict):
        return states
    return {key: _without_masks(child) for key, child in states.items() if not is_mask(key, states)}


def _shuffled(n: int, size: int, seed: int, epochs: int) -> Iterator[NDArray[np.int64]]:
    generator = np.random.default_rng(seed)
    for _ in range(epochs):
        order = generator.permutation(n)
        yield from (order[start : start + size] for start in range(0, n, size))


def _array(values: Any, name: str) -> Floats:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values if values.is_complex() else values.double()).numpy()
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "cOSU" or (array.dtype.kind == "O" and all(one is not None for one in array.flat)):
            return array.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} should be numbers: {error}") from None
    raise DataError(f"{name} should be real numbers, but have the dtype {array.dtype}")


def _like(given: Any, found: Floats) -> Any:
    """Return a result as a tensor if given one; as float64 for integer tensors, which would truncate it."""
    if not hasattr(given, "new_tensor"):
        return found
    return (given if given.is_floating_point() else given.double()).new_tensor(found)


def _share(value: float, name: str) -> float:
    share = number(name, value)
    if not 0.0 <= share <= 1.0:
        raise UsageError(f"{name} must be between 0 and 1, not {value}")
    return share
