"""Makes `queues` the default engine, in every Python process whose PYTHONPATH has this folder.

START_METHOD, in the environment, is the default start method then.
"""

import os

from streamsampler.engines.launch import start_methods
from streamsampler.engines.registry import ENGINES

ENGINES["processes"] = ENGINES.pop("processes")  # the first one is the default
start_methods.default_start_method = lambda: os.environ["START_METHOD"]  # type: ignore[assignment, return-value]
