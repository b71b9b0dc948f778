"""Run Gymnasium's own tests of `AsyncVectorEnv` with `EnvManager(…, on_failure="raise").vector_env()` in its place.

They are in Gymnasium's repository, and not in its package: `python tests/stepping/with_gymnasium.py FOLDER`, where the
folder is a checkout of about the version that is installed. Each test runs twice. Those count that make such an
environment and pass with Gymnasium's; those that do not pass with this library's are named, with the reason.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import gymnasium.vector.async_vector_env as gymnasiums
import pytest
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

FILES = ["async_vector_env", "autoreset_mode", "observation_mode", "vector_env", "vector_env_info"]
SEEDS = "each episode has a seed of its own, derived from the first one's, where Gymnasium's environments draw on"
TEXT = "another text: the error is of the same class"
REASONS = {
    "test_autoreset_disabled": SEEDS,
    "test_autoreset_next_step": SEEDS,
    "test_autoreset_within_step": SEEDS,
    "test_vector_env_equal": SEEDS,
    "test_random_seeding_basics": SEEDS,
    "test_invalid_observation_mode": TEXT,
    "test_obs_mode_same_different_spaces": TEXT,
    "test_partial_reset_failure": TEXT,
    "test_reset_out_of_order_async_vector_env": TEXT,
    "test_step_out_of_order_async_vector_env": TEXT,
    "test_action_count_compatibility": "the error is an ActionError, which is no ValueError",
    "test_async_vector_subenv_error": "the error is a RolloutError, which names the environment and has the original",
    "test_custom_space_async_vector_env_shared_memory": "any space works: nothing is refused",
    "test_no_copy_async_vector_env": "with copy=False observations are read-only views",
    "test_step_timeout_async_vector_env": "actions arrive as they are recorded: of the dtype of their space",
}
OURS, FOUND = "WITH_STREAMSAMPLER", "FOUND"
"""Variables of the environment: whether this library's is put in the place of Gymnasium's, and where to say results."""


class Swapped(AsyncVectorEnv):
    """Counts itself for the test that makes it; may be this library's."""

    made_by: ClassVar[set[str]] = set()
    test = ""

    def __new__(cls, env_fns: Any, *args: Any, **options: Any) -> Any:
        """Return this library's, where that is asked for."""
        cls.made_by.add(Swapped.test)
        return _ours(env_fns, *args, **options) if OURS in os.environ else super().__new__(cls)

    def __del__(self) -> None:
        """Close it as Gymnasium does, unless it was never made."""
        if OURS not in os.environ:
            super().__del__()


def _ours(
    env_fns: Any, shared_memory: bool = True, copy: bool = True, *, observation_mode: Any = "same",
    autoreset_mode: Any = AutoresetMode.NEXT_STEP, **_: Any,
) -> Any:  # fmt: skip
    from streamsampler import EnvManager

    del shared_memory
    n_workers = min(2, len(env_fns))
    options: dict[str, Any] = {"n_workers": n_workers, "autoreset": autoreset_mode, "copy": copy}
    return EnvManager(list(env_fns), on_failure="raise", **options).vector_env(observation_mode=observation_mode)


class Counts:
    """Counts tests, by what became of them."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}

    def pytest_runtest_setup(self, item: Any) -> None:
        """Note the test."""
        Swapped.test = item.nodeid

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note its outcome."""
        if (report.when == "call" or report.failed) and self.outcomes.get(report.nodeid) != "failed":
            self.outcomes[report.nodeid] = report.outcome


def run() -> int:
    """Run the tests in this process, and write what became of those that made such an environment."""
    gymnasium.vector.AsyncVectorEnv = gymnasiums.AsyncVectorEnv = Swapped  # type: ignore[misc]
    counts = Counts()
    pytest.main(["-q", "-p", "no:cacheprovider", *(f"tests/vector/test_{file}.py" for file in FILES)], [counts])
    found = {test: outcome for test, outcome in counts.outcomes.items() if test in Swapped.made_by}
    Path(os.environ[FOUND]).write_text(json.dumps(found))
    return 0


def outcomes(folder: str, **more: str) -> dict[str, str]:
    """Return what became of Gymnasium's tests, which run in another process."""
    with tempfile.TemporaryDirectory() as place:
        variables = {**os.environ, FOUND: f"{place}/found", "PYTHONPATH": str(Path(__file__).parents[2]), **more}
        command = [sys.executable, str(Path(__file__).resolve())]
        subprocess.run(command, cwd=folder, env=variables, stdout=subprocess.DEVNULL, check=True)
        found: dict[str, str] = json.loads(Path(f"{place}/found").read_text())
        return found


def main() -> int:
    """Compare; return 1 if a test fails without a reason."""
    if FOUND in os.environ:
        return run()
    theirs, ours = outcomes(sys.argv[1]), outcomes(sys.argv[1], **{OURS: "1"})
    counted = [test for test, outcome in theirs.items() if outcome == "passed"]
    failed = Counter(test.split("::")[-1].split("[")[0] for test in counted if ours.get(test) != "passed")
    print(f"{len(counted) - failed.total()} of {len(counted)} tests pass")
    for name, n in sorted(failed.items()):
        print(f"{n:3} {name}: {REASONS.get(name, 'NO REASON')}")
    return int(not failed.keys() <= REASONS.keys())


if __name__ == "__main__":
    sys.exit(main())
