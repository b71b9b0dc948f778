"""The README, and the guides, which are docstrings of modules: what they leave out, and whether it is true."""

import ast
import contextlib
import functools
import inspect
import io
import os
import pathlib
import re
import subprocess
import sys
import warnings
from typing import Any

import click
import pytest

import streamsampler
from streamsampler.cli.app import cli
from tests.documentation import pages
from tests.documentation.site import Site

PACKAGE = pathlib.Path(streamsampler.__file__).parent
ROOT = PACKAGE.parent
README = (ROOT / "README.md").read_text()
# Public for other rooms of the package, not for users.
FOR_OTHER_ROOMS = {"check_renders", "count_as_called", "put_back_filters", "refuse_lag", "run_again"}
OURS = {
    "sampler": streamsampler.MultiprocessingSampler,
    "batch": streamsampler.TrajectoryBatch,
    "manager": streamsampler.EnvManager,
}
OF_OTHERS = {"--address", "--head", "--min-nodes", "--num-cpus"}  # of `ray`
OF_OTHERS |= {"--nodes", "--ntasks-per-node", "--cpus-per-task", "--exclusive"}  # of SLURM


@functools.cache
def docstrings():
    """Return the docstring of each module, by its full name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.get_docstring(ast.parse(path.read_text())) or ""
    return found


def guides():
    """Return the docstrings of modules that have code or a table."""
    return {name: text for name, text in docstrings().items() if re.search(r"^(```|\|---)", text, re.MULTILINE)}


def methods(cls):
    return {name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))} - FOR_OTHER_ROOMS


# ---------------------------------------------------------------------- the README


def test_the_readme_can_be_read_in_one_sitting_and_its_links_lead_to_files():
    assert len(README.splitlines()) <= 180
    files = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert len(files) > 10
    assert [link for link in files if not (ROOT / link).exists()] == []


def test_options_are_options_of_the_command():
    known = {
        name
        for command in [cli, *cli.commands.values()]
        for parameter in command.get_params(click.Context(command))
        for name in parameter.opts
    }
    linked = [
        ".".join(pathlib.PurePath(link.removesuffix("/__init__.py").removesuffix(".py")).parts)
        for link in re.findall(r"\]\((streamsampler/[^)#]+\.py)\)", README)
        if "/examples/" not in link  # programs, with options of their own
    ]
    for text in (README, *(docstrings()[name] for name in linked)):
        # Of what is written as code, but for the help of other programs.
        code = " ".join(re.findall(r"`+[^`]+`+", text))
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)) - known - OF_OTHERS == set()


@pytest.mark.slow
def test_what_the_first_command_prints_is_what_the_readme_says():
    shown = re.search(r"The first command prints [^\n]*:\n\n```text\n(.*?)```", README, re.DOTALL).group(1)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()), pytest.raises(SystemExit):
        cli(["sample", "CartPole-v1", "--num-samples", "100000", "--seed", "1", "--workers", "0"])
    facts = {line[:12].strip(): line[14:] for line in output.getvalue().splitlines()}
    for line in shown.splitlines():
        name, value = line[:12].strip(), line[14:]
        if name in ("environment", "agent", "trajectories", "timesteps", "return", "length", "seed"):
            assert facts[name] == value


def test_the_first_snippet_runs(capsys):
    snippet = re.search(r"^```python\n(.*?)^```$", README, re.DOTALL | re.MULTILINE).group(1)
    exec(snippet.replace("10_000", "500").replace("(100)", "(3)"), {})
    assert capsys.readouterr().out.count("\n") == 4


# ---------------------------------------------------------------------- the guides


def test_every_public_name_and_method_is_in_a_guide():
    text = "\n".join(docstrings().values())
    classes = (streamsampler.MultiprocessingSampler, streamsampler.TrajectoryBatch, streamsampler.TrajectoryFolder)
    names = set(streamsampler.__all__).union(*map(methods, classes)) - {"__version__"}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)] == []


def called(call):
    """Return the signature of what is called, as it is called; None for what is not looked up here."""
    if isinstance(call.func, ast.Name):
        function = getattr(streamsampler, call.func.id, None)
        return function and inspect.signature(function)
    owner = OURS.get(getattr(call.func.value, "id", ""))
    return owner and inspect.signature(getattr(owner, call.func.attr).__get__(object()))


def test_our_calls_that_stand_next_to_those_of_other_libraries_can_be_made():
    rows = re.findall(r"^\|.*\| (.*) \|$", guides()["streamsampler.examples.coming_from"], re.MULTILINE)
    n_called = 0
    for code in [code for cell in rows for code in re.findall(r"`([^`]+\([^`]*\))`", cell)]:
        # Arguments alone are those of a sampler.
        whole = f"MultiprocessingSampler(agents, envs, {code})" if re.match(r"\w+=", code) else code
        call: Any = ast.parse(whole, mode="eval").body
        if (signature := called(call)) is not None:
            signature.bind(*call.args, **{keyword.arg: keyword.value for keyword in call.keywords})
            n_called += 1
    assert n_called > 25


def test_the_table_of_ml_agents_knows_of_several_agents():
    page = guides()["streamsampler.examples.coming_from"]
    table = page.partition("\nML-Agents\n---")[2].partition("```")[0]
    assert "streamsampler.workers.several" in table
    assert "not here" not in table


@pytest.mark.slow
@pytest.mark.extras
def test_the_five_steps_print_what_the_start_page_says(tmp_path):
    steps = streamsampler.__doc__.partition("\nFive steps")[2].partition("\nGuides by task")[0]
    (program,) = re.findall(r"^```python\n(.*?)^```$", steps, re.DOTALL | re.MULTILINE)
    (tmp_path / "cartpole.py").write_text(program)
    commands = [line for block in re.findall(r"^```sh\n(.*?)^```$", steps, re.DOTALL | re.MULTILINE)
                for line in block.splitlines() if not line.startswith("pip ")]  # fmt: skip
    said = re.findall(r"^```text\n(.*?)^```$", steps, re.DOTALL | re.MULTILINE)
    runs = [[*line.replace("streamsampler", "-m streamsampler", 1).split()] for line in commands]
    runs.insert(2, ["cartpole.py"])
    assert len(runs) == len(said) == 5
    env = {**os.environ, "PYTHONPATH": str(ROOT)}  # where the package is not installed
    for arguments, text in zip(runs, said, strict=True):
        run = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        printed = run.stdout.splitlines()
        # Numbers of a network may differ on another kind of processor, times differ anyway.
        labels = [re.split(r"  +|\d", line.strip())[0] for line in text.splitlines() if line.strip() != "…"]
        assert [label for label in labels if not any(line.strip().startswith(label) for line in printed)] == []
        if arguments[0] == "cartpole.py":
            assert float(printed[-1].split("mean return ")[1].split()[0]) > 300


# ---------------------------------------------------------------------- the pages of the API


@pytest.mark.extras
def test_all_that_users_import_and_read_is_on_a_page():
    import pdoc

    pdoc.render.configure(docformat="google")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `build` looks at them
        site = Site()
    values = [getattr(streamsampler, name) for name in streamsampler.__all__ if name not in ("__version__", "errors")]
    assert [it for it in values if (it.__module__, it.__qualname__) not in site.homes] == []
    assert sorted(guides().keys() - site.modules.keys()) == []
    start = site.modules["streamsampler"].docstring
    others = site.modules.keys() - {"streamsampler"}
    assert [page for page in others if f"({page.replace('.', '/')}.html)" not in start] == []
    (sampler,) = site.modules["streamsampler.MultiprocessingSampler"].members.values()
    shown = {doc.name for doc in sampler.own_members}
    assert methods(streamsampler.MultiprocessingSampler) | {"obtain_fragments"} <= shown, "with what it inherits"


@pytest.mark.slow
@pytest.mark.extras
def test_no_link_of_a_page_leads_nowhere(tmp_path):
    assert pages.build(tmp_path) == []


def test_names_in_backticks_become_links_and_what_leads_nowhere_is_found(tmp_path):
    here, errors = tmp_path / "streamsampler.html", tmp_path / "streamsampler" / "errors.html"
    here.touch()
    texts = {here: '<section id="Sampler"></section>', errors: '<section id="UsageError"></section>'}
    found = pages.places(tmp_path, texts, {})
    text = "<code>Sampler</code> <code>streamsampler.errors.UsageError</code> <code>errors(1)</code> <code>other</code>"
    assert pages.link_names(here, text, found) == (
        '<code><a href="#Sampler">Sampler</a></code> '
        '<code><a href="streamsampler/errors.html#UsageError">streamsampler.errors.UsageError</a></code> '
        '<code><a href="streamsampler/errors.html">errors</a>(1)</code> <code>other</code>'
    )
    assert '<a href="../streamsampler.html#Sampler">' in pages.link_names(errors, "<code>Sampler</code>", found)
    right = '<a id="here"></a><a href="#here"></a><a href="https://example.org"></a>'
    wrong = '<a href="#gone"></a><a href="other.html"></a><code>streamsampler.Gone</code>'
    assert list(pages.dead_ends(here, {here: right + wrong})) == [
        "the link #gone leads nowhere",
        "the link other.html leads nowhere",
        "streamsampler.Gone is documented nowhere",
    ]
