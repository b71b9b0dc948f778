"""Seed, save and restore the global generators that a rollout may draw from: `random`, `numpy.random` and torch's."""

from __future__ import annotations

import _random
import contextlib
import ctypes
import functools
import os
import random
import re
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from streamsampler.core.seeding import Stream, derived_seed

__all__ = [
    "drawn_states",
    "fresh_states",
    "generator_states",
    "preserved_generators",
    "put_states",
    "seed_generators",
    "set_states",
]

_MT19937_BYTES = 625 * 4
"""624 words, and the position among them."""


_MtMemory = ctypes.c_char * _MT19937_BYTES
"""Read with `raw`, in 0.1 µs; `ctypes.string_at` takes six times as long."""


class _PythonState:
    """The state of a generator of `random`, read where it lies: `getstate` makes 625 numbers of it, in 20 µs.

    Args:
        generator: The generator.
    """

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        head, size = object.__basicsize__, _random.Random.__basicsize__
        known = sys.implementation.name == "cpython" and size >= head + _MT19937_BYTES
        self._memory = _MtMemory.from_address(id(generator) + head) if known else None
        if known and self.read()[0] != self._expected():
            self._memory = None

    def _expected(self) -> bytes:
        """Return the memory as CPython has it: the position, then the words."""
        *words, position = self._generator.getstate()[1]
        return np.array([position, *words], np.uint32).tobytes()

    def read(self) -> tuple[Any, Any]:
        """Return something that is another thing after somebody drew from the generator."""
        if self._memory is None:
            return self._generator.getstate(), None
        return self._memory.raw, self._generator.gauss_next  # type: ignore[attr-defined]


class _NumpyState:
    """The state of a bit generator of NumPy, read where it lies: `get_state` makes an array of it, in 0.16 ms."""

    def __init__(self) -> None:
        self._bits: Any = None
        self._memory: Any = None

    def read(self, bits: Any) -> Any:
        """Return something that is another thing after somebody drew from the bit generator.

        Args:
            bits: The bit generator; quickest if it is that of the last call.
        """
        if bits is not self._bits:
            known = isinstance(bits, np.random.MT19937)
            self._memory = _MtMemory.from_address(bits.ctypes.state_address) if known else None
            self._bits = bits
        return repr(bits.state) if self._memory is None else self._memory.raw


_python_state = _PythonState(random.getstate.__self__)  # type: ignore[attr-defined]
_numpy_state = _NumpyState()


def _loaded_torch() -> Any:
    """Return the module torch if it is imported (in part, too, by another thread), else None.

    Importing torch takes seconds and hundreds of megabytes; and code that has not imported it cannot draw from its
    generator.
    """
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "manual_seed") else None


def seed_generators(trajectory_seed: int) -> None:
    """Seed the process's global generators for one trajectory: `random`, `numpy.random`, and torch's if it is loaded.

    Args:
        trajectory_seed: The trajectory seed.
    """
    random.seed(derived_seed(trajectory_seed, Stream.PYTHON))
    np.random.seed(derived_seed(trajectory_seed, Stream.NUMPY))
    torch = _loaded_torch()
    if torch is not None:
        _seed_torch(torch, derived_seed(trajectory_seed, Stream.TORCH))


def _seed_torch(torch: Any, seed: int) -> None:
    """Do what `torch.manual_seed` does, for the devices that this torch can use.

    `torch.manual_seed` keeps the seed for devices of every kind that are not in use yet, with a stack trace for each
    kind: 0.4 ms in a worker, a quarter of what a network takes for a trajectory of 20 timesteps. A torch uses only the
    kind of devices that it was built for, and only where there are some.
    """
    accelerator = getattr(torch, "accelerator", None)  # since torch 2.6
    device = None if accelerator is None else accelerator.current_accelerator()
    if accelerator is None or not (device is None or device.type == "cuda"):
        torch.manual_seed(seed)
        return
    if device is not None and (torch.cuda.is_initialized() or _may_have_devices(hip=bool(torch.version.hip))):
        torch.cuda.manual_seed_all(seed)
    torch.default_generator.manual_seed(seed)


def _may_have_devices(*, hip: bool) -> bool:
    # Not torch.cuda.is_available(): where that uses the driver, no process that is forked later may use it.
    return _has_driver(hip=hip) and (hip or not _HIDDEN.match(os.environ.get("CUDA_VISIBLE_DEVICES", "0")))


