"""Run the fragments of a worker's waiting environments at the same time, each with a copy of the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from streamsampler.core.awaiting import awaited
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.workers.base import Worker
from streamsampler.workers.fragments import FragmentEnv, SequentialFragmentEnvs
from streamsampler.workers.generators import kept_generators, restore_generators
from streamsampler.workers.resets import EpisodeCheckpoint, FragmentOrder, Resets
from streamsampler.workers.restoring import AbandonedError
from streamsampler.workers.trajectory_context import TrajectoryContext, reset_of
from streamsampler.workers.waiting.driver import FlightDriver, ShownFlight, TrajectorySetup


class FragmentPlace:
    """An environment of fragments as a place for a fragment in flight.

    `standing` is its state on a lost worker, until it is restored.
    """

    setup: TrajectorySetup
    standing: EpisodeCheckpoint | None = None

    def __init__(self, worker: Worker, row: FragmentEnv) -> None:
        self._worker, self.row = worker, row

    def begin_call(self, resets: Resets, version: int) -> None:
        """Prepare for a call, with the latest agent."""
        worker, row, self._resets = self._worker, self.row, resets
        shown = None if row.caller is None else ShownFlight(worker, row.caller)
        env: Any = row.env
        self.setup = TrajectorySetup(env, *row.acting, row.new_recorder(worker), shown)
        if shown is not None:
            shown.context_of = partial(self._context_of, worker.agent_version(version))

    def _context_of(self, version: int, index: int, seed: int) -> TrajectoryContext:
        setup = self.setup
        return TrajectoryContext(
            setup.env.given, setup.agent, index, seed, version, self._worker.context.worker_number, setup.recorder,
            reset=reset_of(self.row.env, self._worker, index), reset_agent=setup.reset_agent,
        )  # fmt: skip

    async def run(self, version: int, n_timesteps: int, driver: FlightDriver) -> None:
        """Run a fragment, after restoring a lost episode."""
        row, standing, self.standing = self.row, self.standing, None
        if standing is not None:
            try:
                driver.restored_timesteps = await awaited(row.restore_lost(standing, version), driver.wait)
            except AbandonedError:
                raise asyncio.CancelledError from None
        row.begin(self._resets, self.setup.recorder, self.setup.shown)
        driver.reset, driver.info = row.reset, row.info
        await driver.run(row.parts(driver, n_timesteps), row.take_end)
        row.keep_generators()


class AwaitedEnvs(SequentialFragmentEnvs):
    """The environments of a worker's fragments, as places for fragments in flight; see `Slots`.

    `most` of them may be in flight at the same time. `may_draw` returns whether episodes may draw from the global
    generators.
    """

    def __init__(
        self, worker: Worker, base_version: int, kind: type[FragmentEnv], most: int, may_draw: Callable[[], bool]
    ) -> None:
        super().__init__(worker, base_version, kind)
        self._most, self._n_in_flight, self._may_draw = most, 0, may_draw
        self._places: dict[int, FragmentPlace] = {}
        self._called: tuple[int, Resets, FragmentOrder] | None = None

    def begin_call(self, version: int, resets: Resets, order: FragmentOrder) -> None:
        self._called, self._n_in_flight = (version, resets, order), 0

    def take(self, number: int) -> FragmentPlace | None:
        """Return the place of an environment, with the latest agent; None if too many are in flight."""
        if self._n_in_flight >= self._most:
            return None
        assert self._called is not None
        version, resets, order = self._called
        kept = kept_generators()  # only constructors of environments may draw
        try:
            row, standing = self.env_of(number, order)
        finally:
            restore_generators(kept)
        row.has_generators = self._may_draw()
        place = self._places.setdefault(number, FragmentPlace(self._worker, row))
        place.standing = standing
        place.begin_call(resets, version)
        self._n_in_flight += 1
        return place

    def put_back(self, _place: FragmentPlace) -> None:
        self._n_in_flight -= 1

    replace = abandon = put_back  # the exception ends the call, and with it all episodes

    def new_recorder(self, _place: FragmentPlace) -> RolloutRecorder:
        return self._kind.new_recorder(self._worker)

    def owners(self, numbers: Sequence[int]) -> list[int]:
        return [index for number in numbers for index in self._of_number[number].recorded()]

    def envs(self, numbers: Sequence[int]) -> list[FragmentEnv]:
        return [self._of_number[number] for number in numbers]
