"""The README, and the words of all texts: whether they are true, and what they leave out."""

import ast
import contextlib
import inspect
import io
import pathlib
import re
from typing import Any

import click
import pytest

import streamsampler
from streamsampler.cli.app import cli
from tests.documentation.blocks import DOCS, pages

PACKAGE = pathlib.Path(streamsampler.__file__).parent
ROOT = PACKAGE.parent
README = (ROOT / "README.md").read_text()
TEXTS = {path.name: path.read_text() for path in pages()}
# Public for other rooms of the package, not for users.
FOR_OTHER_ROOMS = {"check_renders", "advance_version", "restore_filters", "refuse_prefetching", "run_again"}
OURS = {
    "sampler": streamsampler.MultiprocessingSampler,
    "batch": streamsampler.TrajectoryBatch,
    "manager": streamsampler.EnvManager,
}
OF_OTHERS = {"--address", "--head", "--min-nodes", "--num-cpus"}  # of `ray`
OF_OTHERS |= {"--nodes", "--ntasks-per-node", "--cpus-per-task", "--exclusive", "--array"}  # of SLURM
OF_OTHERS |= {"--list", "--one-process", "--short"}  # of tests and stages


def methods(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))} - FOR_OTHER_ROOMS


def test_the_readme_can_be_read_in_one_sitting_and_its_links_lead_to_files():
    assert len(README.splitlines()) <= 110
    files = [link for link in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in link]
    assert len(files) > 10
    assert [link for link in files if not (ROOT / link).exists()] == []


def test_each_page_is_one_step_from_the_readme_or_from_the_way_to_it():
    linked = set(re.findall(r"\]\((?:streamsampler/docs/)?([\w-]+\.md)", README + TEXTS["which-way.md"]))
    assert sorted(TEXTS.keys() - linked) == []


def test_options_are_options_of_the_command():
    known = {
        name
        for command in [cli, *cli.commands.values()]
        for parameter in command.get_params(click.Context(command))
        for name in parameter.opts
    }
    for text in (README, *TEXTS.values()):
        # Of what is written as code, but for installing and for the help of other programs.
        code = " ".join(re.findall(r"`+[^`]+`+", re.sub(r"^.*\bpip install\b.*$", "", text, flags=re.MULTILINE)))
        assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code)) - known - OF_OTHERS == set()


@pytest.mark.slow
def test_what_the_first_command_prints_is_what_the_readme_says():
    shown = re.search(r"It prints [^\n]*:\n\n```text\n(.*?)```", README, re.DOTALL).group(1)
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
    assert capsys.readouterr().out.count("\n") == 2


def test_every_public_name_and_method_is_on_a_page():
    text = "\n".join(TEXTS.values())
    classes = (streamsampler.MultiprocessingSampler, streamsampler.TrajectoryBatch, streamsampler.TrajectoryFolder)
    names = set(streamsampler.__all__).union(*map(methods, classes)) - {"__version__"}
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", text)] == []


def test_help_of_the_package_lists_the_pages_and_has_the_five_steps():
    text = streamsampler.__doc__ or ""
    assert set(re.findall(r"`streamsampler/docs/([\w-]+\.md)`", text)) == TEXTS.keys()
    steps = text.partition("\nFive steps")[2].partition("\nPages")[0]
    for code in re.findall(r"^```(?:python|sh)\n(.*?)^```$", steps, re.DOTALL | re.MULTILINE):
        assert code in TEXTS["start.md"]


def test_pages_that_texts_of_the_package_name_are_there():
    for path in PACKAGE.rglob("*.py"):
        for name in re.findall(r"streamsampler/docs/([\w-]+\.md)", path.read_text()):
            assert (DOCS / name).exists(), f"{path} names {name}"


def called(call: Any) -> inspect.Signature | None:
    """Return the signature of a call's function, as it is called; None for a function that is not looked up here."""
    if isinstance(call.func, ast.Name):
        function = getattr(streamsampler, call.func.id, None)
        return None if function is None else inspect.signature(function)
    owner = OURS.get(getattr(call.func.value, "id", ""))
    return None if owner is None else inspect.signature(getattr(owner, call.func.attr).__get__(object()))


def test_our_calls_that_stand_next_to_those_of_other_libraries_can_be_made():
    rows = re.findall(r"^\|.*\| (.*) \|$", TEXTS["coming-from.md"], re.MULTILINE)
    n_called = 0
    for code in [code for cell in rows for code in re.findall(r"`([^`]+\([^`]*\))`", cell)]:
        # Arguments alone are those of a sampler.
        whole = f"MultiprocessingSampler(agents, envs, {code})" if re.match(r"\w+=", code) else code
        call: Any = ast.parse(whole, mode="eval").body
        if isinstance(call, ast.Call) and (signature := called(call)) is not None:
            signature.bind(*call.args, **{str(keyword.arg): keyword.value for keyword in call.keywords})
            n_called += 1
    assert n_called > 60


def test_the_tables_of_other_libraries_name_the_page_of_several_agents():
    table = TEXTS["coming-from.md"].partition("\n## ML-Agents\n")[2]
    assert "(several-agents.md)" in table
    assert "not here" not in table
