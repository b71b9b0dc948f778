"""Resume a saved evaluation: check that its trajectories are the first of the new run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from streamsampler.core.errors import StorageError, UsageError
from streamsampler.core.words import count
from streamsampler.evaluation.amounts import Amount
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.origins import differences, origin, origin_of, warn_of_kernels


@dataclass(frozen=True)
class SavedTrajectories:
    """The saved trajectories of an agent, which are not run again.

    Attributes:
        path: The file.
        evaluation: The agent's evaluation in the file.
    """

    path: Path
    evaluation: Evaluation

    @property
    def first(self) -> int:
        """The first index of the evaluation, or of its part."""
        part = self.evaluation.part
        return 0 if part is None else part.first_trajectory

    @property
    def next(self) -> int:
        """The index of the next trajectory, after all that were run, dropped ones included."""
        return self.first + len(self.evaluation) + self.evaluation.left_out

    def check(
        self, amount: Amount, description: Mapping[str, Any], seeds_of: Callable[[Sequence[int]], Sequence[int]]
    ) -> None:
        """Check that these are the first trajectories of a run.

        Raises:
            UsageError: They are of another run, and the error names each difference; or the amount is smaller.
            StorageError: Their indices are inconsistent.
        """
        saved = self.evaluation
        indices = saved.indices
        if (np.diff(indices) <= 0).any() or indices[0] < self.first or indices[-1] >= self.next:
            raise StorageError(f"{self.path} is damaged: the indices of its trajectories do not match their number")
        self._check_kind_of_seeds(amount)
        new = origin(description, named=amount.names is not None, asked=amount.arguments)
        old = origin_of(saved)
        for each in (old, new):  # the file knows no later options
            each["options of scenarios"] = each["options of scenarios"][: self.next]
        if found := differences(self.path, old, "here", new):
            raise UsageError(f"{self.path} is of another run: {'; '.join(found)}")
        self._check_number(amount)
        self._check_each(amount, seeds_of)

    def _check_kind_of_seeds(self, amount: Amount) -> None:
        seed = self.evaluation.seed
        if seed is None and amount.seeds is None:
            raise UsageError(
                f"the trajectories of {self.path} have given seeds: give seeds, or scenarios with seeds, that begin "
                "with the same seeds"
            )
        if seed is not None and amount.seeds is not None:
            raise UsageError(
                f"the trajectories of {self.path} have seeds derived from the sampler's seed {seed}: give the number "
                "of trajectories instead of a list of seeds"
            )

    def _check_number(self, amount: Amount) -> None:
        part = amount.part
        most = amount.n if part is None else part.trajectories
        if (there := self.next - self.first if amount.is_fixed else len(self.evaluation)) > most:
            raise UsageError(
                f"{self.path} has {count(there, 'trajectory')}, and only {most:,} {'is' if most == 1 else 'are'} "
                "requested: request at least as many as it has"
            )

    def _check_each(self, amount: Amount, seeds_of: Callable[[Sequence[int]], Sequence[int]]) -> None:
        saved = self.evaluation
        indices = saved.indices.tolist()
        expected = seeds_of(indices) if amount.seeds is None else [amount.seeds[index] for index in indices]
        for index, seed, other in zip(indices, saved.seeds, expected, strict=True):
            if seed != other:
                raise UsageError(
                    f"{self.path} is of another run: the seed of trajectory {index} is {seed} in {self.path}, and "
                    f"{other} here"
                )
        if saved.names is None or amount.names is None:
            return
        for index, name in zip(indices, saved.names, strict=True):
            if name != amount.names[index]:
                raise UsageError(
                    f"{self.path} is of another run: the scenario of trajectory {index} is {name!r} in {self.path}, "
                    f"and {amount.names[index]!r} here"
                )

    def check_used(self, n_used: int) -> None:
        """Check that all of these were needed.

        Raises:
            UsageError: These are more.
        """
        if n_used < len(self.evaluation):
            raise UsageError(
                f"{self.path} has {count(len(self.evaluation), 'trajectory')}, and {n_used:,} are enough: request more"
            )

    def warn_of_kernels(self, fingerprints: Sequence[str]) -> None:
        """Log a warning if the new trajectories were computed with other kernels than these."""
        warn_of_kernels(
            {str(self.path): self.evaluation.settings.get("fingerprints", ()), "this run": fingerprints},
            "the trajectories were",
            "a single run may have sampled others",
        )
