"""The modes of a user's own torch modules while a sampler asks them: evaluation, as in the copies that workers have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

__all__ = ["EvaluationMode"]


class EvaluationMode:
    """Puts the module of a `TorchAgent` into evaluation mode while a call runs, and back into its own mode afterwards.

    In training mode, dropout would make actions random, and batch normalisation would learn from what is sampled. The
    learner's module is in training mode between calls, as its owner left it.
    """

    def __init__(self) -> None:
        self._agent: Any = None
        self._is_running = False
        self._training: list[Any] = []  # the submodules that were in training mode

    def hold(self, agent: Any) -> Any:
        """Return an agent, whose module is the one to put into evaluation mode from now on."""
        self._agent = agent
        if self._is_running:
            self._evaluate()
        return agent

    def __enter__(self) -> None:
        self._is_running = True
        self._evaluate()

    def __exit__(self, *_: object) -> None:
        self._is_running = False
        training, self._training = self._training, []
        for module in training:
            module.training = True

    def _evaluate(self) -> None:
        for module in _modules_of(self._agent):
            self._training += [each for each in module.modules() if each.training]
            module.eval()


def _modules_of(agent: Any) -> Iterator[Any]:
    """Return the module of an agent that evaluates in workers, whatever it is wrapped into; nothing for others."""
    adapter = sys.modules.get("streamsampler.adapters.torch")  # loaded where there is such an agent
    kind = getattr(adapter, "TorchAgent", ())
    while agent is not None:
        if isinstance(agent, kind):
            yield agent.module
        agent = vars(agent).get("agent") if hasattr(agent, "__dict__") else None
