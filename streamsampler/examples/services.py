"""Services on this machine for the example `tool_use`: a calculator, and a stand-in for a language model.

    with serving(calculator) as address:
        ...  # answers HTTP requests to http://{address}/add

Each serves many requests at the same time, after a delay, on an event loop in its own thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import operator
import re
import threading
from collections.abc import Callable, Iterator

import numpy as np

Answer = Callable[[str, str], str]
"""Returns the answer to a request from its path and its text. Exceptions are sent as answers, too."""

DELAY = 0.01  # seconds before an answer
TOOLS = {"/add": operator.add, "/subtract": operator.sub, "/multiply": operator.mul}
ERRORS = 0.1  # share of wrong answers by the model


def calculator(path: str, text: str) -> str:
    """Calculate with two integers: "/add" with "17 5" is "22"."""
    one, other = map(int, text.split())
    return str(TOOLS[path](one, other))


def model(path: str, text: str) -> str:
    """Continue a prompt by a line, like a language model trained to use a calculator.

    The request is JSON. Its "seed" determines the errors, so equal requests have equal answers.
    """
    del path
    request = json.loads(text)
    first, further, last = map(int, re.findall(r"-?\d+", request["prompt"].splitlines()[0]))
    results = re.findall(r"= (-?\d+)$", request["prompt"], re.MULTILINE)
    error = np.random.default_rng(request["seed"]).random() < ERRORS
    if not results:
        return f"add {first} {further}"
    if len(results) == 1:
        return f"multiply {results[0]} {last}"
    return f"answer {int(results[-1]) + error}"


async def _respond(answer: Answer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a connection's single request, and close it."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # from cancelled callers
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"(?i)content-length: *(\d+)", head)
            text = (await reader.readexactly(int(length[1]) if length else 0)).decode()
            await asyncio.sleep(DELAY)
            try:
                status, said = "200 OK", answer(head.split()[1], text)
            except Exception as error:  # reported to the caller
                status, said = "400 Bad Request", f"{type(error).__name__}: {error}"
            content = said.encode()
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
        finally:
            writer.close()
            await writer.wait_closed()


@contextlib.contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Serve inside the block, and yield the address, "HOST:PORT"; at the end all connections are closed.

    Args:
        answer: Returns the answer to a request; called for many requests at the same time.
    """
    loop = asyncio.new_event_loop()
    starting = asyncio.start_server(functools.partial(_respond, answer), "127.0.0.1", backlog=1_000)
    server = loop.run_until_complete(starting)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        host, port = server.sockets[0].getsockname()
        yield f"{host}:{port}"
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(_end(server))
        loop.close()


async def _end(server: asyncio.Server) -> None:
    server.close()
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