_HIDDEN = re.compile(r"\s*(-|$)")
"""Values of CUDA_VISIBLE_DEVICES that hide all devices: nothing, and a list that begins with a negative number."""


@functools.cache
def _has_driver(*, hip: bool) -> bool:
    if sys.platform != "linux":
        return True  # it may be anywhere
    if hip:
        return any(map(os.path.exists, ("/dev/kfd", "/dev/dxg")))
    try:
        ctypes.CDLL("libcuda.so.1")  # wherever it is, and whatever devices it drives; loading it uses none
    except OSError:
        return False
    return True


def generator_states() -> tuple[Any, ...]:
    """Return something that is another thing after somebody drew from a global generator: of those that are loaded.

    What `numpy.random` has left of a pair of normal numbers is not in it: seed the generators first.
    """
    states = [_python_state.read(), _numpy_state.read(np.random.get_bit_generator())]  # type: ignore[attr-defined]
    torch = _loaded_torch()
    if torch is not None:
        states.append(torch.get_rng_state().numpy().tobytes())
        if torch.cuda.is_initialized():
            states += [state.numpy().tobytes() for state in torch.cuda.get_rng_state_all()]
    return tuple(states)


@contextlib.contextmanager
def preserved_generators() -> Iterator[None]:
    """Restore the global generators after the block: the user's program draws from those that a rollout seeds."""
    python_state = random.getstate()
    numpy_state = np.random.get_state(legacy=False)
    torch_state = _TorchState()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch_state.restore()


class _TorchState:
    """The state of torch's generators, on the CPU and on CUDA devices, if torch is loaded."""

    def __init__(self) -> None:
        torch = _loaded_torch()
        self._cpu = None if torch is None else torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch is not None and torch.cuda.is_initialized() else None

    def restore(self) -> None:
        torch = _loaded_torch()
        if torch is None:
            return
        if self._cpu is None:
            # Loaded inside the block: a program that loads torch finds its generator seeded from entropy.
            torch.seed()
            return
        torch.set_rng_state(self._cpu)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        else:
            # For devices that are not in use yet torch keeps the last seed: that is to be the user's again.
            torch.cuda.manual_seed_all(torch.initial_seed())


class _Scratch:
    """Generators of the kinds that are global, to see what seeding makes of them."""

    def __init__(self) -> None:
        self.python = random.Random()  # noqa: S311 - as the global one
        self._python_state = _PythonState(self.python)
        self.numpy = np.random.RandomState()
        self._numpy_state = _NumpyState()

    def states(self, trajectory_seed: int) -> tuple[Any, ...]:
        """Return what `generator_states` returns after `seed_generators`."""
        self.python.seed(derived_seed(trajectory_seed, Stream.PYTHON))
        self.numpy.seed(derived_seed(trajectory_seed, Stream.NUMPY))
        states: tuple[Any, ...] = self._python_state.read(), self._numpy_state.read(self.numpy._bit_generator)
        torch = _loaded_torch()
        if torch is None:
            return states
        devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
        for device in ("cpu", *(f"cuda:{number}" for number in devices)):
            generator = torch.Generator(device)
            generator.manual_seed(derived_seed(trajectory_seed, Stream.TORCH))
            states += (generator.get_state().numpy().tobytes(),)
        return states


_scratch = _Scratch()


def fresh_states(trajectory_seed: int) -> tuple[Any, ...]:
    """Return what `generator_states` returns right after `seed_generators`; seeds nothing."""
    return _scratch.states(trajectory_seed)


def drawn_states(fresh: tuple[Any, ...]) -> Any:
    """Return the states of the global generators, for `set_states`.

    Args:
        fresh: What `fresh_states` returns.

    Returns:
        None if nothing was drawn from them since they were seeded for the trajectory; otherwise the states of those
        that were drawn from, and None for the others.
    """
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


def set_states(trajectory_seed: int, states: Any) -> None:
    """Put the global generators into states that `drawn_states` returned; None seeds them for the trajectory."""
    seed_generators(trajectory_seed)
    if states is not None:
        put_states(states)


def put_states(states: Any) -> None:
    """Put those of the global generators that were drawn from into the states that `drawn_states` returned."""
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
