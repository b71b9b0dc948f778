"""Workers that compute with other kernels than others: what is warned of, raised and written down."""

import logging
import os
import pickle
import signal
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, TrajectoryBatch, sample_to_folder
from streamsampler.core.fingerprints import Fingerprint
from streamsampler.data.shards import MANIFEST, read_manifest
from streamsampler.errors import NotReproducibleError, UsageError
from streamsampler.protocol.worker_kernels import Fingerprints
from streamsampler.samplers.folders import _sampled_elsewhere as sampled_elsewhere
from streamsampler.workers import loop
from streamsampler.workers.threads import fingerprint
from tests.data.damage import forget_shards

OWN = fingerprint().without_torch().bits
A, B = Fingerprint("numpy=aa", "here"), Fingerprint("numpy=bb", "there")


def test_one_warning_names_all_who_differ():
    found = Fingerprints("warn")
    assert [found.record(0, A), found.record(2, B)] == ["", ""]
    assert found.warning(3) == "", "worker 1 has not told its own yet"
    found.record(1, A)
    assert "workers 0 and 1 on here" in found.warning(3)
    found.record(1, A)
    assert [found.warning(), found.refusal()] == ["", ""], "it was said before"
    found = Fingerprints("warn")
    found.record(0, A)
    found.record(2, B)
    assert "worker 2 on there" in found.warning(), "it need not wait for workers that had nothing to do"


def test_an_error_comes_at_once_and_in_every_call_as_long_as_they_differ():
    found = Fingerprints("error")
    found.record(0, A)
    assert "worker 1 on there" in found.record(1, B)
    assert found.refusal()
    assert found.warning() == ""
    found.record_death(1)
    assert found.refusal() == "", "there may be another machine for it"
    assert found.record(1, A), "the batch may have trajectories of both"
    assert found.refusal() == ""


def test_a_worker_that_is_replaced_is_compared_with_the_one_before():
    found = Fingerprints("warn")
    found.record(0, A)
    found.record_death(0)
    assert found.bits_of(0) == ""
    found.record(0, B)
    assert "worker 0 on here (numpy=aa); worker 0 on there (numpy=bb)" in found.warning()
    found = Fingerprints(None)
    assert [found.record(0, A), found.record(1, B), found.warning(), found.refusal()] == [""] * 4
    assert found.bits == ["numpy=aa", "numpy=bb"]


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if "other kernels" in record.getMessage()]


def test_batches_carry_the_fingerprint_which_is_no_data(tmp_path):
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        assert "fingerprints" not in sampler.provenance(), "nobody has told any"
        batch = sampler.obtain_trajectories(3)
        assert batch.fingerprints == {OWN}
        assert sampler.provenance()["fingerprints"] == [OWN]
        assert next(sampler.stream()).fingerprints == {OWN}
    other = replace(batch, fingerprints=frozenset({"numpy=other"}))
    assert other == batch
    assert batch[1].fingerprints == batch.split()[0].fingerprints == {OWN}
    assert TrajectoryBatch.concatenate(batch, other).fingerprints == {OWN, "numpy=other"}
    loaded = TrajectoryBatch.load(batch.save(tmp_path / "a"))
    assert loaded.fingerprints == frozenset()
    assert batch.save(tmp_path / "a").read_bytes() == other.save(tmp_path / "b").read_bytes()


def test_a_library_that_is_loaded_later_is_told_of(monkeypatch):
    prints = [A._replace(bits="numpy=aa")]
    monkeypatch.setattr(loop, "fingerprint", lambda: prints[-1])
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        assert sampler.obtain_trajectories(1).fingerprints == {"numpy=aa"}
        prints.append(A._replace(bits="numpy=aa another=11"))
        assert sampler.obtain_trajectories(1).fingerprints == {"numpy=aa another=11"}


NEEDS_TORCH = """
import sys, {first}
import gymnasium as gym
from streamsampler import LocalSampler, MultiprocessingSampler
from streamsampler.adapters.torch import TorchAgent

def make():
    from torch import nn
    return TorchAgent(nn.Linear(4, 2), gym.make("CartPole-v1").action_space)

agent = make() if "torch" in sys.argv else "random"
import torch
for sampler in (
    LocalSampler(agent, "CartPole-v1", seed=1),
    MultiprocessingSampler(agent, "CartPole-v1", seed=1, n_workers=1),
    MultiprocessingSampler(agent, "CartPole-v1", seed=1, n_workers=1, start_method="fork"),
):
    with sampler:
        print(*sampler.obtain_trajectories(2).fingerprints, sep="|")
"""


@pytest.mark.extras
@pytest.mark.parametrize("agent", ["torch", "random"])
@pytest.mark.parametrize("first", ["torch", "numpy"])
def test_torch_counts_where_it_is_needed_whatever_else_is_loaded(agent, first):
    """Else the same folder would be another one from a program that happens to have imported torch."""
    code = NEEDS_TORCH.format(first=first)
    run = subprocess.run([sys.executable, "-c", code, agent], capture_output=True, text=True, check=True)
    (bits,) = set(run.stdout.split("\n")) - {""}
    assert [part.partition("=")[0] for part in bits.split()] == (["numpy", "torch"] if agent == "torch" else ["numpy"])


