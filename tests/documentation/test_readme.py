"""The README, and the guides in docstrings that it links to."""

import ast
import contextlib
import io
import pathlib
import pydoc
import re

import click
import pytest

from streamsampler.cli.app import cli

ROOT = pathlib.Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
LINKS = re.findall(r"\]\(([^)#]+)\)", README)
# Examples are programs, with options of their own; some import what is not installed with the package.
GUIDES = sorted({link for link in LINKS if link.endswith(".py") and not link.startswith("streamsampler/examples/")})


def guide(path):
    return ast.get_docstring(ast.parse((ROOT / path).read_text()))


def test_it_can_be_read_in_one_sitting():
    assert len(README.splitlines()) <= 180


OF_OTHERS = {"--address", "--head", "--min-nodes", "--num-cpus"}  # of `ray`
OF_OTHERS |= {"--nodes", "--ntasks-per-node", "--cpus-per-task", "--exclusive"}  # of SLURM


def test_its_links_lead_to_files():
    files = [link for link in LINKS if "://" not in link]
    assert len(files) > 10
    assert [link for link in files if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("path", GUIDES)
def test_each_guide_is_a_docstring_that_pydoc_prints(path):
    module = path.removesuffix("/__init__.py").removesuffix(".py").replace("/", ".")
    assert guide(path).splitlines()[0] in pydoc.render_doc(module, renderer=pydoc.plaintext)  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["README.md", *GUIDES])
def test_its_options_are_options_of_the_command(path):
    text = README if path == "README.md" else guide(path)
    known = {
        name
        for command in [cli, *cli.commands.values()]
        for parameter in command.get_params(click.Context(command))
        for name in parameter.opts
    }
    # Of what is written as code, but for the help of other programs.
    code = " ".join(re.findall(r"`+[^`]+`+", text))
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)) - known - OF_OTHERS == set()


@pytest.mark.slow
def test_what_the_first_command_prints_is_what_it_says():
    shown = re.search(r"The first command prints [^\n]*:\n\n```text\n(.*?)```", README, re.DOTALL).group(1)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit):
        cli(["sample", "CartPole-v1", "--num-samples", "100000", "--seed", "1", "--workers", "0"])
    facts = {line[:12].strip(): line[14:] for line in output.getvalue().splitlines()}
    for line in shown.splitlines():
        name, value = line[:12].strip(), line[14:]
        if name in ("environment", "agent", "trajectories", "timesteps", "return", "length", "seed"):
            assert facts[name] == value


def test_its_first_snippet_runs(capsys):
    snippet = re.search(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE).group(1)
    exec(snippet.replace("10_000", "500").replace("(100)", "(3)"), {})
    assert capsys.readouterr().out.count("\n") == 4
