"""Files that an earlier version wrote load bit for bit, and the same calls write the same bytes.

python -m tests.data.test_written_files    # writes them again, after a change of the formats, and says so
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from functools import partial
from typing import Any

import pytest

from streamsampler import LocalSampler, TrajectoryFolder, compare, evaluate, load, sample_to_folder
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.filters import RunningNorm
from tests.fragments.agents import Sticky
from tests.proofs._programs import Keeping, digest_of_trees, seen_of
from tests.scripted.envs import Counting, Nested
from tests.scripted.games import Chooser, Comings

WRITTEN = pathlib.Path(__file__).with_name("written")
DIGESTS = WRITTEN / "digests.json"


def batch():
    with LocalSampler(Keeping(), Nested, seed=3) as sampler:
        return sampler.obtain_samples(40)


def fragments():
    with LocalSampler(Keeping(), Sticky, seed=4, observation_filter=RunningNorm()) as sampler:
        sampler.obtain_fragments(9, 3)
        return sampler.obtain_fragments(9, 3)


def several():
    with LocalSampler({"red": Chooser(1), "blue": Chooser(2)}, Comings, seed=5) as sampler:
        return sampler.obtain_trajectories(4)


BATCHES = {"batch": batch, "fragments": fragments, "several": several}


def folder(path: pathlib.Path) -> None:
    with LocalSampler(Keeping(), partial(Counting, 10), seed=6) as sampler:
        sample_to_folder(sampler, path, n_trajectories=25, shard_size=50)


def evaluation() -> Evaluation:
    return evaluate(Keeping(), Sticky, num_trajectories=40, seed=7, n_workers=0)


def comparison() -> Comparison:
    return compare({"one": Keeping(1), "two": Keeping(2)}, Sticky, num_trajectories=40, seed=8, n_workers=0)


COLUMNS = ("seeds", "returns", "lengths", "terminated", "truncated")
FOUND = {"evaluation": evaluation, "comparison": comparison}


def seen_in(name: str, where: pathlib.Path = WRITTEN) -> Any:
    """Return what is in a file or folder, as trees."""
    if name in BATCHES:
        return seen_of(load(where / f"{name}.npz"))
    if name == "folder":
        return tuple(map(seen_of, TrajectoryFolder(where / name)))
    kind: Any = Evaluation if name == "evaluation" else Comparison
    found = kind.load(where / f"{name}.json")
    each = [found] if name == "evaluation" else [found[agent] for agent in ("one", "two")]
    return {"text": str(found), "each": tuple(vars(it)[key] for it in each for key in COLUMNS)}


NAMES = [*BATCHES, "folder", *FOUND]


@pytest.mark.parametrize("name", NAMES)
def test_what_an_earlier_version_wrote_is_there_bit_for_bit(name):
    assert digest_of_trees(seen_in(name)) == json.loads(DIGESTS.read_text())[name]


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_today_is_the_same(name, tmp_path):
    write(tmp_path, name)
    assert digest_of_trees(seen_in(name, tmp_path)) == json.loads(DIGESTS.read_text())[name]


def test_a_process_that_has_loaded_nothing_reads_a_batch_of_several_agents():
    script = f"import streamsampler; print(type(streamsampler.load({str(WRITTEN / 'several.npz')!r})).__name__)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "MultiAgentBatch\n"


def write(where: pathlib.Path, name: str) -> None:
    """Write a file or folder."""
    if name in BATCHES:
        BATCHES[name]().save(where / f"{name}.npz")
    elif name == "folder":
        folder(where / name)
    else:
        FOUND[name]().save(where / f"{name}.json")


if __name__ == "__main__":
    for each in NAMES:
        write(WRITTEN, each)
    DIGESTS.write_text(json.dumps({name: digest_of_trees(seen_in(name)) for name in NAMES}, indent=0) + "\n")
