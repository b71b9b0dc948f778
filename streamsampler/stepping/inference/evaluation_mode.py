"""Hold a learner's torch module in evaluation mode while a sampler uses it in the same process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from streamsampler.agents.policies import Policies


class EvaluationMode:
    """Puts the module of a `TorchAgent` into evaluation mode during a call, and into its own mode afterwards.

    In training mode, dropout would make actions random, and batch normalisation would learn from the samples.
    """

    def __init__(self) -> None:
        self._agent: Any = None
        self._is_running = False
        self._training: list[Any] = []  # the submodules that were in training mode

    def hold(self, agent: Any) -> Any:
        """Return an agent, and put its module into evaluation mode from now on."""
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
    """Return the modules of an agent and of agents wrapped in it, if they are TorchAgents."""
    if isinstance(agent, Policies):
        for each in agent.agents.values():
            yield from _modules_of(each)
        return
    adapter = sys.modules.get("streamsampler.agents.torch")  # loaded if such an agent exists
    kind = getattr(adapter, "TorchAgent", ())
    while agent is not None:
        if isinstance(agent, kind):
            yield agent.module
        agent = vars(agent).get("agent") if hasattr(agent, "__dict__") else None
