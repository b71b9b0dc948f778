"""Number the parameters of environments, so that a restored episode has those it started with. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamsampler.core.serialization import Payload, dumps
from streamsampler.environments.parameters import Parameters, SetParameters


@dataclass(frozen=True)
class NumberedParameters:
    """Parameters set by an environment's resets: a pickled `SetParameters`, numbered from 1."""

    number: int
    payload: Payload


class ParameterSets:
    """The parameters of a manager's environments, as long as they are in use."""

    def __init__(self) -> None:
        self.latest: dict[int, NumberedParameters] = {}  # by environment, for its next resets
        self._values: dict[int, Parameters] = {}
        self._known: dict[int, NumberedParameters] = {}
        self._n_given = 0

    def set(self, env_ids: Iterable[int], update: SetParameters, in_use: Iterable[int]) -> None:
        """Add parameters of environments, or replace those of the same names; keep sets with numbers `in_use`.

        Raises SerializationError if they cannot be pickled.
        """
        given: dict[int, NumberedParameters] = {}  # by the number they replace
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
        return self._known[number] if number else None
