"""Which episodes of fragments continue from call to call, and which workers hold their environments."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from streamsampler.core.serialization import dumps, loads
from streamsampler.protocol.plans import Fragments, GatherPlan
from streamsampler.samplers.failures import logger
from streamsampler.samplers.fragments import FragmentLedger, order_of
from streamsampler.samplers.updates import Kind
from streamsampler.workers.resets import FragmentOrder, Resets

ENDED_FRAGMENTS = (
    "env_update ends the open episodes of fragments, and new episodes start in the new environment. If this happens "
    "regularly, batches contain only the first timesteps of episodes"
)


class OpenEpisodes:
    """The open episodes of fragments; calls for whole trajectories in between do not disturb them."""

    def __init__(self, n_workers: int, agent_in_force: Callable[[], Any]) -> None:
        self.ledger: FragmentLedger | None = None  # their positions; None without open episodes
        self._agent_in_force = agent_in_force  # returns the current agent's payload; a refused agent is not current
        self._agent: Any = None  # in the last call for fragments
        # By worker, the version in which the environments that it holds started; 0 without environments.
        self._base_versions = [0] * n_workers

    def continue_from(self, ledger: FragmentLedger | None) -> None:
        self.ledger, self._agent = ledger, self._agent_in_force()

    def resets_of(self, plan: Fragments, resets: Resets | None, updates: Collection[Kind], next_version: int) -> Resets:
        """Return a call's options for resets, with its base version: a new one unless episodes continue."""
        ledger = self.ledger
        base_version = next_version
        if "env" not in updates and ledger is not None and ledger.is_complete and ledger.n_envs == plan.n_envs:
            base_version = ledger.base_version
        # A copy, because restored episodes need the options in later calls.
        options = None if resets is None else loads(dumps(resets.options, "reset_options"))
        return Resets(options=options, fragments=order_of(plan, base_version))

    def end(self) -> bool:
        went_on, self.ledger = self.ledger is not None, None
        return went_on

    def end_incomplete(self) -> None:
        """Drop the episodes before a call for whole trajectories if their last call was incomplete."""
        if self.ledger is not None and not self.ledger.is_complete:
            self.ledger = None

    def begin(self, plan: Fragments, resets: Resets, updates: Collection[Kind]) -> None:
        order = resets.fragments
        assert order is not None and not isinstance(resets.options, tuple)  # noqa: PT018 - both for mypy
        if self.ledger is None or self.ledger.base_version != order.base_version:
            if self.ledger is not None and self.ledger.n_envs != plan.n_envs:
                logger.warning(
                    "obtain_fragments was called for %d environments, after %d in the last call: all open episodes "
                    "end, and fresh environments start", plan.n_envs, self.ledger.n_envs,
                )  # fmt: skip
            self.ledger = FragmentLedger(plan, order.base_version)
        self.ledger.begin_call(plan, resets.options, agent_is_replaced="agent" in updates or self._has_other_agent)
        self._agent = self._agent_in_force()

    @property
    def _has_other_agent(self) -> bool:
        return self._agent_in_force() is not self._agent

    def open_ledger(self) -> FragmentLedger | None:
        if self.ledger is not None and self._has_other_agent:
            self.ledger.replace_agent()
        return self.ledger

    def order_for(self, worker: int, plan: GatherPlan) -> tuple[int, FragmentOrder | None]:
        """Return the base version of a worker's environments, and the order to restore those it lacks.

        Called before each `Start`. The base version is 0 without environments; the order is None if nothing has to be
        restored.
        """
        ledger, version = self.ledger, self._base_versions[worker]
        continued_version = version if ledger is not None and ledger.base_version == version else 0
        if ledger is None or not isinstance(plan, Fragments):
            self._base_versions[worker] = continued_version
            return continued_version, None
        self._base_versions[worker] = ledger.base_version
        # A worker without its environments is new, or an exception left them in an unknown state.
        order = None if continued_version else ledger.order(worker)
        return continued_version, order if order is not None and order.standings else None

    def forget(self, worker: int) -> None:
        self._base_versions[worker] = 0
