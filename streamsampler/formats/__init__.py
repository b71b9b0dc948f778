"""Export of trajectories and evaluations to the formats of other libraries, each an extra.

Guide: `streamsampler/docs/storage-and-formats.md`.
"""

from streamsampler.formats.export import export, save_evaluations
from streamsampler.formats.tables import Frames, to_pandas, to_tensordict

__all__ = ["Frames", "export", "save_evaluations", "to_pandas", "to_tensordict"]
