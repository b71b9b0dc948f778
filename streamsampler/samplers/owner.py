"""The part of a sampler besides its obtaining calls: facts, replays, saved state, closing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Self

from streamsampler.agents.filters import Filters
from streamsampler.core.errors import SamplerError, UsageError, positive
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.core.serialization import Payload
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.statistics import Stats
from streamsampler.engines.base import Engine
from streamsampler.samplers.checkpoints import copied, life_of, load_state, state_of
from streamsampler.samplers.life import SamplerLife, SamplerSetup
from streamsampler.samplers.replay_results import Replay
from streamsampler.samplers.replays import check_films, replay, run_again
from streamsampler.samplers.rerun import Origin
from streamsampler.samplers.updates import Updates
from streamsampler.workers.factory import WorkerSetup
from streamsampler.workers.resets import Options


class LifeOwner(ABC):
    """A sampler's facts, replays, state and end; its setup and life are made by `Sampler`."""

    _setup: SamplerSetup
    _life: SamplerLife

    @abstractmethod
    def make_engine(self, setup: WorkerSetup) -> Engine:
        """Start the workers described by `setup`; a sampler with its own engine implements this method alone."""

    @property
    def seed(self) -> int:
        """The seed, drawn or given."""
        return self._life.seed

    @property
    def n_workers(self) -> int:
        """Number of workers."""
        return self._life.n_workers

    @property
    def stats(self) -> Stats:
        """Statistics of all calls together."""
        return self._life.stats

    @property
    def agent_version(self) -> int:
        """Agent version of the last obtaining call; 0 before the first."""
        return self._life.session.scheduler.version

    @property
    def filters(self) -> Filters:
        """The filters, with statistics of all trajectories returned so far; a stream's count once it has ended.

        See `streamsampler/docs/hooks-and-filters.md`.
        """
        return self._life.filters

    def restore_filters(self, filters: Filters) -> None:
        """Restore an earlier value of `filters`, without the statistics of trajectories returned since then."""
        self._life.filters = filters

    def advance_version(self) -> None:
        """Advance the agent version as a stream would; its trajectories were stored earlier."""
        self._life.skip_version()

    def seeds(self, version: int, indices: Sequence[int]) -> list[int]:
        """Return the seeds of this sampler's trajectories, for calls without `seeds`.

        Args:
            version: The agent version: 1 in the first obtaining call, 2 in the second.
            indices: Trajectory indices within this version, each at least 0 and less than 2**31.

        Returns:
            A seed for each index, equal to `batch.seeds`: at least 0 and less than 2**31.

        Raises:
            UsageError: A version or an index is out of range.
        """
        derived = TrajectorySeeds(self.seed, positive("version", version))
        return derived.of([positive("an index", index, least=0) for index in indices])

    def refuse_prefetching(self, what: str) -> None:
        """Raise `UsageError` if the sampler has `staleness=1`; `what` is the call, such as "a stream"."""
        if self._life.off_by_one is not None:
            raise UsageError(
                f"a sampler with staleness=1 does not support {what}, because its workers sample the next batch "
                "between calls: use another sampler"
            )

    def replay(
        self,
        version: int,
        index: int,
        *,
        agent: Any = None,
        env: Any = None,
        reset_options: Options | None = None,
        tasks: Sequence[Any] | None = None,
        recorded: TrajectoryBatch[Any, Any] | None = None,
        actions: bool = False,
        video: str | PathLike[str] | None = None,
    ) -> Replay:
        """Run a trajectory again, in this process, and compare it with the recorded trajectory.

        The trajectory starts from the same seed. With `VecWorker` it runs in the same row of a batch of the same shape,
        together with its whole block if the trajectories of a block may influence each other. The workers are not
        disturbed.

        For fragments, a part started in its call is run again with the agent (not with `VecWorker`), and compared up to
        the cut if it continues in a later call. With `actions=True` and a `recorded` batch of all parts of an episode,
        `TrajectoryBatch.concatenate(batches)`, the episode is run again from its reset to the end of this call.

        Args:
            version: The agent version: `batch.agent_versions[i]`.
            index: The trajectory index: `batch.indices[i]`.
            agent: The agent, or parameters for the sampler's agent, as for `agent_update`. None for the last batch's
                (only for its version), or, with `inference="parent"`, a copy of the current agent. For an earlier
                version of a sampler with an `observation_filter`, pass `FilteredAgent(agent, filter)` of
                `streamsampler.filters`.
            env: As for `env_update`. None for the sampler's environment.
            reset_options: The value for `env.reset(options=…)`; None for the last call's. An episode of fragments may
                have started in an earlier call with other options.
            tasks: All tasks of the trajectory's call, in order; `recorded` says which task the trajectory had. None for
                those of the last call.
            recorded: A batch with the trajectory, for its seed and for comparison.
            actions: Whether to apply the recorded actions, without the agent.
            video: A `.mp4` file for a video, which needs `pip install av`.

        Returns:
            The `trajectory`, and its `difference` from `recorded` if given.

        Raises:
            UsageError: The trajectory does not exist, the agent of its version is unknown, or an argument is invalid.
            RolloutError: The agent or the environment raised.
            ImportError: The library for videos is missing.
            OSError: The video cannot be written.
        """
        return replay(
            self._life, version, index, agent=agent, env=env, reset_options=reset_options, tasks=tasks,
            recorded=recorded, actions=actions, video=video,
        )  # fmt: skip

    def run_again(
        self,
        version: int,
        index: int,
        origin: Origin,
        updates: Updates[Payload] | None = None,
        *,
        recorded: TrajectoryBatch[Any, Any] | None,
        one: TrajectoryBatch[Any, Any] | None,
        actions: bool,
        video: str | PathLike[str] | None,
    ) -> Replay:
        """Run a trajectory of any call again, as `replay` does, with the facts known about the call.

        `updates` are the agent and the environment, by default the current ones; `recorded` is the call's batch, and
        `one` its trajectory, as returned by `episode_of`.
        """
        return run_again(
            self._life, version, index, origin, updates, recorded=recorded, one=one, actions=actions, video=video
        )

    def check_renders(self) -> None:
        """Make an environment, reset it, and render a picture; raise `UsageError` if it cannot be filmed."""
        check_films(self._life)

    def state_dict(self, agents: bool = False) -> dict[str, Any]:
        """Return this sampler's state between two calls, for `load_state_dict` in another process.

        A sampler with the same arguments that loads the state returns the same bits as this sampler in the calls that
        follow, with any number of workers and on any engine. The state has seed, agent version, filters with their
        statistics, `stats`, the environment of an `env_update`, and open episodes of fragments, as far as they can be
        restored (see `obtain_fragments`).

        Args:
            agents: Whether to include the agent with the parameters of the last call. If not, make the sampler that
                loads the state with this agent, or pass parameters as `agent_update` in its next call. Required with
                `staleness=1` after each call, because the next batch uses these parameters. With `inference="parent"`
                the other sampler then owns a copy of the agent: pass yours as `agent_update`.

        Returns:
            A dict of numbers, strings, bytes, None, and nested dicts and lists of these, also for `torch.save` and
            `torch.load(weights_only=True)`. Other objects (filters, environments, agents, their memories) are pickled
            to bytes.

        Raises:
            UsageError: A stream is open; or the sampler has `staleness=1`, and `agents` is false.
            SerializationError: The agent in this process cannot be pickled.
            ClosedError: The sampler is closed.
            ConcurrentCallError: A call is under way.
        """
        return state_of(self._life, agents=agents)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from another sampler's `state_dict`: the next call is the call after that sampler's last.

        The sampler must have the same arguments, except for the engine, the number of workers and arguments without
        effect on trajectories. Open episodes are restored in the next call for fragments, by a reset and their recorded
        actions. If this fails (the episode is longer than `restore_limit`, the agent has memory but no `get_state`, the
        environment behaves differently), the episode counts as failed, and a new episode starts, with a warning.
        `stats` continues from the state's.

        Earlier calls of this sampler leave no trace: workers are restarted, and an open stream ends. The current agent
        stays, unless the state has one.

        Args:
            state: The result of `state_dict`. Load trusted states only: their pickles can run code.

        Raises:
            UsageError: It is not such a state; or it is from a sampler with another seed, kind of worker, number of
                environments side by side, `staleness`, policies or filters, or, if each worker has its own agent or
                environment, another number of workers (the message has both values); or a call updated this sampler's
                environment, and the state has none. Nothing changes.
            ClosedError: The sampler is closed.
            ConcurrentCallError: A call is under way.
        """
        load_state(self._life, state)

    def __getstate__(self) -> dict[str, Any]:
        given = {name: value for name, value in vars(self).items() if name not in ("_life", "_setup", "_given_factory")}
        return {"_life": copied(self._life), **given}

    def __setstate__(self, state: dict[str, Any]) -> None:
        of_life = state.pop("_life")
        vars(self).update(state)
        self._setup = of_life.setup
        self._life = life_of(of_life, self.make_engine)

    def close(self) -> None:
        """End the workers and release all resources; may be called twice.

        Raises:
            RolloutError: Closing an environment raised; all resources are released nevertheless.
        """
        self._life.close()

    shutdown_worker = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except SamplerError:
            # An exception already on its way matters more than an error of closing.
            if kind is None:
                raise
