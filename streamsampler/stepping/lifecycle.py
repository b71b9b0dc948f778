"""Make a manager's environments, keep them for its calls, and close them."""

from __future__ import annotations

import abc
import copy
from collections.abc import Sequence
from typing import Any, Self

from streamsampler.errors import ClosedError, UsageError
from streamsampler.seeding import Stream, TrajectorySeeds, check_seed, derived_seed
from streamsampler.stepping.accounts import ManagerStats
from streamsampler.stepping.episodes import Episodes
from streamsampler.stepping.histories import ParameterSets
from streamsampler.stepping.inbox import Inbox
from streamsampler.stepping.ledger import EnvState, Ledger
from streamsampler.stepping.options import ManagerOptions, Updates
from streamsampler.stepping.stepper import Autoreset
from streamsampler.stepping.transport import Transport


class ManagerLife(abc.ABC):
    """What all managers of environments have in common, except the calls that step environments.

    Args:
        updates: What makes each environment.
        options: The arguments that all managers take.
        seed: From which the seeds of episodes are derived.
        n_workers: How many processes there are.

    Attributes:
        n_envs: How many environments there are.
        seed: The seed.
    """

    def __init__(self, updates: Updates, options: ManagerOptions, seed: int | None, n_workers: int = 1) -> None:
        self.n_envs = options.n_envs
        self.seed = check_seed(seed)
        self._accounts = ManagerStats.for_workers(n_workers)
        self._updates = updates
        self._options = options
        self._ledger = Ledger(self.n_envs)
        self._parameters = ParameterSets()
        self._transport: Transport | None = None
        self._closed = False

    @abc.abstractmethod
    def _new_transport(self) -> Transport:
        """Return what carries requests to the environments, not started."""

    def launch(self) -> None:
        """Make the environments; the first call that needs them does so as well.

        After `close` it makes new ones, whose episodes are those of the first launch again.

        Raises:
            UsageError: They are there already, or their spaces differ.
        """
        if self._transport is not None:
            raise UsageError("the environments are there already: call close() before launch()")
        transport = self._new_transport()
        try:
            transport.start()
            self._send_parameters(transport, list(self._parameters.latest))
        except BaseException:
            transport.close()
            raise
        if self._closed:
            self._ledger.launch()
        self._closed = False
        self._transport = transport
        self._accounts.tick(running=True)
        self._own_spaces = _seeded(transport.spaces.action, self.seed)
        self._episodes = Episodes(transport.rows, self._options, self.seed, self._parameters)
        self._inbox = Inbox(transport, self._ledger, self._episodes, self._options, self._accounts)

    def _send_parameters(self, transport: Transport, env_ids: list[int]) -> None:
        latest = [self._parameters.latest[env_id] for env_id in env_ids]
        transport.request(env_ids, "parameters", "set_parameters", latest)

    def close(self) -> None:
        """Close the environments; may be repeated. `launch` makes new ones."""
        transport, self._transport = self._transport, None
        if not self._closed:
            self._ledger.close()
        self._closed = True
        if transport is not None:
            if transport.is_ours and not transport.in_hand:  # after an interruption anything may be on its way
                self._count(transport)
            self._accounts.tick(running=False)
            transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _launched(self) -> Transport:
        transport = self._there()
        if transport.in_hand:  # an earlier call was interrupted
            self._inbox.mend()
        return transport

    def _there(self) -> Transport:
        """Launch where that was not done; a call of another thread may be at work."""
        if self._transport is None:
            if self._closed:
                raise ClosedError("the environments are closed: call launch() for new ones")
            self.launch()
        assert self._transport is not None
        if not self._transport.is_ours:
            raise UsageError(
                "this process was forked from the one whose environments these are, and cannot use them: call close() "
                "and launch() for some of its own"
            )
        return self._transport

    @property
    def observation_space(self) -> Any:
        """The observation space that all environments have.

        Raises:
            UsageError: They differ: see `observation_spaces`.
        """
        return self._launched().spaces.common("observation")

    @property
    def action_space(self) -> Any:
        """The action space that all environments have.

        Raises:
            UsageError: They differ: see `action_spaces`.
        """
        return self._launched().spaces.common("action")

    @property
    def observation_spaces(self) -> tuple[Any, ...]:
        """The observation space of each environment; they may differ."""
        return self._launched().spaces.observation

    @property
    def action_spaces(self) -> tuple[Any, ...]:
        """The action space of each environment, as `observation_spaces`."""
        return self._launched().spaces.action

    @property
    def states(self) -> tuple[EnvState, ...]:
        """The state of each environment."""
        return tuple(self._ledger.states)

    @property
    def autoreset(self) -> Autoreset:
        """What becomes of an environment whose episode has ended."""
        return self._options.autoreset

    @property
    def failures(self) -> int:
        """How often an environment raised, or a worker died or hung."""
        return self._accounts.failures

    @property
    def stats(self) -> ManagerStats:
        """What the manager did in its whole life; workers that have nothing to do are asked for the latest."""
        if self._transport is not None:
            self._count(self._launched())
            self._accounts.tick(running=True)
        return self._accounts

    def _count(self, transport: Transport) -> None:
        transport.in_hand = True
        for report in transport.reports():
            self._accounts.take_worker(report)
        transport.in_hand = False


def _seeded(spaces: Sequence[Any], seed: int) -> list[Any]:
    """Return a copy of each space with a generator of its own, whose seed follows from a manager's."""
    seeds = TrajectorySeeds(seed, 0)
    own = [copy.deepcopy(space) for space in spaces]
    for env_id, space in enumerate(own):
        space.seed(derived_seed(seeds[env_id], Stream.AGENT))
    return own
