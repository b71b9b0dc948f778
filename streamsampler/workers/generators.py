"""Seed, save and restore the global generators available to rollouts: `random`, `numpy.random` and torch's.

States are read from the generators' memory where its layout is known, since their own methods are slow.
"""

from __future__ import annotations

import _random
import contextlib
import ctypes
import functools
import os
import random
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from streamsampler.core.seeding import SeedUse, TrajectorySeeds, derived_seed, derived_seeds
from streamsampler.workers.turns import turn

__all__ = [
    "drawn_states",
    "generator_marks",
    "generator_states",
    "kept_generators",
    "preserved_generators",
    "put_states",
    "restore_generators",
    "seed_constructors",
    "seed_generators",
    "seeding",
    "set_states",
]

CONSTRUCTION = 0
"""The agent version in the seeds of constructors; trajectories have later versions."""

_MT19937_BYTES = 625 * 4
"""624 words and the current position."""


_MtMemory = ctypes.c_char * _MT19937_BYTES
"""Read with `raw`, in 0.1 µs; `ctypes.string_at` takes six times as long."""


def _memory_of(generator: random.Random) -> Any:
    """Return the memory of a `random.Random`'s state, or None; `getstate` takes 20 µs."""
    head, size = object.__basicsize__, _random.Random.__basicsize__
    if sys.implementation.name != "cpython" or size < head + _MT19937_BYTES:
        return None
    memory = _MtMemory.from_address(id(generator) + head)
    *words, position = generator.getstate()[1]
    return memory if memory.raw == np.array([position, *words], np.uint32).tobytes() else None


_python: Any = random.getstate.__self__  # type: ignore[attr-defined]
_python_memory = _memory_of(_python)


def _python_state() -> Any:
    """Return a value which changes with each draw from `random`, for `_restore_python`."""
    return random.getstate() if _python_memory is None else (_python_memory.raw, _python.gauss_next)


def _restore_python(kept: Any) -> None:
    if _python_memory is None:
        random.setstate(kept)
    else:
        _python_memory.raw, _python.gauss_next = kept


_HAS_GAUSS_BYTES = 8
"""Size of the flag before the stored second normal number of a pair: 4 bytes and padding."""


def _place_of_gauss() -> int | None:
    """Return the offset of the stored second normal number in a `RandomState`, or None."""
    known = np.random.RandomState(1)
    memory = (ctypes.c_char * np.random.RandomState.__basicsize__).from_address(id(known))
    known.normal()
    state: Any = known.get_state(legacy=False)
    has_gauss = np.array([1, 0], np.int32).tobytes()
    place = memory.raw.find(has_gauss + np.float64(state["gauss"]).tobytes())
    return place if sys.implementation.name == "cpython" and place >= 0 else None


def _memory_of_gauss() -> Any:
    place, state = _place_of_gauss(), np.random.get_state.__self__  # type: ignore[attr-defined]
    if place is None or type(state) is not np.random.RandomState:
        return None
    return (ctypes.c_char * (_HAS_GAUSS_BYTES + 8)).from_address(id(state) + place)


_gauss_memory = _memory_of_gauss()


def _words_of(bits: Any) -> Any:
    """Return the memory of numpy's Mersenne twister; `get_state` would make an array of it."""
    return _MtMemory.from_address(bits.ctypes.state_address)


def _numpy_state() -> Any:
    """Return a value which changes with each draw from `numpy.random`."""
    bits = np.random.get_bit_generator()  # type: ignore[attr-defined]
    return _words_of(bits).raw if isinstance(bits, np.random.MT19937) else repr(bits.state)


def _numpy_kept() -> Any:
    """Return the state of `numpy.random` for `_restore_numpy`; `get_state` and `set_state` take 0.1 ms each."""
    bits = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if _gauss_memory is None or not isinstance(bits, np.random.MT19937):
        return np.random.get_state(legacy=False)
    return bits, _words_of(bits).raw, _gauss_memory.raw


def _restore_numpy(kept: Any) -> None:
    if not isinstance(kept, tuple):
        np.random.set_state(kept)
        return
    bits, words, gauss = kept
    if np.random.get_bit_generator() is not bits:  # type: ignore[attr-defined]
        np.random.set_bit_generator(bits)  # type: ignore[attr-defined]
    _words_of(bits).raw, _gauss_memory.raw = words, gauss


def _loaded_torch() -> Any:
    """Return the module torch if it is imported, perhaps partly, by another thread; else None.

    Code which has not imported torch cannot draw from its generator, and an import takes seconds.
    """
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "manual_seed") else None


