"""Services on this machine for the example `tool_use`: a calculator, and a stand-in for a language model.

    with serving(calculator) as address:
        ...  # answers HTTP requests to http://{address}/add

Each answers many requests at the same time, after a delay, on an event loop in a thread of its own.
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
"""Returns the text that answers a request: takes its path and its text. What it raises is an answer, too."""

DELAY = 0.01  # seconds until an answer begins
TOOLS = {"/add": operator.add, "/subtract": operator.sub, "/multiply": operator.mul}
ERRORS = 0.1  # the share of the model's answers that are wrong


def calculator(path: str, text: str) -> str:
    """Calculate with two integers: "/add" with "17 5" is "22"."""
    one, other = map(int, text.split())
    return str(TOOLS[path](one, other))


def model(path: str, text: str) -> str:
    """Write the next line of a prompt, as a language model would that has learnt to use a calculator.

    The request is JSON. Its "seed" decides about the errors: the same request has the same answer.
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
    """Answer the one request of a connection, and close it."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):  # from callers that were cancelled
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"(?i)content-length: *(\d+)", head)
            text = (await reader.readexactly(int(length[1]) if length else 0)).decode()
            await asyncio.sleep(DELAY)
            try:
                status, said = "200 OK", answer(head.split()[1], text)
            except Exception as error:  # the caller is to read it
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
        answer: Answers the requests, many of them at the same time.
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
    """Stop to serve, when all requests are answered."""
    server.close()
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
