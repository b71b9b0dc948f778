"""Export of trajectories and evaluations to the formats of other libraries, each an extra.

Guide: `streamsampler/docs/storage-and-formats.md`.
"""

from streamsampler.formats.evaluations import save_evaluations
from streamsampler.formats.export import export
from streamsampler.formats.frames import Frames, to_pandas
from streamsampler.formats.tensors import to_tensordict

__all__ = ["Frames", "export", "save_evaluations", "to_pandas", "to_tensordict"]
