"""`streamsampler bench`, as a user runs it."""

import json
import signal

import pytest

from tests.cli.harness import SCRIPTED, Terminal, run

SHORT = "--seconds", "0.1", "--workers", "1", "--vec", "1"


def bench(*arguments, cwd):
    return run("bench", "--import", "scripted", *arguments, cwd=cwd)


@pytest.mark.slow
def test_json(home):
    ended = bench("Scripted-v0", "--env-kwarg", "chatty=true", "--json", "--quiet", *SHORT, cwd=home)
    assert ended.returncode == 0
    facts = json.loads(ended.stdout)
    assert facts["environment"] == "Scripted-v0"
    assert facts["ways"][0]["call"] == "LocalSampler(agent, 'Scripted-v0', env_kwargs={'chatty': True})"
    assert facts["recommendation"]["name"] in [way["name"] for way in facts["ways"] if way["rates"]]


@pytest.mark.slow
def test_no_way_can_run(home):
    ended = bench("CartPole-v1", "--agent", "scripted:always_two", *SHORT, cwd=home)
    assert ended.returncode == 1
    assert "recommended" not in ended.stdout
    assert "the agent's action 2 is outside Discrete(2)" in " ".join(ended.stdout.split())


# In all processes but the command's own, an environment that tells when it is reset, and stays there.
STAYING = """
import threading
os.environ.setdefault("COMMAND", str(os.getpid()))


class Staying(Scripted):
    def reset(self, seed=None, options=None):
        if os.getpid() != int(os.environ["COMMAND"]):
            with open(self.announce, "w") as fifo:
                fifo.write("here")
            threading.Event().wait()
        return super().reset(seed=seed, options=options)


gym.register("Staying-v0", Staying)
"""


@pytest.mark.slow
def test_ctrl_c_prints_what_was_measured(home, announcements):
    (home / "scripted.py").write_text(SCRIPTED + STAYING)
    options = ("--env-kwarg", f"announce={announcements.path}", "--seconds", "1000", "--step-timeout", "1000")
    terminal = Terminal("bench", "Staying-v0", "--import", "scripted", *options, cwd=home, columns=120)
    announcements.wait()
    terminal.type("\x03")
    assert terminal.finish() == 128 + signal.SIGINT
    table = terminal.text.partition("Interrupted: what follows was measured before.")[2]
    assert "not measured" in table
    assert "recommended: LocalSampler" in table


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        pytest.param(("Scripted-v1",), 2, "Did you mean 'Scripted-v0'", marks=pytest.mark.slow),
        pytest.param(
            ("Scripted-v0", "--agent", "scripted:nothing"), 2, "has no attribute 'nothing'", marks=pytest.mark.slow
        ),
        (("Scripted-v0", "--seconds", "0"), 2, "--seconds"),
        pytest.param(
            ("Scripted-v0", "--env-kwarg", "fail_at=1"),
            1,
            "cannot be reset and stepped: RuntimeError: the robot",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_wrong_usage(home, arguments, code, message):
    ended = bench(*arguments, cwd=home)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert message in ended.stderr
