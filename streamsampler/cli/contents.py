"""Describe the contents of a file or a folder, and its damaged shards.

Evaluations and comparisons are printed as the library prints them, with the settings and versions in their files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from streamsampler.cli.summary import policy_rows, spread_text
from streamsampler.cli.tallies import Tally, finite
from streamsampler.core.errors import DamagedShardError, StorageError
from streamsampler.core.words import table
from streamsampler.data import npz as storage
from streamsampler.data.batch_fields import sums
from streamsampler.data.json_facts import damage_raised
from streamsampler.data.shards import Manifest, ShardFiles, read_manifest, shard_name
from streamsampler.data.shards import load as load_file
from streamsampler.data.space_codec import decode_space
from streamsampler.evaluation.charts import returns_of
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.merging import kind_of
from streamsampler.evaluation.suites.suite_comparison import SuiteComparison
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation

_ARRAYS = ("lengths", "indices", "rewards", "terminated", "truncated", "agent_versions")
_SHOWN_SEEDS = 3
_SHOWN_DAMAGE = 10
_OWN_ROWS = ("environment", "agent", "library", "fingerprints", "versions")


def contents_of(path: Path, *, quick: bool) -> Trajectories | Findings:
    """Return the contents of a file or a folder: trajectories, an evaluation or a comparison.

    Args:
        path: The file or the folder.
        quick: Read only sizes, lengths, rewards and headers instead of every byte.

    Raises:
        StorageError: The file, or the folder's manifest, is damaged, or of another format.
        OSError: Reading fails.
    """
    match kind_of(path):
        case "evaluation":
            return Findings(path, Evaluation.load(path))
        case "comparison":
            return Findings(path, Comparison.load(path))
        case "suite comparison":
            return Findings(path, SuiteComparison.load(path))
        case "suite":
            return Findings(path, SuiteEvaluation.load(path))
    return _of_folder(path, quick=quick) if path.is_dir() else _of_file(path, quick=quick)


@dataclass(frozen=True)
class Findings:
    """The contents of a file of `evaluate` or `compare`.

    Attributes:
        path: The file.
        found: The result in the file.
        damaged: Always empty: a damaged file is an error.
    """

    path: Path
    found: Evaluation | Comparison | SuiteEvaluation | SuiteComparison
    damaged: tuple[()] = ()

    def facts(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        facts = self.found.contents()
        del facts["format"]  # `kind` has the same
        return {"path": str(self.path), "kind": self.found.KIND, "bytes": self.path.stat().st_size, **facts}

    def text(self) -> str:
        """Return the result as text, with the file's settings and versions."""
        found, facts = self.found, self.found.contents()
        names = [""] if isinstance(found, Evaluation) else [f" of {name}" for name in _names_of(found)]
        digests = [each.agent.get("parameters") for each in found.evaluations]
        first = found.evaluations[0]
        return "\n".join([
            f"{found.KIND}: {self.path} ({self.path.stat().st_size:,} bytes)",
            str(found),
            *(f"parameters{name}: {digest}" for name, digest in zip(names, digests, strict=True) if digest is not None),
            f"settings: {', '.join(f'{name}={value!r:.60}' for name, value in first.settings.items())}",
            f"written by: streamsampler {facts['package_version']}, format {facts['format_version']}",
            f"versions: {_versions(dict(first.versions))}",
        ])  # fmt: skip


def _names_of(found: Comparison | SuiteEvaluation | SuiteComparison) -> list[str]:
    """Return the names of the evaluations in a file: agents, or the tasks that have an evaluation, or both."""
    if isinstance(found, SuiteComparison):
        each = zip(found.names, found.suites, strict=True)
        return [f"{agent} in {task}" for agent, suite in each for task in suite]
    return list(found.names if isinstance(found, Comparison) else found)