def seed_constructors(seed: int) -> None:
    """Seed the global generators for constructors of agents and environments, from the sampler's seed."""
    seed_generators(TrajectorySeeds(seed, CONSTRUCTION)[0])


def seed_generators(trajectory_seed: int) -> None:
    """Seed the process's global generators for a trajectory: `random`, `numpy.random`, and torch's if loaded."""
    _seed(derived_seed(trajectory_seed, SeedUse.PYTHON), derived_seed(trajectory_seed, SeedUse.NUMPY), trajectory_seed)


def seeding(trajectory_seeds: Sequence[int]) -> Iterator[None]:
    """Seed the global generators for the next of many trajectories at each `next`; derive all seeds at once."""
    of_python = derived_seeds(trajectory_seeds, SeedUse.PYTHON)
    of_numpy = derived_seeds(trajectory_seeds, SeedUse.NUMPY)
    for trajectory_seed, python_seed, numpy_seed in zip(trajectory_seeds, of_python, of_numpy, strict=True):
        _seed(python_seed, numpy_seed, trajectory_seed)
        yield


def _seed(python_seed: int, numpy_seed: int, trajectory_seed: int) -> None:
    random.seed(python_seed)
    np.random.seed(numpy_seed)
    torch = _loaded_torch()
    if torch is not None:
        _seed_torch(torch, derived_seed(trajectory_seed, SeedUse.TORCH))


def _seed_torch(torch: Any, seed: int) -> None:
    """Seed torch as `torch.manual_seed` does, for usable devices only.

    `torch.manual_seed` stores the seed for unused devices of every kind, with stack traces: 0.4 ms in a worker, a
    quarter of a network's time for a trajectory of 20 timesteps.
    """
    kind = _kind_of_device(torch)
    if kind not in ("cuda", None):
        torch.manual_seed(seed)
        return
    if kind == "cuda":
        torch.cuda.manual_seed_all(seed)
    torch.default_generator.manual_seed(seed)


def _kind_of_device(torch: Any) -> str | None:
    """Return the kind of device available to torch in this process: None without devices, "any" for old versions."""
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6
    if accelerator is None:
        return "any"
    device = accelerator.current_accelerator()
    if device is None or device.type != "cuda":
        return None if device is None else str(device.type)
    return "cuda" if torch.cuda.is_initialized() or _may_have_devices(hip=bool(torch.version.hip)) else None


def _may_have_devices(*, hip: bool) -> bool:
    # Not torch.cuda.is_available(): it may initialise the driver, and later forks of this process could not use it.
    return _has_driver(hip=hip) and (hip or not _HIDDEN.match(os.environ.get("CUDA_VISIBLE_DEVICES", "0")))


_HIDDEN = re.compile(r"\s*(-|$)")
"""Values of CUDA_VISIBLE_DEVICES which hide all devices: empty, or a list with a negative first number."""


@functools.cache
def _has_driver(*, hip: bool) -> bool:
    if sys.platform != "linux":
        return True  # its place is unknown on other systems
    if hip:
        return any(map(os.path.exists, ("/dev/kfd", "/dev/dxg")))
    try:
        ctypes.CDLL("libcuda.so.1")  # found in any place; loading it uses no device
    except OSError:
        return False
    return True


