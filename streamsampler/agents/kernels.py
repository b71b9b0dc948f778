"""Call the layers of a torch network directly: for small networks, torch's dispatch costs as much as the layers.

`nn.Sequential` calls each layer by `nn.Module.__call__`, which looks for hooks and calls `forward`, which looks up
parameters and calls a kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as _modules

__all__ = ["LayerCalls"]

Step = Callable[[Any], Any]

_ACTIVATIONS: dict[type, Step] = {nn.Tanh: torch.tanh, nn.Sigmoid: torch.sigmoid, nn.ReLU: torch.relu}
_PARAMETERS = {"weight", "bias"}
_SHADOWING = {"forward", "_compiled_call_impl", *_PARAMETERS}
"""Instance attributes that change a call's effect."""


class LayerCalls:
    """Calls a module, and the layers of an `nn.Sequential` without `nn.Module.__call__`; results are equal.

    Only torch's own classes (no subclasses) are called directly, without hooks, parametrisations, compilation, or an
    instance's `forward`; others as modules. Later changes are respected: parameters and attributes are looked up in
    each call; layers, classes and hooks are compared with the first call's. Only a method of a torch class replaced
    after the first call goes unnoticed.
    """

    def __init__(self) -> None:
        self._plan(None)

    def __call__(self, module: Any, inputs: Any) -> Any:
        """Return `module(inputs)`."""
        if module is not self._module or (self._dicts and self._is_changed()):
            self._plan(module)
        for step in self._steps:
            inputs = step(inputs)
        return inputs

    def _plan(self, module: Any) -> None:
        self._module, self._steps = module, []
        # Of layers called directly: dicts of hooks, which must stay empty; dicts of attributes, which must keep their
        # lengths; and dicts of child layers.
        self._hooks: list[dict[Any, Any]] = [_modules._global_forward_hooks, _modules._global_forward_pre_hooks]
        self._dicts: list[dict[str, Any]] = []
        self._children: list[dict[str, Any]] = []
        if any(self._hooks):
            self._steps.append(module)
        else:
            self._add(module)
        self._lengths, self._inside = [*map(len, self._dicts)], self._layers_inside()
        self._layers = [module, *self._inside]
        self._classes = [*map(type, self._layers)]

    def _is_changed(self) -> bool:
        return (
            any(self._hooks)
            or [*map(len, self._dicts)] != self._lengths
            or [*map(type, self._layers)] != self._classes
            or self._layers_inside() != self._inside
        )

    def _layers_inside(self) -> list[Any]:
        return [layer for children in self._children for layer in children.values()]

    def _add(self, layer: Any) -> None:
        if not _is_plain(layer):
            self._steps.append(layer)
            return
        self._hooks += (layer._forward_hooks, layer._forward_pre_hooks)
        self._dicts += (vars(layer), layer._parameters)
        if type(layer) is nn.Sequential:
            self._children.append(layer._modules)
            for child in layer._modules.values():
                self._add(child)
        else:
            self._steps.append(_step_of(layer))


def _is_plain(layer: Any) -> bool:
    """Return whether a call of a layer runs only its class's `forward` in torch."""
    cls = type(layer)
    return (
        cls.__module__.startswith("torch.nn.modules.")
        # torch's own functions, not a patch of another library.
        and getattr(cls.forward, "__globals__", None) is vars(sys.modules[cls.__module__])
        and getattr(cls.__call__, "__globals__", None) is vars(_modules)
        and not (layer._forward_hooks or layer._forward_pre_hooks)
        and _SHADOWING.isdisjoint(vars(layer))
    )


def _step_of(layer: Any) -> Step:
    """Return a kernel that equals a plain layer's call, or the layer's `forward`."""
    cls = type(layer)
    if cls is nn.Linear and layer._parameters.keys() == _PARAMETERS:
        parameters, linear = layer._parameters, nn.functional.linear
        return lambda inputs: linear(inputs, parameters["weight"], parameters["bias"])
    if cls in _ACTIVATIONS and not getattr(layer, "inplace", False):
        return _ACTIVATIONS[cls]
    forward: Step = layer.forward
    return forward
