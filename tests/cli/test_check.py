"""`streamsampler check`, as a user runs it."""

import json
import signal

import pytest

from tests.cli.harness import SCRIPTED, Terminal, run

UNHURRIED = "--time-limit", "1000", "--step-timeout", "1000"


def check(*arguments, cwd):
    return run("check", "--import", "scripted", *arguments, cwd=cwd)


def test_what_fails_has_exit_code_1(home):
    ended = check("Scripted-v0", "--env-kwarg", "fail_at=3", "--json", *UNHURRIED, cwd=home)
    assert ended.returncode == 1
    assert all(line.startswith("checking: ") for line in ended.stderr.splitlines()), ended.stderr
    facts = json.loads(ended.stdout)
    assert facts["ok"] is False
    (failure,) = [each for each in facts["findings"] if each["verdict"] == "failure"]
    assert failure["name"] == "runs"
    assert "RuntimeError: the robot stumbled" in failure["what"]
    assert 'File "' in failure["details"]
    assert "streamsampler/checking" not in failure["details"]


@pytest.mark.slow
def test_a_table_on_a_terminal(home):
    arguments = ("Scripted-v0", "--import", "scripted", "--agent", "scripted:Repeating", *UNHURRIED)
    terminal = Terminal("check", *arguments, cwd=home)
    terminal.read_until(lambda text: "/6 checks" in text)
    assert terminal.finish() == 0
    table = terminal.text.rpartition("7/6 checks")[2]
    assert "Scripted-v0 with Repeating" in table
    assert "  pass  seed " in table
    assert "recommended: MultiprocessingSampler" in table
    assert "--workers " in table
    assert "0 failures" in table


# An agent that tells when it is asked for an action, and stays there: the first check does without the agent.
STAYING = """

def staying(observation):
    import threading
    with open("announcements", "w") as fifo:
        fifo.write("here")
    threading.Event().wait()
"""


@pytest.mark.slow
def test_ctrl_c_prints_what_was_found(home, announcements):
    (home / "scripted.py").write_text(SCRIPTED + STAYING)
    arguments = ("Scripted-v0", "--import", "scripted", "--agent", "scripted:staying", *UNHURRIED)
    terminal = Terminal("check", *arguments, cwd=home)
    announcements.wait()
    terminal.type("\x03")
    assert terminal.finish() == 128 + signal.SIGINT
    assert "Interrupted: what follows was found before." in terminal.text
    assert "  pass  runs " in terminal.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("Scripted-v1",), "Did you mean 'Scripted-v0'", marks=pytest.mark.slow),
        pytest.param(
            ("Scripted-v0", "--agent", "scripted:nothing"), "has no attribute 'nothing'", marks=pytest.mark.slow
        ),
        (("Scripted-v0", "--time-limit", "0"), "--time-limit"),
        (("Scripted-v0", "--vec-normalize", "x.pkl"), "--vec-normalize is for a model"),
    ],
)
def test_wrong_usage(home, arguments, message):
    ended = check(*arguments, cwd=home)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
