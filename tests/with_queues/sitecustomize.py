"""Makes `queues` the default engine, in every Python process whose PYTHONPATH has this folder.

START_METHOD, in the environment, is the default start method then.
"""

import os

from streamsampler.engines import registry
from streamsampler.engines.launch import start_methods

registry.has_processes = lambda: False  # type: ignore[attr-defined, assignment]
start_methods.default_start_method = lambda: os.environ["START_METHOD"]  # type: ignore[assignment, return-value]
