"""The example of a model that uses tools: text in, text out, and services that answer, refuse, or do not answer."""

import asyncio
import functools
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from streamsampler import LocalSampler, RolloutError, load
from streamsampler.examples.services import calculator, model, serving
from streamsampler.examples.tool_use import Calculations, ModelAgent, RequestError, ask, main


def printed(*arguments: str) -> str:
    outcome = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome.stdout


def agent_of(address: str) -> Any:
    return ModelAgent(address)


@pytest.mark.slow
def test_it_evaluates_records_and_replays_whatever_is_in_flight(tmp_path: Path) -> None:
    out, again = tmp_path / "one.npz", tmp_path / "two.npz"
    few = ("--trajectories", "20", "--seed", "3")
    text = printed(*few, "--in-flight", "10", "--out", str(out))
    assert printed(*few, "--in-flight", "1", "--workers", "2", "--out", str(again)) == text
    assert "success rate (at the end)" in text
    assert text.endswith("the same as recorded, bit for bit: observations, actions, rewards and its end\n")
    batch = load(out)
    assert batch == load(again)
    assert 0 < batch.returns.sum() < len(batch)
    for trajectory in batch:
        question, *calls, answer = trajectory.last_observations[0].splitlines()
        first, further, last = (int(word) for word in question.translate(str.maketrans("(+)*?", "     ")).split()[2:])
        assert [call.split(" = ")[0] for call in calls] == trajectory.actions[:-1].tolist()
        assert (answer == f"answer {(first + further) * last}") == bool(trajectory.returns[0])


def test_help_and_wrong_input() -> None:
    text = printed("--help")
    assert all(option in text for option in ("--in-flight", "--tools", "--model", "[default: 50"))
    for arguments, words in (
        (("--in-flight", "0"), "Invalid value for '--in-flight'"),
        (("--workers", "many"), "'many'"),
        (("--out", "/"), "is a directory"),
    ):
        outcome = CliRunner().invoke(main, arguments)
        assert (outcome.exit_code, words in outcome.output, "Traceback" in outcome.output) == (2, True, False)


def test_a_model_reads_what_is_wrong_with_its_calls() -> None:
    lines = iter(["divide 1 0", "add one two", "\nadd", "answer"])

    def writer(path: str, text: str) -> str:
        return next(lines)

    with serving(writer) as model_address, serving(calculator) as tools:
        env, agent = functools.partial(Calculations, tools), agent_of(model_address)
        with LocalSampler(agent, env, seed=1, check=None, worker_args={"in_flight": 1}) as sampler:
            batch = sampler.obtain_trajectories(1)
    assert batch.last_observations[0].splitlines()[1:] == [
        "divide 1 0 is no call of add, subtract, multiply",
        "add one two raised ValueError: invalid literal for int() with base 10: 'one'",
        "",
        "add is no call of add, subtract, multiply",
        "answer",
    ]
    assert batch.returns.tolist() == [0.0]


def test_a_model_that_refuses_and_services_that_are_gone() -> None:
    def full(path: str, text: str) -> str:
        raise RuntimeError(f"no room at {path}")

    with serving(full) as address, serving(calculator) as tools:
        env, agent = functools.partial(Calculations, tools), agent_of(address)
        with LocalSampler(agent, env, seed=1, check=None) as sampler:
            with pytest.raises(RolloutError, match=r"choosing an action.*no room at /complete") as raised:
                sampler.obtain_trajectories(1)
            assert isinstance(raised.value.__cause__, RequestError)
    with LocalSampler(agent, env, seed=1, check=None) as sampler:
        with pytest.raises(RolloutError) as raised:
            sampler.obtain_trajectories(1)
        assert isinstance(raised.value.__cause__, ConnectionError)


def test_a_request_that_is_cancelled_closes_its_connection() -> None:
    async def request() -> None:
        has_come, is_closed = asyncio.Event(), asyncio.Event()

        async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            has_come.set()
            assert await reader.read() == b"1 2"  # all that comes until the caller closes
            is_closed.set()
            writer.close()

        async with await asyncio.start_server(never_answer, "127.0.0.1") as server:
            host, port = server.sockets[0].getsockname()
            asking = asyncio.create_task(ask(f"{host}:{port}", "/add", "1 2"))
            await has_come.wait()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            await is_closed.wait()

    asyncio.run(request())


def test_the_model_answers_a_request_always_alike() -> None:
    with serving(model) as address:

        async def answers(seed: int) -> list[str]:
            request = f'{{"prompt": "What is (1 + 2) * 3?\\nadd 1 2 = 3\\nmultiply 3 3 = 9", "seed": {seed}}}'
            return await asyncio.gather(*(ask(address, "/complete", request) for _ in range(3)))

        seen = [asyncio.run(answers(seed)) for seed in range(40)]
    assert all(len(set(each)) == 1 for each in seen)
    assert {each[0] for each in seen} == {"answer 9", "answer 10"}
