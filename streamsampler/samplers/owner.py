"""Own a sampler's life: what it did, where it stands, its trajectories run again, its end."""

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
from streamsampler.samplers.replays import check_films, replay, run_again
from streamsampler.samplers.rerun import Origin, Replay
from streamsampler.samplers.updates import Updates
from streamsampler.workers.factory import WorkerSetup
from streamsampler.workers.resets import Options


class LifeOwner(ABC):
    """What all samplers have besides their calls."""

    _setup: SamplerSetup
    _life: SamplerLife

    @abstractmethod
    def make_engine(self, setup: WorkerSetup) -> Engine:
        """Start the workers: the one method that a sampler on another engine must have.

        Args:
            setup: What to make the workers with.
        """

    @property
    def seed(self) -> int:
        """The seed, drawn or given."""
        return self._life.seed

    @property
    def n_workers(self) -> int:
        """How many workers there are."""
        return self._life.n_workers

    @property
    def stats(self) -> Stats:
        """What all calls together did."""
        return self._life.stats

    @property
    def agent_version(self) -> int:
        """The agent version of the last obtaining call; 0 before the first."""
        return self._life.session.scheduler.version

    @property
    def filters(self) -> Filters:
        """The filters, with the statistics of all trajectories that were returned so far.

        See `streamsampler/docs/hooks-and-filters.md`.

        Those of a stream count when it has ended.
        """
        return self._life.filters

    def put_back_filters(self, filters: Filters) -> None:
        """Go on with filters that this sampler had before: what was returned since then does not count.

        Args:
            filters: What `filters` was.
        """
        self._life.filters = filters

    def count_as_called(self) -> None:
        """Use up an agent version, as a stream does: its trajectories are there already."""
        self._life.skip_version()

    def seeds(self, version: int, indices: Sequence[int]) -> list[int]:
        """Return the seeds that this sampler's trajectories begin from, unless a call is given others.

        Args:
            version: The agent version: 1 in the first obtaining call, 2 in the second.
            indices: Trajectory indices within that version, each at least 0 and less than 2**31.

        Returns:
            A seed for each index, as `batch.seeds` has them: at least 0 and less than 2**31.

        Raises:
            UsageError: There is no such version or index.
        """
        derived = TrajectorySeeds(self.seed, positive("version", version))
        return derived.of([positive("an index", index, least=0) for index in indices])

    def refuse_lag(self, what: str) -> None:
        """Refuse what a sampler with `staleness=1` cannot do.

        Args:
            what: What it is, such as "a stream".

        Raises:
            UsageError: The sampler has `staleness=1`.
        """
        if self._life.lag is not None:
            raise UsageError(
                f"{what} cannot be had from a sampler with staleness=1, whose workers sample the next batch while you "
                "learn from the last one: use another sampler"
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
        """Run a trajectory again, in this process, and compare it with what was recorded of it.

        It runs from the same seed and, with `VecWorker`, in the same row of a batch of the same shape; where
        trajectories of a block may influence each other, with all of its block. The workers are not disturbed.

        Of fragments, a part that began in its call is run again with the agent (not with `VecWorker`), and one that
        goes on is compared up to where it was cut. With `actions=True`, and a batch `recorded` in which all parts of an
        episode are, `TrajectoryBatch.concatenate(batches)`, it is run again from its reset to the end of that call.

        Args:
            version: The agent version: `batch.agent_versions[i]`.
            index: The trajectory index: `batch.indices[i]`.
            agent: The agent, or parameters for the sampler's agent, as `agent_update` takes them. None for those of the
                last batch, which are right for its agent version only; with `inference="parent"` for a copy of the
                agent as it is now, whatever it has learnt since. Of an earlier version, where the sampler has an
                `observation_filter`: `FilteredAgent(agent, filter)` of `streamsampler.filters`.
            env: As `env_update` takes it. None for the environment that the sampler has.
            reset_options: What `env.reset(options=…)` gets. None for what the call said, if it was the last one; an
                episode of fragments may have begun in another.
            tasks: All tasks of the trajectory's call, in order; which of them it had is taken from `recorded`. None for
                what the call said, if it was the last one.
            recorded: A batch with the trajectory, to compare it with; its seed is taken from there.
            actions: Whether to replay the recorded actions, without the agent.
            video: A `.mp4` file for a video, which needs `pip install av`.

        Returns:
            What came of it: its `trajectory`, and its `difference` if something was `recorded`.

        Raises:
            UsageError: There is no such trajectory, the agent of its version is not known, or an argument cannot work.
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
        """Run a trajectory of any call again, as `replay` does.

        Args:
            version: See `replay`, as for `index`, `actions` and `video`.
            index: The trajectory index.
            origin: What is known of the call.
            updates: The agent and the environment, pickled; None for those in force.
            recorded: What was recorded of the call, for seeds; None for nothing.
            one: What was recorded of the trajectory, as `episode_of` returns it; None for nothing.
            actions: See `replay`.
            video: See `replay`.

        Raises:
            UsageError: There is no such trajectory, or a seed is missing. For other errors see `replay`.
        """
        return run_again(
            self._life, version, index, origin, updates, recorded=recorded, one=one, actions=actions, video=video
        )

    def check_renders(self) -> None:
        """Check that the sampler's environment can be filmed: make one, reset it, and take a picture.

        Raises:
            UsageError: It cannot; says why, and what to do.
        """
        check_films(self._life)

    def state_dict(self, agents: bool = False) -> dict[str, Any]:
        """Return where this sampler stands between two calls, for `load_state_dict` in another process.

        A sampler that is made with the same arguments, loads the state and gets the same calls from there on returns
        the same bits as this one, with any number of workers and on any engine. The state has the seed and the agent
        version, the filters with their statistics, `stats`, an environment that an `env_update` has put in force, and
        the episodes of fragments that go on, as far as they can be restored (see `obtain_fragments`).

        Args:
            agents: Whether the state also has the agent, with its parameters, as the last call used it. Without it the
                sampler that loads the state uses the agent it has: make it with the agent of the last call, or pass
                parameters as `agent_update` in the next call. With `staleness=1` it is needed after each call, since
                the next batch is of the last call's parameters. With `inference="parent"` the sampler that loads it has
                an agent of its own then: pass yours as `agent_update` in the next call.

        Returns:
            A dict of numbers, strings, bytes, None, and dicts and lists of these alone: `torch.save`, `pickle` and
            others can write it next to your learner's state, and `torch.load(weights_only=True)` reads it. What is of
            any class (filters, environments, agents, their memories) is in it pickled, as bytes.

        Raises:
            UsageError: A stream is open; or the sampler has `staleness=1`, and `agents` is false.
            SerializationError: The agent that this process holds cannot be pickled.
            ClosedError: The sampler is closed.
            ConcurrentCallError: A call is under way.
        """
        return state_of(self._life, agents=agents)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from where another sampler stood, whose `state_dict` this is: the next call is the one after its last.

        The sampler must have the same arguments, but for the engine, the number of workers and what changes no
        trajectory. Episodes of fragments are restored in the next call for fragments, which steps their environments
        again from their resets. Where that cannot be (the episode is longer than `restore_limit`, the agent remembers
        and has no `get_state`, the environment does something else) a new episode begins there, with a warning, as
        after a loss; it counts as failed, the others do not. `stats` goes on from the state's.

        May be called at any time between calls. In a sampler that has run calls it replaces all that they have left:
        workers are started again, and an open stream ends. The agent in force stays, unless the state has one.

        Args:
            state: What `state_dict` returned. Load only what you trust: it has pickles as bytes, which can run code.

        Raises:
            UsageError: It is no such state, or is of a sampler with another seed, kind of worker, number of
                environments side by side, `staleness`, policies, filters, or number of workers where they have agents
                or environments of their own; says both values. Or this sampler's environment was updated by a call, and
                the state has none. Nothing changes.
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
        """End the workers and give everything back; may be called twice.

        Raises:
            RolloutError: Closing an environment raised; everything is given back all the same.
        """
        self._life.close()

    shutdown_worker = close

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close()
        except SamplerError:
            # What is already on its way matters more than what closing found.
            if kind is None:
                raise
