"""A proof that is stopped leaves nothing running."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from tests.faults.test_ends import gone

PROOF = """
from tests.faults.child_processes import processes
from tests.proofs import ends

def never(run):
    run.await_events("made", 2)
    print(run.process.pid, *processes(run.folder), flush=True)
    run.await_events("something else", 1)

ends.AT_ONCE = 1
ends.ENDS = {str(number): ends.End("kill", never, 0.0, 0, 2, 0) for number in range(5)}
ends.prove("short")
"""


@pytest.mark.slow
def test_a_proof_of_ends_that_is_terminated_ends_the_programs_that_it_started():
    pids: list[int] = []
    with subprocess.Popen([sys.executable, "-c", PROOF], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as proof:
        try:
            assert proof.stdout is not None
            pids += map(int, proof.stdout.readline().split())
            proof.terminate()
            pids += map(int, proof.communicate(timeout=120)[0].split())
            assert proof.returncode == 128 + signal.SIGTERM
            assert len(pids) > 1
            assert gone(pids)
        finally:
            proof.kill()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
