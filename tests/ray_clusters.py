"""Start the head of a Ray cluster on this machine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def start_head(**options: Any) -> Any:
    """Return a `ray.cluster_utils.Cluster` with a head that was given these options."""
    from ray.cluster_utils import Cluster

    # Ray writes the address of the last cluster there, and makes the folder only where its own files are to be.
    (Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray").mkdir(exist_ok=True)
    return Cluster(initialize_head=True, head_node_args=options)