def generator_states() -> tuple[Any, ...]:
    """Return the states of the loaded global generators: a value which changes with each draw.

    It does not contain the stored second normal number of `numpy.random`: seed the generators first.
    """
    states = [_python_state(), _numpy_state()]
    torch = _loaded_torch()
    if torch is not None:
        states.append(torch.get_rng_state().numpy().tobytes())
        if torch.cuda.is_initialized():
            states += [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
    return tuple(states)


_last_words: tuple[Any, Any] = None, None
"""Cache: the last seen generator of `numpy.random` and its `_words_of`. Programs rarely replace it."""


def generator_marks() -> tuple[Any, ...]:
    """Return a short form of `generator_states`, in a third of the time.

    A draw uses a single word of the Mersenne twister, and after the last word all are replaced.
    """
    global _last_words
    torch, bits = _loaded_torch(), np.random.get_bit_generator()  # type: ignore[attr-defined]
    of_python = _python_state() if _python_memory is None else (_python_memory[:8], _python.gauss_next)
    if bits is not _last_words[0]:
        _last_words = bits, _words_of(bits) if isinstance(bits, np.random.MT19937) else None
    words = _last_words[1]
    of_numpy = _numpy_state() if words is None else words[-8:]
    return (of_python, of_numpy) if torch is None else (of_python, of_numpy, *_torch_marks(torch))


def _torch_marks(torch: Any) -> Sequence[Any]:
    memory = _torch_memory(torch.default_generator)
    if memory is None or torch.cuda.is_initialized():
        return generator_states()[2:]
    words, normals = memory
    return words.raw, normals.raw


_HEAD_BYTES = 256
"""Maximum offset of the words in torch's generator, in bytes."""


@functools.lru_cache(1)
def _torch_memory(generator: Any) -> tuple[Any, Any] | None:
    """Return the memory in torch's generator which changes with draws, or None.

    It holds the position among the words with the first words, and the stored normal number. `get_state` takes 4 µs.
    """
    address, state = getattr(generator, "_cdata", None), generator.get_state().numpy().tobytes()
    if sys.implementation.name != "cpython" or not isinstance(address, int) or len(state) < _TORCH_STATE_BYTES:
        return None
    head = (ctypes.c_char * _HEAD_BYTES).from_address(address)
    words = np.frombuffer(state, np.uint64, 624, 24).astype(np.uint32).tobytes()
    place = head.raw.find(words[:64])
    if place < 16:
        return None
    near = (ctypes.c_char * 24).from_address(address + place - 16)
    return near, (ctypes.c_char * 24).from_address(address + place + len(words))


_TORCH_STATE_BYTES = 5056
"""Size of the CPU generator's state: a seed, a position, 624 words of 8 bytes, normal numbers."""


def kept_generators() -> Any:
    """Return the states of the global generators for `restore_generators`."""
    torch = _loaded_torch()
    on_cpu = None if torch is None else torch.get_rng_state()
    on_devices = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None
    return _python_state(), _numpy_kept(), on_cpu, on_devices


def restore_generators(kept: Any) -> None:
    """Restore the result of `kept_generators`."""
    of_python, of_numpy, on_cpu, on_devices = kept
    _restore_python(of_python)
    _restore_numpy(of_numpy)
    if (torch := _loaded_torch()) is not None:
        _restore_torch(torch, on_cpu, on_devices)


@contextlib.contextmanager
def preserved_generators() -> Iterator[None]:
    """Restore the global generators after the block; other threads with such a block wait for its end."""
    with turn():
        kept = kept_generators()
        try:
            yield
        finally:
            restore_generators(kept)


def _restore_torch(torch: Any, on_cpu: Any, on_devices: Any) -> None:
    """Restore torch's generators; None for generators absent or unused before."""
    if on_cpu is None:
        # Torch was loaded inside the block: a program which loads torch expects a generator seeded from entropy.
        torch.seed()
        return
    torch.set_rng_state(on_cpu)
    if on_devices is not None:
        torch.cuda.set_rng_state_all(on_devices)
    elif _kind_of_device(torch) is not None:
        # Torch stores the last seed for unused devices: store the user's again. Not without devices, as in
        # `_seed_torch`: torch would store a stack trace with it.
        torch.cuda.manual_seed_all(torch.initial_seed())


def drawn_states(fresh: tuple[Any, ...]) -> Any:
    """Return the states of the global generators used since `set_states` returned `fresh`; None if none was used."""
    states = generator_states()
    if states == fresh:
        return None
    of_python, of_numpy = (now != before for now, before in zip(states[:2], fresh[:2], strict=True))
    of_torch = None
    if states[2:] != fresh[2:]:
        torch = _loaded_torch()
        on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        of_torch = torch.get_rng_state().numpy(), [state.numpy() for state in on_devices]
    return random.getstate() if of_python else None, np.random.get_state(legacy=False) if of_numpy else None, of_torch


def set_states(trajectory_seed: int, states: Any) -> tuple[Any, ...]:
    """Seed the global generators for a trajectory, then restore the result of `drawn_states` if it is not None.

    Returns:
        The `generator_states` directly after seeding, for `drawn_states`.
    """
    seed_generators(trajectory_seed)
    fresh = generator_states()
    if states is not None:
        put_states(states)
    return fresh


def put_states(states: Any) -> None:
    """Restore the used generators from the result of `drawn_states`."""
    of_python, of_numpy, of_torch = states
    if of_python is not None:
        random.setstate(of_python)
    if of_numpy is not None:
        np.random.set_state(of_numpy)
    torch = _loaded_torch()
    if torch is not None and of_torch is not None:
        on_cpu, on_devices = of_torch
        torch.set_rng_state(torch.from_numpy(on_cpu.copy()))
        if on_devices:
            torch.cuda.set_rng_state_all([torch.from_numpy(state.copy()) for state in on_devices])