def differing(monkeypatch):
    """Let every second worker of a LocalSampler compute otherwise."""
    prints = iter([A, B] * 100)
    monkeypatch.setattr(loop, "fingerprint", lambda: next(prints))


def test_an_error_ends_the_call_and_the_next_one_and_a_warning_none(monkeypatch, caplog):
    differing(monkeypatch)
    with LocalSampler("random", "CartPole-v1", n_workers=2, seed=1) as sampler:
        assert sampler.obtain_samples(2_000).fingerprints == {"numpy=aa", "numpy=bb"}
    assert len(warnings_of(caplog)) == 1
    with LocalSampler("random", "CartPole-v1", n_workers=2, seed=1, fingerprint="error") as sampler:
        for _ in range(2):
            with pytest.raises(NotReproducibleError, match=r"worker 0 on here .*; worker 1 on there"):
                sampler.obtain_samples(2_000)
        assert pickle.loads(pickle.dumps(sampler)).fingerprint == "error"


def test_the_first_report_tells_it_and_it_is_forgotten_when_the_worker_dies(monkeypatch):
    told, forgotten = [], []
    monkeypatch.setattr(Fingerprints, "record", lambda self, worker, found: told.append(worker) or "")
    monkeypatch.setattr(Fingerprints, "record_death", lambda self, worker: forgotten.append(worker))
    with MultiprocessingSampler("random", "CartPole-v1", n_workers=1, seed=1) as sampler:
        sampler.obtain_trajectories(2)
        sampler.obtain_samples(3_000)
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        sampler.obtain_trajectories(2)
    assert (told, forgotten) == ([0, 0], [0])


@pytest.mark.slow
def test_a_process_with_other_kernels_is_named(monkeypatch, caplog):
    """The worker that takes a dead one's place has other environment variables, as it would on another machine.

    It is spawned: what a fork server forks has the server's NumPy.
    """
    envs = ["CartPole-v1"] * 2  # one for each worker, so that no other worker does its work meanwhile
    with MultiprocessingSampler("random", envs, seed=1, start_method="spawn") as sampler:
        batch = sampler.obtain_samples(400)
        assert batch.fingerprints == {OWN}, "as in this process"
        monkeypatch.setenv("OPENBLAS_CORETYPE", "Nehalem")
        os.kill(sampler.worker_pids()[1], signal.SIGKILL)
        with caplog.at_level(logging.WARNING, "streamsampler"):
            second = sampler.obtain_exact_trajectories(10)
    if second.fingerprints == {OWN}:
        pytest.skip("NumPy has no OpenBLAS with several kernels here")
    (text,) = warnings_of(caplog)
    (other,) = second.fingerprints - {OWN}
    assert f"worker 0 on {fingerprint().host} ({OWN})" in text
    assert f"worker 1 on {fingerprint().host} ({other})" in text
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    with LocalSampler("random", envs, seed=1) as sampler:
        assert sampler.obtain_samples(400) == batch
        assert sampler.obtain_exact_trajectories(10) == second, "an agent of integers does not depend on kernels"


AMOUNT: dict[str, Any] = {"n_timesteps": 300, "shard_size": 100}


def begun(folder, bits="numpy=elsewhere"):
    """Begin a folder where other kernels compute, and leave it incomplete."""
    with LocalSampler("random", "CartPole-v1", seed=3) as sampler:
        sample_to_folder(sampler, folder, **AMOUNT)
    text = (folder / MANIFEST).read_text()
    assert read_manifest(folder).fingerprints == {OWN}
    (folder / MANIFEST).write_text(text.replace(OWN, bits))
    forget_shards(folder, 1)


def resumed(folder, **options):
    with LocalSampler("random", "CartPole-v1", seed=3, **options) as sampler:
        return sample_to_folder(sampler, folder, **AMOUNT, resume=True)


def test_a_folder_that_is_resumed_elsewhere_says_so_or_is_left_as_it_is(tmp_path, caplog):
    begun(tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(UsageError, match="was started on a machine where NumPy or torch use other kernels"):
        resumed(tmp_path / "out", fingerprint="error")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert resumed(tmp_path / "out").complete
    (text,) = warnings_of(caplog)
    assert text.startswith(f"{tmp_path / 'out'} was started on a machine where NumPy or torch use other kernels")
    assert f"(numpy=elsewhere there, {OWN} here)" in text
    assert read_manifest(tmp_path / "out").fingerprints == {"numpy=elsewhere", OWN}


@pytest.mark.parametrize(
    ("bits", "options"),
    [
        (OWN, {"fingerprint": "error"}),
        ("numpy=elsewhere", {"fingerprint": None}),
        (f"{OWN} torch=elsewhere", {}),  # a library that was not needed here
    ],
)
def test_where_nothing_differs_or_is_asked_nothing_is_said(tmp_path, caplog, bits, options):
    begun(tmp_path / "out", bits)
    resumed(tmp_path / "out", **options)
    assert warnings_of(caplog) == []
    assert read_manifest(tmp_path / "out").fingerprints == ({bits} if OWN in bits else {bits, OWN})
    assert sampled_elsewhere("out", ["numpy=aa", "numpy=bb"], ["numpy=bb torch=11"]) == ""
    assert sampled_elsewhere("out", [], ["numpy=aa"]) == "", "a manifest of before has none"
    assert "out was started" in sampled_elsewhere("out", ["numpy=aa"], ["numpy=aa", "numpy=cc"])
