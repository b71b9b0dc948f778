"""What a manager needs of the place where its environments live: this process, or worker processes."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from streamsampler.errors import UsageError
from streamsampler.stepping.rows import Rows

__all__ = ["Broken", "Done", "Transport", "common_spaces"]


@dataclass(frozen=True)
class Done:
    """The requests of some environments were carried out; the results lie in their rows.

    Attributes:
        env_ids: The environments.
        infos: The infos that are not empty, by environment.
    """

    env_ids: Sequence[int]
    infos: Mapping[int, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Broken:
    """Environments failed. They are there again, and are to be reset.

    Attributes:
        env_ids: The environments.
        error: What happened.
        worker_number: The worker that the environments are in.
        is_new: Whether the environments are to be made again, because their process died or hung.
        is_final: Whether the error is raised in any case.
    """

    env_ids: Sequence[int]
    error: BaseException
    worker_number: int
    is_new: bool = False
    is_final: bool = False


class Transport(abc.ABC):
    """Carries requests to environments, and their results back.

    Attributes:
        rows: The rows of all environments, after `start`.
    """

    rows: Rows

    @abc.abstractmethod
    def start(self) -> None:
        """Make the environments."""

    @abc.abstractmethod
    def step(self, env_ids: Sequence[int]) -> None:
        """Request a step of each of some environments; their actions lie in their rows."""

    @abc.abstractmethod
    def reset(self, env_ids: Sequence[int], options: Mapping[int, dict[str, Any] | None]) -> None:
        """Request resets; the seeds lie in the rows.

        Args:
            env_ids: The environments.
            options: Options to remember, by environment; an environment that is not there keeps those that it has.
        """

    @abc.abstractmethod
    def collect(self, timeout: float | None) -> Sequence[Done | Broken]:
        """Return what has happened since the last call; wait for it if it is nothing yet.

        Args:
            timeout: Seconds to wait at most; None for any time.
        """

    @abc.abstractmethod
    def request(self, env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Carry out what is no step, see `Stepper.request`, while no request of these environments is open."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the environments; may be repeated."""


def common_spaces(spaces: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the observation space and the action space that all environments have.

    Raises:
        UsageError: Two environments differ; names the first that does, and shows both.
    """
    for env_id, pair in enumerate(spaces):
        for what, first, other in zip(("observation", "action"), spaces[0], pair, strict=True):
            if first != other:
                raise UsageError(
                    f"the {what} space of environment {env_id} is {other}, and that of environment 0 is {first}: the "
                    "environments of one manager have the same spaces"
                )
    return spaces[0]
