"""PyTorch for the examples, or an error with the command to install it."""

from __future__ import annotations

from streamsampler.core.extras import missing

try:
    import torch
    from torch import nn
except ImportError as error:
    raise missing("this example", "torch", error) from error

__all__ = ["nn", "torch"]