@dataclass
class Trajectories:
    """The trajectories of a file or a folder.

    Attributes:
        path: The file or the folder.
        header: The header of the file, or of the first readable shard; without spaces if no shard is readable.
        manifest: The folder's manifest; None for a file.
        n_shards: Number of shards, damaged and missing shards included.
        tally: Totals of all readable trajectories.
        terminated: Number of terminated trajectories.
        truncated: Number of truncated trajectories.
        indices: First and last trajectory index.
        agent_versions: First and last agent version.
        policies: Totals by policy name, for a file of several agents.
        episodes: Totals of the complete episodes in a file with fragments; None for other files.
        n_bytes: Total size of the files.
        damaged: Unreadable shards, with the reason.
    """

    path: Path
    header: dict[str, Any]
    manifest: Manifest | None = None
    n_shards: int = 0
    tally: Tally = field(default_factory=Tally)
    terminated: int = 0
    truncated: int = 0
    indices: list[int] = field(default_factory=list)
    agent_versions: list[int] = field(default_factory=list)
    policies: dict[str, Tally] = field(default_factory=dict)
    episodes: Tally | None = None
    n_bytes: int = 0
    damaged: dict[str, str] = field(default_factory=dict)

    def add(self, arrays: Mapping[str, Any]) -> None:
        """Add the trajectories of a file.

        Raises:
            StorageError: The lengths of the arrays do not match.
        """
        self.tally += Tally.of_values(returns_of(self.path, arrays), arrays["lengths"])
        self.terminated += int(arrays["terminated"].sum())
        self.truncated += int(arrays["truncated"].sum())
        for name in ("indices", "agent_versions"):
            if len(values := arrays[name]):
                known = getattr(self, name)
                setattr(self, name, [min([*known, int(values.min())]), max([*known, int(values.max())])])

    def facts(self) -> dict[str, Any]:
        """Return the contents as JSON values; unknown values are None."""
        manifest, header = self.manifest, self.header
        of_folder = {} if manifest is None else {
            "complete": manifest.complete,
            "wanted": dict(manifest.wanted),
            "shard_size": manifest.shard_size,
            "shards": self.n_shards,
            "damaged": [{"shard": name, "error": reason} for name, reason in self.damaged.items()],
        }  # fmt: skip
        return {
            "path": str(self.path),
            "kind": "file" if manifest is None else "folder",
            **of_folder,
            **self.tally.facts(),
            "terminated": self.terminated,
            "truncated": self.truncated,
            **({} if self.episodes is None else {"episodes": self.episodes.facts()}),
            **({"of_policies": {name: it.facts() for name, it in self.policies.items()}} if self.policies else {}),
            "observation_space": self._space("observation_space"),
            "action_space": self._space("action_space"),
            "seed": header["seed"],
            "first_seeds": header.get("seeds", [])[:_SHOWN_SEEDS],
            "indices": self.indices or None,
            "agent_versions": self.agent_versions or None,
            "provenance": finite(header["provenance"]),
            "fingerprints": self._fingerprints(),
            "package_version": header["package_version"],
            "format_version": header["format_version"],
            "bytes": self.n_bytes,
        }

    def _space(self, name: str) -> str | None:
        spaces = self.header.get("spaces")
        return None if spaces is None else " ".join(str(decode_space(spaces[name])).split())

    def text(self) -> str:
        facts, provenance = self.facts(), self.header["provenance"]
        seeds = facts["first_seeds"]
        options = {name: value for name, value in provenance.items() if name not in _OWN_ROWS}
        parts, of_parts = ("", "") if self.episodes is None else (" parts of episodes", " of parts")
        indices = _range(self.indices, ", index {}", ", indices {} to {}")
        return table({
            facts["kind"]: f"{self.path} ({self.n_bytes:,} bytes)",
            **self._folder_rows(),
            "environment": str(provenance.get("environment") or ""),
            "agent": str(provenance.get("agent") or ""),
            "trajectories": f"{self.tally.trajectories:,}{parts}{indices}",
            "timesteps": f"{self.tally.timesteps:,}",
            **self._episode_rows(),
            f"return{of_parts}": spread_text(facts["return"], self.tally.trajectories),
            f"length{of_parts}": spread_text(facts["length"], self.tally.trajectories),
            **policy_rows(self.policies),
            "ended": f"{self.terminated:,} terminated, {self.truncated:,} truncated",
            **({} if self.policies else {
                "observations": facts["observation_space"] or "", "actions": facts["action_space"] or "",
            }),
            "seed": "none" if facts["seed"] is None else str(facts["seed"]),
            "reset by": ", ".join([*map(str, seeds), *(["…"] if self.tally.trajectories > len(seeds) else [])]),
            "agent version": _range(self.agent_versions, "{}", "{} to {}"),
            "options": ", ".join(f"{name}={value!r:.60}" for name, value in options.items()),
            "fingerprint": " and ".join(facts["fingerprints"]),
            "written by": f"streamsampler {facts['package_version']}, format {facts['format_version']}",
            "versions": _versions(provenance.get("versions")),
            **self._damage_rows(),
        })  # fmt: skip

    def _fingerprints(self) -> list[str]:
        if self.manifest is not None:
            return sorted(self.manifest.fingerprints)
        found = self.header["provenance"].get("fingerprints")  # users may have put anything into the provenance
        return [text for text in found if isinstance(text, str)] if isinstance(found, list) else []

    def _episode_rows(self) -> dict[str, str]:
        if (ended := self.episodes) is None:
            return {}
        facts, n = ended.facts(), ended.trajectories
        return {"episode return": spread_text(facts["return"], n), "episode length": spread_text(facts["length"], n)}

    def _folder_rows(self) -> dict[str, str]:
        if self.manifest is None:
            return {}
        wanted = " ".join(f"{number:,} {unit}" for unit, number in self.manifest.wanted.items())
        state = "complete" if self.manifest.complete else "incomplete"
        return {"shards": f"{self.n_shards:,}, {state}: {wanted} were wanted"}

    def _damage_rows(self) -> dict[str, str]:
        if self.manifest is None:
            return {}
        lines = list(self.damaged.values())[:_SHOWN_DAMAGE]
        more = [f"and {len(self.damaged) - len(lines):,} more"] if len(self.damaged) > len(lines) else []
        return {"damaged": "\n               ".join([*lines, *more]) or "no shard"}


