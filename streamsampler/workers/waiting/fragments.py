"""Run fragments in environments that wait: those of a worker at the same time, each with a copy of the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, cast

from streamsampler.core.awaiting import awaited
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.workers.fragments import FragmentEnv, RunningEnvs
from streamsampler.workers.generators import kept_generators, restore_generators
from streamsampler.workers.resets import FragmentOrder, Resets, Standing, reset_one
from streamsampler.workers.restoring import AbandonedError
from streamsampler.workers.single import Part
from streamsampler.workers.trajectory_context import TrajectoryContext, reset_of
from streamsampler.workers.waiting.driver import FlightDriver, ShownFlight, Surroundings


class AwaitedFragmentEnv(FragmentEnv):
    """One environment of fragments whose resets and steps are awaited.

    Attributes:
        surroundings: What its episodes run in, in this call.
        standing: Where it stood, if another worker was lost.
    """

    env: Any  # awaited
    _worker: Any
    _seams: Any
    surroundings: Surroundings
    standing: Standing | None = None
    keeps_generators = False  # whether it has the global generators for itself

    def begin_call(self, resets: Resets, version: int) -> None:
        """Prepare for a call, with the agent in force."""
        worker, self._resets = self._worker, resets
        self._recorder = recorder = RolloutRecorder(*worker.spaces)
        shown = self._seams = None if self.caller is None else ShownFlight(worker, self.caller)
        self.surroundings = Surroundings(
            self.env, self._agent, self._reset_agent, self._masks, self._rounding, recorder, shown
        )
        if shown is not None:
            shown.context_of = partial(self._context_of, worker.agent_version(version))

    def _context_of(self, version: int, index: int, seed: int) -> TrajectoryContext:
        return TrajectoryContext(
            self.env.given, self._agent, index, seed, version, self._worker.context.worker_number, self._recorder,
            reset=reset_of(self.env, self._worker, index), reset_agent=self._reset_agent,
        )  # fmt: skip

    async def run_fragment(self, version: int, n_timesteps: int, driver: FlightDriver) -> None:
        """Run a fragment: first restore the episode that went on in it, if that was lost.

        Args:
            version: The version of the ticket.
            n_timesteps: How many timesteps it has.
            driver: Drives the scripts.
        """
        standing, self.standing = self.standing, None
        if standing is not None:
            try:
                driver.restored_timesteps = await awaited(self.take_over(standing, version), driver.wait)
            except AbandonedError:
                raise asyncio.CancelledError from None
        self.begin_fragment()
        if callable(begin_part := getattr(self._agent, "begin_part", None)):
            begin_part()
        driver.reset, driver.info = self._reset, self.info
        await driver.run(self._parts(driver, n_timesteps), self._take_end)
        self._keep_generators()

    def _parts(self, driver: Any, n_timesteps: int) -> Iterator[Part]:
        for index, seed_generators, script, binding, n in super()._parts(driver, n_timesteps):
            yield index, seed_generators if self.keeps_generators else None, script, binding, n

    # ------------------------------------------------------------------ global generators, of which nothing draws

    def _reset(self, *, seed: int) -> Any:
        if self.keeps_generators:
            return super()._reset(seed=seed)
        return reset_one(self.env, self._resets, 0, seed)

    def _keep_generators(self) -> None:
        if self.keeps_generators:
            super()._keep_generators()

    def _set_generators(self, seed: int) -> None:
        if self.keeps_generators:
            super()._set_generators(seed)

    def _seed_generators(self, seed: int) -> None:
        if self.keeps_generators:
            super()._seed_generators(seed)


class AwaitedEnvs(RunningEnvs):
    """The environments of fragments of a worker, as places in which fragments are in flight; see `Slots`.

    Args:
        worker: The worker.
        base_version: The agent version in which these environments began.
        most: How many of them may be in flight at the same time.
    """

    _of_number: dict[int, AwaitedFragmentEnv]  # type: ignore[assignment]

    def __init__(self, worker: Any, base_version: int, most: int) -> None:
        super().__init__(worker, base_version, AwaitedFragmentEnv)
        self._most, self._n_in_flight = most, 0
        self._called: tuple[int, Resets, FragmentOrder] | None = None

    def begin_call(self, version: int, resets: Resets, order: FragmentOrder) -> None:
        """Begin a call for fragments."""
        self._called, self._n_in_flight = (version, resets, order), 0

    def take(self, number: int) -> AwaitedFragmentEnv | None:
        """Return an environment with the agent in force; None if as many are in flight as may be."""
        if self._n_in_flight >= self._most:
            return None
        assert self._called is not None
        version, resets, order = self._called
        kept = kept_generators()  # of which what makes environments may draw, and nothing else
        try:
            env, standing = self.env_of(number, order)
        finally:
            restore_generators(kept)
        env = cast("AwaitedFragmentEnv", env)
        env.standing, env.keeps_generators = standing, self._most == 1
        env.begin_call(resets, version)
        self._n_in_flight += 1
        return env

    def put_back(self, _env: AwaitedFragmentEnv) -> None:
        """Take back an environment whose fragment has ended."""
        self._n_in_flight -= 1

    replace = abandon = put_back  # the episodes end with the call: the next one begins with other environments

    def new_recorder(self) -> RolloutRecorder:
        """Return what records a fragment."""
        return RolloutRecorder(*self._worker.spaces)

    def owners(self, numbers: Sequence[int]) -> list[int]:
        """Return the trajectory indices of all that was recorded in the environments with these numbers."""
        return [index for number in numbers for index in self._of_number[number].recorded()]

    def envs(self, numbers: Sequence[int]) -> list[FragmentEnv]:
        """Return the environments with these numbers."""
        return [self._of_number[number] for number in numbers]
