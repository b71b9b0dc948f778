"""Find what was recorded of a sampler's trajectories, and run them again."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from streamsampler.data import trees
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.infos import take_infos
from streamsampler.environments.filming import check_renders
from streamsampler.errors import UsageError, positive
from streamsampler.samplers.lifecycle import SamplerLife
from streamsampler.samplers.payloads import on_environments, pickled_updates, put
from streamsampler.samplers.replays import Origin, Replay, Rerun, place_of, recorded_agents, replayed
from streamsampler.samplers.updates import Updates
from streamsampler.scheduling.plans import Fragments, GatherPlan, Streamed
from streamsampler.seeding import TrajectorySeeds
from streamsampler.serialization import Payload, dumps, loads
from streamsampler.workers.factory import WorkerFactory
from streamsampler.workers.resets import Options, Resets, common_resets, tasks_as_recorded

# ----------------------------------------------------------------------
# Find what was recorded of an episode of fragments, which is run again as a trajectory is.


_OF_THE_START = ("continued", "earlier_lengths", "earlier_returns")
_OF_FRAGMENTS = (
    "an episode of fragments is replayed from what was recorded of it: pass recorded=batch; and actions=True where it "
    "began in an earlier call"
)
_SIDE_BY_SIDE = (
    "an episode of fragments that stepped side by side with others is replayed without the agent only: pass "
    "actions=True"
)
_CONTINUED = (
    "trajectory {index} of agent version {version} began in an earlier call, with other parameters: pass actions=True, "
    "and a batch with all parts of the episode, TrajectoryBatch.concatenate(batches)"
)
_INCOMPLETE = (
    "of trajectory {index} of agent version {version}, which began in an earlier call, not all parts are in the batch: "
    "it has those of agent versions {there}. Join the batches of all calls since it began with "
    "TrajectoryBatch.concatenate(batches)"
)


def episode_of(
    batch: TrajectoryBatch[Any, Any], one: TrajectoryBatch[Any, Any], *, actions: bool
) -> TrajectoryBatch[Any, Any]:
    """Return what was recorded of a trajectory since its reset: of an episode of fragments, up to a call's end.

    Args:
        batch: All that was recorded.
        one: The trajectory in it; of an episode of fragments, the last part that is wanted.
        actions: Whether recorded actions are replayed, so that the parts may have been made with several parameters.

    Raises:
        UsageError: It began in an earlier call, and an agent is to choose the actions, or a part is missing.
    """
    if one.env_numbers[0] < 0 or not one.continued[0]:
        return one
    index, last = int(one.indices[0]), int(one.agent_versions[0])
    if not actions:
        raise UsageError(_CONTINUED.format(index=index, version=last))
    versions = batch.agent_versions
    mine = [
        row
        for row in np.flatnonzero((batch.indices == index) & (versions <= last)).tolist()
        if batch.seeds[row] == one.seeds[0] and batch.env_numbers[row] == one.env_numbers[0]
    ]
    mine.sort(key=lambda row: int(versions[row]))
    there = versions[mine].tolist()
    if batch.continued[mine[0]] or there != list(range(there[0], last + 1)):
        raise UsageError(_INCOMPLETE.format(index=index, version=last, there=", ".join(map(str, there))))
    parts = TrajectoryBatch.concatenate(batch[row] for row in mine).unfiltered()
    first, end = slice(0, 1), slice(-1, None)
    return replace(
        parts,
        last_observations=trees.take(parts.last_observations, end),
        terminated=parts.terminated[end],
        truncated=parts.truncated[end],
        episode_infos=take_infos(parts.episode_infos, first),
        lengths=parts.lengths.sum(keepdims=True),
        indices=parts.indices[end],
        seeds=parts.seeds[-1:],
        agent_versions=parts.agent_versions[end],
        worker_numbers=parts.worker_numbers[end],
        fragments={
            **{name: values[end] for name, values in parts.fragments.items()},
            **{name: values[first] for name, values in parts.fragments.items() if name in _OF_THE_START},
        },
    )


def recorded_one(batch: Any, index: int, version: int | None = None) -> TrajectoryBatch[Any, Any]:
    """Return the trajectory of an index from a batch; the arguments are as in `streamsampler.replay`.

    Raises:
        UsageError: There is none, or several agent versions have one.
    """
    versions = batch.agent_versions
    found = [
        position
        for position in (batch.indices == index).nonzero()[0].tolist()
        if version is None or versions[position] == version
    ]
    if len(found) == 1:
        return batch[found[0]]  # type: ignore[no-any-return]
    if found and version is None:
        there = ", ".join(sorted({str(versions[position]) for position in found}, key=int))
        raise UsageError(f"trajectory {index} is there more than once, of agent versions {there}: give version")
    if found:
        raise UsageError(f"trajectory {index} of agent version {version} is there {len(found)} times")
    raise UsageError(_missing(batch, index, version))


def resets_as_recorded(
    reset_options: Options | None, tasks: Sequence[Any] | None, recorded: TrajectoryBatch[Any, Any] | None, version: int
) -> Resets | None:
    """Return what a call said of its trajectories that were recorded; the arguments are those of `replay`.

    Raises:
        UsageError: Which task each of them had was not recorded, or they had others.
    """
    given = common_resets(reset_options)
    if tasks is None:
        return given
    numbers = None if recorded is None else recorded.episode_infos.get("task_index")
    if recorded is None or numbers is None:
        what = "pass recorded=, a batch with it" if recorded is None else "its call had no tasks"
        raise UsageError(f"which of the tasks the trajectory had is not known: {what}")
    return tasks_as_recorded(tasks, _of_version(recorded, version, numbers.tolist()), given)


def _of_version(recorded: TrajectoryBatch[Any, Any] | None, version: int, values: Sequence[int]) -> dict[int, int]:
    """Return what a batch has of the trajectories of a version, by their indices."""
    if recorded is None:
        return {}
    rows = zip(recorded.indices.tolist(), recorded.agent_versions.tolist(), values, strict=True)
    return {index: value for index, of_version, value in rows if of_version == version}


def _missing(batch: Any, index: int, version: int | None) -> str:
    of_version = batch.indices if version is None else batch.indices[batch.agent_versions == version]
    which = "" if version is None else f" of agent version {version}"
    if not len(of_version):
        there = ", ".join(map(str, sorted(set(batch.agent_versions.tolist()))))
        return f"there is no trajectory {index}{which}: there are trajectories of agent versions {there or 'none'}"
    first, last = int(of_version.min()), int(of_version.max())
    if index < last:
        return (
            f"there is no trajectory {index}{which}: it was left out, because it raised when it was sampled, or was "
            f"not selected; there are {len(of_version)} from {first} to {last}"
        )
    return f"there is no trajectory {index}{which}: there are trajectories {first} to {last}"


# ----------------------------------------------------------------------


class ReplayingSampler(SamplerLife):
    """What all samplers have that runs a trajectory again."""

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
            agent: The agent, or parameters for the sampler's agent, as `agent_update` takes them. None for those that
                the sampler has, which are right for the current version only. Of an earlier version, where the sampler
                has an `observation_filter`: `FilteredAgent(agent, filter)` of `streamsampler.filters`.
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
        version, index = positive("version", version), positive("index", index, least=0)
        if actions and recorded is None:
            raise UsageError("actions=True needs the recorded trajectory: pass recorded=batch")
        given = resets_as_recorded(reset_options, tasks, recorded, version)
        last = None if recorded is None else recorded_one(recorded, index, version)
        one = None if recorded is None or last is None else episode_of(recorded, last, actions=actions)
        with self._exclusive():
            session = self._session
            is_current = version == session.sampled_version
            if not (is_current or actions) and agent is None:
                raise UsageError(_other_version(version, session.sampled_version))
            pickled = pickled_updates(agent, on_environments(env, session), session.sampled)
            plan, said = self._said(last) if is_current else (Streamed(), None)
            updates = session.sampled.mapped(lambda handle: _kept(session.engine.published(handle)))
        if not is_current:
            updates.forget("filters")
        for kind, payloads in pickled.items():
            put(updates, kind, payloads)
        # Which trajectories an earlier call was to obtain is not known.
        stop = None if is_current or recorded is None else int(recorded.indices.max()) + 1
        bits = frozenset() if recorded is None else recorded.fingerprints
        origin = Origin(plan, said if given is None else given, stop, fingerprints=bits)
        return self.run_again(version, index, origin, updates, recorded=recorded, one=one, actions=actions, video=video)

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
            version: See `replay`.
            index: See `replay`.
            origin: What is known of the call.
            updates: The agent and the environment, pickled; None for those in force.
            recorded: What was recorded of the call, for seeds; None for nothing.
            one: What was recorded of the trajectory, as `episode_of` returns it; None for nothing.
            actions: See `replay`.
            video: See `replay`.

        Raises:
            UsageError: There is no such trajectory, or a seed is missing. For other errors see `replay`.
        """
        setup, session = self._setup, self._session
        if updates is None:
            updates = session.updates.mapped(lambda handle: _kept(session.engine.published(handle)))
        n_together = setup.factory.layout.block
        if one is not None and one.env_numbers[0] >= 0 and n_together > 1 and not actions:
            raise UsageError(_SIDE_BY_SIDE)
        queue, block = place_of(origin.plan, index, n_together, self.n_workers if session.sampled.differ else 1)
        seeds = {}
        if origin.derives_seeds:
            derived = TrajectorySeeds(self.seed, version)
            seeds = dict(zip(block, (origin.resets or Resets()).seeds_of(derived, block), strict=True))
        seeds |= _of_version(recorded, version, () if recorded is None else recorded.seeds)
        updates.forget("levels")
        contents = {str(kind): payload for kind, payload in updates.missing(queue, {}).items()}
        blocks = [block]
        if one is not None and actions:
            blocks, contents = [range(index, index + 1)], {"env": contents["env"]}
            contents["agent"] = dumps(recorded_agents(one), "the recorded actions")
        elif origin.stop is not None and block[-1] >= origin.stop:
            blocks.append(block[: len(range(block.start, origin.stop, block.step))])
        if one is not None and (actions or one.cut[0]):
            origin = replace(origin, cut=origin.cut or bool(one.cut[0]))
            setup = replace(setup, factory=_going_on(setup.factory, len(one.rewards), alone=actions))
        known = [each for each in blocks if seeds.keys() >= {*each}]
        if not known:
            raise UsageError(
                f"trajectory {index} ran together with trajectories {block[0]} to {block[-1]}, and the seeds of "
                f"{[other for other in block if other not in seeds]} were not recorded"
            )
        reruns = [Rerun(setup, contents, version, index, each, seeds, queue, origin.resets) for each in known]
        return replayed(reruns, one, origin, None if video is None else Path(video), actions=actions)

    def _said(self, last: TrajectoryBatch[Any, Any] | None) -> tuple[GatherPlan, Resets | None]:
        """Return what the last call was to obtain, and what it said of resets, for one of its trajectories.

        Args:
            last: What was recorded of it; None for nothing.

        Raises:
            UsageError: It is of fragments, and nothing was recorded.
        """
        session = self._session
        plan: GatherPlan = session.plan or Streamed()
        if isinstance(plan, Fragments):
            if last is None:
                raise UsageError(_OF_FRAGMENTS)
            if session.resets is None or last.continued[0]:  # an earlier call said it
                return Streamed(), None
            return Streamed(), replace(session.resets, fragments=None)
        if self._policy.on_failure == "drop" and not plan.fixed:
            plan = Streamed(plan.first)  # others took the places of those that raised
        return plan, session.resets

    def check_renders(self) -> None:
        """Check that the sampler's environment can be filmed: make one, reset it, and take a picture.

        Raises:
            UsageError: It cannot; says why, and what to do.
        """
        with self._exclusive():
            session = self._session
            handle = next(iter(session.updates.payloads(("env",)).values()))
            payload = _kept(session.engine.published(handle))
        check_renders(loads(payload))


def _other_version(version: int, current: int) -> str:
    if not current:
        return f"nothing was sampled yet, so the agent of version {version} is not known: pass agent="
    return (
        f"the sampler's agent is that of version {current}: pass agent=, the agent of version {version} or its "
        "parameters"
    )


def _kept(payload: Payload) -> Payload:
    """Return a payload in memory of its own: an engine may use its memory again."""
    return Payload(bytes(payload.data), tuple(bytes(buffer) for buffer in payload.buffers), payload.about)


def _going_on(factory: WorkerFactory, length: int, *, alone: bool) -> WorkerFactory:
    """Return a factory of workers that run one timestep more than was recorded, if the trajectory goes on.

    Args:
        factory: The sampler's.
        length: How many timesteps were recorded.
        alone: Whether the environment is to run alone.
    """
    limit = min(factory.max_episode_length or length + 1, length + 1)
    if alone:
        return WorkerFactory(n_workers=1, seed=factory.seed, max_episode_length=limit)
    factory = copy.copy(factory)
    factory.max_episode_length = limit
    return factory
