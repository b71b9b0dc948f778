"""The guides, which are docstrings of modules: what they leave out, what is on no page, whether their calls exist."""

import ast
import functools
import inspect
import os
import pathlib
import re
import subprocess
import sys
import warnings

import pytest

import streamsampler
from tests.documentation.pages import build
from tests.documentation.site import Site

PACKAGE = pathlib.Path(streamsampler.__file__).parent
# Public for other rooms of the package, not for users.
FOR_OTHER_ROOMS = {"check_renders", "count_as_called", "put_back_filters", "refuse_lag", "run_again"}
OURS = {
    "sampler": streamsampler.MultiprocessingSampler,
    "batch": streamsampler.TrajectoryBatch,
    "manager": streamsampler.EnvManager,
}


@functools.cache
def docstrings():
    """Return the docstring of each module, by its full name."""
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.get_docstring(ast.parse(path.read_text())) or ""
    return found


def guides():
    """Return the docstrings of modules that have code or a table."""
    return {name: text for name, text in docstrings().items() if re.search(r"^(```|\|---)", text, re.MULTILINE)}


def methods(cls):
    return {name for name in dir(cls) if not name.startswith("_") and callable(getattr(cls, name))} - FOR_OTHER_ROOMS


@pytest.mark.parametrize("name", ["MultiprocessingSampler", "TrajectoryBatch", "TrajectoryFolder"])
def test_every_method_is_in_a_guide(name):
    text = "\n".join(docstrings().values())
    missing = [method for method in methods(getattr(streamsampler, name)) if not re.search(rf"\b{method}\b", text)]
    assert missing == []


def test_every_name_that_users_import_is_in_a_guide():
    text = "\n".join(docstrings().values())
    names = set(streamsampler.__all__) - {"__version__"}
    assert [name for name in names if not re.search(rf"\b{name}\b", text)] == []


def our_calls():
    """Return the calls in the second column of the tables of other libraries' calls, parsed."""
    rows = re.findall(r"^\|.*\| (.*) \|$", guides()["streamsampler.examples.coming_from"], re.MULTILINE)
    for code in [code for cell in rows for code in re.findall(r"`([^`]+\([^`]*\))`", cell)]:
        # Arguments alone are those of a sampler.
        whole = f"MultiprocessingSampler(agents, envs, {code})" if re.match(r"\w+=", code) else code
        call = ast.parse(whole, mode="eval").body
        assert isinstance(call, ast.Call)
        yield call


def called(call):
    """Return the signature of what is called, as it is called; None for what is not looked up here."""
    if isinstance(call.func, ast.Name):
        function = getattr(streamsampler, call.func.id, None)
        return function and inspect.signature(function)
    owner = OURS.get(getattr(call.func.value, "id", ""))
    return owner and inspect.signature(getattr(owner, call.func.attr).__get__(object()))


def test_our_calls_that_stand_next_to_those_of_other_libraries_can_be_made():
    signatures = [(called(call), call) for call in our_calls()]
    for signature, call in signatures:
        if signature is not None:
            signature.bind(*call.args, **{keyword.arg: keyword.value for keyword in call.keywords})
    assert sum(signature is not None for signature, _ in signatures) > 25


@pytest.mark.slow
@pytest.mark.extras
def test_the_five_steps_print_what_the_start_page_says(tmp_path):
    assert streamsampler.__doc__ is not None
    steps = streamsampler.__doc__.partition("\nFive steps")[2].partition("\nGuides by task")[0]
    (program,) = re.findall(r"^```python\n(.*?)^```$", steps, re.DOTALL | re.MULTILINE)
    (tmp_path / "cartpole.py").write_text(program)
    commands = [line for block in re.findall(r"^```sh\n(.*?)^```$", steps, re.DOTALL | re.MULTILINE)
                for line in block.splitlines() if not line.startswith("pip ")]  # fmt: skip
    said = re.findall(r"^```text\n(.*?)^```$", steps, re.DOTALL | re.MULTILINE)
    runs = [[*line.replace("streamsampler", "-m streamsampler", 1).split()] for line in commands]
    runs.insert(2, ["cartpole.py"])
    assert len(runs) == len(said) == 5
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}  # where the package is not installed
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


@pytest.fixture(scope="module")
def site():
    import pdoc

    pdoc.render.configure(docformat="google")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `build` looks at them
        return Site()


@pytest.mark.extras
def test_every_name_that_users_import_is_on_a_page(site):
    values = {
        name: getattr(streamsampler, name) for name in streamsampler.__all__ if name not in ("__version__", "errors")
    }
    assert [name for name, it in values.items() if (it.__module__, it.__qualname__) not in site.homes] == []


@pytest.mark.extras
def test_every_guide_is_on_a_page_that_the_start_page_leads_to(site):
    assert sorted(guides().keys() - site.modules.keys()) == []
    start = site.modules["streamsampler"].docstring
    pages = site.modules.keys() - {"streamsampler"}
    assert [page for page in pages if f"({page.replace('.', '/')}.html)" not in start] == []


@pytest.mark.extras
def test_what_a_class_inherits_stands_on_its_page(site):
    (sampler,) = site.modules["streamsampler.MultiprocessingSampler"].members.values()
    shown = {doc.name for doc in sampler.own_members}
    assert methods(streamsampler.MultiprocessingSampler) - shown == set()
    assert "obtain_fragments" in shown


@pytest.mark.slow
@pytest.mark.extras
def test_no_link_of_a_page_leads_nowhere(tmp_path):
    assert build(tmp_path) == []
