"""Deaths, hangs and ends on the engine `queues`, with every start method; what it cannot do is named.

All fault tests by all start methods are tried by the proof `contracts`.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "with_queues"
FILES = ["faults", "ends"]
# What goes on in the sampler's process, or in a worker that runs, is the same however the worker was started.
OTHERS = ["unneeded_failures", "surroundings"]
EXCEPTIONS = {
    "faults": [
        "a_limit_of_memory_that_no_worker_can_keep_gives_a_warning",
        "a_death_at_a_place_of_the_loop",  # places of the other engine
    ],
    "ends": [
        # They are about the other engine's own functions; tests/engines/test_queues.py has the first for this engine.
        "close_while_a_worker_is_being_started",
        "workers_start_side_by_side_and_not_all_at_once",
        "what_ends_while_its_worker_lives_leaves_no_zombie",  # without watchdogs
    ],
    "surroundings": [
        "in_a_daemonic_process",  # Python forbids its children
        "in_a_process_with_threads_of_torch",  # where a fork is unsafe
        "a_wall_clock_that_is_set_back_and_forth",  # with `max_worker_memory`
        "workers_see_variables_and_the_working_directory_as_they_are_now",  # has its own cases for this engine
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_the_default_tier(method):
    left_out = [f"tests/faults/test_{file}.py::test_{name}" for file, found in EXCEPTIONS.items() for name in found]
    options = [option for name in left_out for option in ("--deselect", name)]
    names = [*FILES, *(OTHERS if method == "fork" or "ALL_BY_ALL" in os.environ else ())]
    run(method, [f"tests/faults/test_{name}.py" for name in names], options)


# Environments that are stepped from the parent, for a sampler and by managers.
STEPPED = {
    "fork": [
        *("inference", "inference_fragments", "inference_masks", "inference_replays"),
        *("bad_input", "failures", "managers", "parameters", "processes", "random_programs", "restores"),
    ],
    "spawn": ["inference", "inference_fragments", "failures"],
    "forkserver": ["inference", "inference_fragments", "failures"],
}
# They are about the other engine's own functions.
OF_PIPES = [
    "tests/stepping/test_inference.py::test_there_are_no_process_ids_before_processes",
    "tests/stepping/test_failures.py::test_a_call_that_is_left_in_the_middle",
    "tests/stepping/test_processes.py::test_a_worker_gives_all_results_of_a_step_of_all_together",
]


@pytest.mark.slow
@pytest.mark.parametrize("method", STEPPED)
def test_the_default_tier_of_environments_that_are_stepped_from_here(method):
    options = [option for name in OF_PIPES for option in ("--deselect", name)]
    run(method, [f"tests/stepping/test_{name}.py" for name in STEPPED[method]], options)


def run(method, files, options):
    """Run tests on the engine `queues`."""
    path = os.pathsep.join((str(FOLDER), os.getcwd()))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *options, *files],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "START_METHOD": method},
    )
    assert done.returncode == 0, done.stdout[-5000:]
