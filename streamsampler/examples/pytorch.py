"""PyTorch for the examples, or an error that names the extra that installs it."""

from __future__ import annotations

try:
    import torch
    from torch import nn
except ImportError as error:
    raise ImportError("this example needs PyTorch: pip install 'streamsampler[torch]'") from error

__all__ = ["nn", "torch"]
