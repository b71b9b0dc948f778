"""Evaluations in environments that wait."""

from typing import Any

from streamsampler.evaluation.opening import spaces_of
from tests.workers.waiting.envs import Waits


def test_a_module_acts_in_the_space_of_an_environment_that_waits() -> None:
    closed = []

    class Closes(Waits):
        async def close(self) -> None:  # type: ignore[override]
            await self._wait()
            closed.append(self)

    made: Any = lambda: Closes()  # noqa: E731 - what it makes is not known before
    assert spaces_of(made, None)[1] == Waits.action_space
    assert len(closed) == 1
