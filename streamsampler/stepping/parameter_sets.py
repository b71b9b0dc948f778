"""Parameters of environments, by number: an episode that is restored has those that it began with. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamsampler.core.serialization import Payload, dumps
from streamsampler.environments.parameters import Parameters, SetParameters


@dataclass(frozen=True)
class NumberedParameters:
    """What resets of an environment set: numbered from 1 on as they were given, with the `SetParameters`, pickled."""

    number: int
    payload: Payload


class ParameterSets:
    """What was given to the environments of a manager."""

    def __init__(self) -> None:
        self.latest: dict[int, NumberedParameters] = {}  # what resets set from now on, by environment
        self._values: dict[int, Parameters] = {}
        self._known: dict[int, NumberedParameters] = {}
        self._n_given = 0

    def set(self, env_ids: Iterable[int], update: SetParameters, in_use: Iterable[int]) -> None:
        """Let environments have other parameters, besides those of other names that they have.

        `in_use` are the numbers of all episodes that go on. Raises SerializationError where they cannot be pickled.
        """
        given: dict[int, NumberedParameters] = {}  # by the number of those before
        for env_id in env_ids:
            before = self.latest[env_id].number if env_id in self.latest else 0
            if before not in given:
                given[before] = self._new(SetParameters({**self._values.get(before, {}), **update.parameters},
                                                        info_key=update.info_key))  # fmt: skip
            self.latest[env_id] = given[before]
        kept = {*in_use, *(numbered.number for numbered in self.latest.values())}
        self._known = {number: numbered for number, numbered in self._known.items() if number in kept}
        self._values = {number: values for number, values in self._values.items() if number in kept}

    def _new(self, update: SetParameters) -> NumberedParameters:
        payload = dumps(update, "parameters").owned()
        self._n_given += 1
        self._values[self._n_given] = update.parameters
        numbered = self._known[self._n_given] = NumberedParameters(self._n_given, payload)
        return numbered

    def numbered(self, number: int) -> NumberedParameters | None:
        """Return those of a number; None for 0."""
        return self._known[number] if number else None
