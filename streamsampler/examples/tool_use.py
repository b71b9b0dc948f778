"""Run a language model that uses tools, both in services: text in, text out.

    python -m streamsampler.examples.tool_use --in-flight 50 --seed 1
    python -m streamsampler.examples.tool_use --model 127.0.0.1:8001 --tools 127.0.0.1:8002

The environment asks a question, and runs the model's lines: tool calls, and finally an answer. Agent and environment
await HTTP answers with asyncio, so a single worker has many trajectories in flight. Trajectories are evaluated,
recorded in a file, and one is replayed with the same bits. Without addresses, two small services start on this machine.
The output depends neither on workers nor on trajectories in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import string
from pathlib import Path
from typing import Any

import click
import gymnasium
import numpy as np
from gymnasium.spaces import Text

import streamsampler
from streamsampler import MultiprocessingSampler
from streamsampler.examples.services import calculator, model, serving

TRAJECTORIES, IN_FLIGHT = 100, 50
LONGEST = 6  # timesteps of a trajectory at most
TOOLS = "add", "subtract", "multiply"


class RequestError(Exception):
    """A service refuses a request, with the reason."""


async def ask(address: str, path: str, text: str) -> str:
    """Send a text to a service, and return its answer.

    Raises:
        RequestError: The request is invalid.
        ConnectionError: The service did not answer.
    """
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        content = text.encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
        writer.write(head.encode() + content)
        answer = (await reader.read()).decode()
    finally:  # also after cancellation: no later request must read this answer
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    head, _, said = answer.partition("\r\n\r\n")
    match head.split()[1:2]:
        case ["200"]:
            return said
        case ["400"]:
            raise RequestError(said)
    raise ConnectionError(f"{address}{path}: {head or 'no answer'}")


class Calculations(gymnasium.Env[str, str]):
    """Ask for a calculation, and reward the right answer. An action is a line: "add 17 5", or finally "answer 22".

    The observation is the whole text so far, because a language model has no other memory.

    Args:
        tools: The address of the calculator service.
    """

    observation_space = Text(3_000, charset=string.printable)
    action_space = Text(100, charset=string.printable)

    def __init__(self, tools: str) -> None:
        self.tools = tools
        self.transcript, self.right = "", 0

    async def reset(  # type: ignore[override]
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        first, further, last = (int(number) for number in self.np_random.integers(2, 100, 3))
        self.transcript, self.right = f"What is ({first} + {further}) * {last}?", (first + further) * last
        return self.transcript, {}

    async def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        name, _, arguments = action.partition(" ")
        ends = name == "answer"
        is_right = ends and arguments == str(self.right)
        self.transcript += f"\n{action}"
        if not ends:
            self.transcript += await self.call(name, arguments)
        return self.transcript, float(is_right), ends, False, {"is_success": is_right} if ends else {}

    async def call(self, name: str, arguments: str) -> str:
        """Call a tool. Errors become part of the text, because a model may write anything."""
        if name not in TOOLS:
            return f" is no call of {', '.join(TOOLS)}"
        try:
            return f" = {await ask(self.tools, f'/{name}', arguments)}"
        except RequestError as error:
            return f" raised {error}"


class ModelAgent:
    """An agent that requests the next line from a model.

    Args:
        address: The address of the model's service.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.generator = np.random.default_rng()

    def reset(self, seed: int) -> None:
        """Start a trajectory. Its seed determines the model's draws, wherever the model runs."""
        self.generator = np.random.default_rng(seed)

    async def get_action(self, observation: str) -> tuple[str, dict[str, Any]]:
        request = {"prompt": observation, "seed": int(self.generator.integers(2**31))}
        return await ask(self.address, "/complete", json.dumps(request)), {}


@click.command(context_settings={"show_default": True})
@click.option("--model", "model_address", metavar="HOST:PORT", help="Address of the model's service.")
@click.option("--tools", "tools_address", metavar="HOST:PORT", help="Address of the tools' service.")
@click.option("--workers", default=1, type=click.IntRange(1), help="Worker processes.")
@click.option("--in-flight", default=IN_FLIGHT, type=click.IntRange(1), help="Trajectories in flight in each worker.")
@click.option("--seed", default=0, type=click.IntRange(0), help="Seed of all randomness.")
@click.option(
    "--trajectories", default=TRAJECTORIES, type=click.IntRange(1), help="Trajectories to evaluate and record."
)
@click.option(
    "--out", default="tool_use.npz", type=click.Path(dir_okay=False, path_type=Path), help="File for the trajectories."
)
def main(
    model_address: str | None, tools_address: str | None, workers: int, in_flight: int, seed: int, trajectories: int,
    out: Path,
) -> None:  # fmt: skip
    """Evaluate a model that uses tools, record trajectories, and run one of them again."""
    with contextlib.ExitStack() as services:
        agent: Any = ModelAgent(model_address or services.enter_context(serving(model)))
        env = functools.partial(Calculations, tools_address or services.enter_context(serving(calculator)))
        options: dict[str, Any] = {
            "n_workers": workers, "seed": seed, "max_episode_length": LONGEST, "worker_args": {"in_flight": in_flight},
        }  # fmt: skip
        click.echo(str(streamsampler.evaluate(agent, env, n_trajectories=trajectories, **options)))
        with MultiprocessingSampler(agent, env, **options) as sampler:
            batch = sampler.obtain_trajectories(trajectories)
        batch.save(out)
        worst = int(batch.returns.argmin())
        replayed = streamsampler.replay(out, int(batch.indices[worst]), agent=agent, env=env)
    click.echo(f"\n{batch.last_observations[worst]}\n\n{replayed}")


if __name__ == "__main__":
    main()
