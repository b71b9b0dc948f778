"""A fork server that has imported what many modules of tests import.

Environments and agents of tests lie in modules of tests, which import pytest and most of the package: workers, which
unpickle them, took a fifth of the time of all tests for that.
"""

import importlib

from streamsampler.engines.launch.start_methods import has_processes

__all__ = ["serve", "use_in_tests"]

_IMPORTED = (
    *("pytest", "streamsampler.evaluation.evaluate", "streamsampler.samplers.processes"),
    "streamsampler.stepping.managers",
)


def use_in_tests() -> None:
    """Let the fork servers that this process starts be such ones, where there are any."""
    if has_processes():
        from streamsampler.engines.launch import start

        vars(start)["serve"] = serve


def serve(module: str, name: str, socket_fd: int) -> None:
    """Serve as `fork_server.serve` does."""
    for imported in _IMPORTED:
        importlib.import_module(imported)
    from streamsampler.engines.launch import fork_server

    fork_server.serve(module, name, socket_fd)