def _of_file(path: Path, *, quick: bool) -> Trajectories:
    if not quick:
        load_file(path)
    contents = Trajectories(path, {})
    _add_file(contents, path, storage.read(path, *_ARRAYS)[0], StorageError)
    return contents


def _episodes(path: Path, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> Tally:
    """Return the totals of the complete episodes in a file with fragments, as in `episode_returns`."""
    names = [name for name in ("fragments", "raw_rewards") if name in header["structure"]]
    trees, lengths = storage.read_trees(path, *names)[0], arrays["lengths"]
    ended = arrays["terminated"] | arrays["truncated"]
    returns = sums(trees.get("raw_rewards", arrays["rewards"]), lengths) + trees["fragments"]["earlier_returns"]
    return Tally.of_values(returns[ended], (lengths + trees["fragments"]["earlier_lengths"])[ended])


def _policies(path: Path, header: Mapping[str, Any]) -> dict[str, Tally]:
    """Return the totals of each policy in a file of several agents, by name."""
    found = {}
    for name, said in header.get("policies", {}).items():
        entries = [said["structure"][field]["array"] for field in ("lengths", "rewards")]
        arrays = storage.read(path, *entries)[0]
        found[name] = Tally.of(*(arrays[entry] for entry in entries))
    return found


def _of_folder(path: Path, *, quick: bool) -> Trajectories:
    manifest = read_manifest(path)
    names = ("seed", "provenance", "package_version")
    contents = Trajectories(path, {name: getattr(manifest, name) for name in names} | {"format_version": 1}, manifest)
    files = ShardFiles(path, manifest)

    def add(number: int) -> None:
        if not quick:
            files.load(number)
        _add_file(contents, files.path(number), files.read(number, *_ARRAYS), DamagedShardError)

    contents.n_shards = len(manifest.shards)
    contents.damaged = {shard_name(number): str(error) for number, error in files.survey(add).items()}
    return contents


def _add_file(contents: Trajectories, path: Path, arrays: Mapping[str, Any], error: type[StorageError]) -> None:
    """Add the trajectories of a file or of a shard; damage raises an error of the given type."""
    with damage_raised(path, error=error):
        contents.add(arrays)
        contents.n_bytes += path.stat().st_size
        if "spaces" not in contents.header:
            header = storage.read(path)[1]
            _check_header(header)
            if contents.manifest is None and "fragments" in header["structure"]:
                contents.episodes = _episodes(path, header, arrays)
            replace(contents, header=header).text()  # raises if the header is damaged
            contents.header = header
        if "policies" in contents.header:
            for name, tally in _policies(path, storage.read(path)[1]).items():
                contents.policies[name] = contents.policies.get(name, Tally()) + tally


def _check_header(header: dict[str, Any]) -> None:
    seeds = header["seeds"]
    fit = isinstance(seeds, list) and set(map(type, seeds)) <= {int} and type(header["seed"]) in (int, type(None))
    if not (fit and isinstance(header["provenance"], dict) and isinstance(header["package_version"], str)):
        raise ValueError("its seeds, its provenance or its version have another form")


def _range(values: list[int], one: str, several: str) -> str:
    if not values:
        return ""
    return one.format(values[0]) if values[0] == values[1] else several.format(*values)


def _versions(found: Any) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items()) if isinstance(found, dict) else ""
