"""What extends the package uses public names alone, which the page `extending` lists and docstrings explain."""

import ast
import importlib
import inspect
import pathlib
import re

from tests.documentation.blocks import DOCS
from tests.test_structure import ROOMS

HERE = pathlib.Path(__file__).parent


def public_modules() -> dict[str, list[str]]:
    """Return the public names, by module."""
    text = (DOCS / "extending.md").read_text()
    (paragraph,) = re.findall(r"(?ms)^- \*A name is missing\.\*.*?(?=^- |\n\n)", text)
    modules = ["streamsampler", "streamsampler.testing", *re.findall(r"`(streamsampler\.[\w.]+)`", paragraph)]
    return {module: importlib.import_module(module).__all__ for module in modules}


def test_only_public_names_are_used():
    """But those of the file's own objects."""
    public, wrong = public_modules(), []
    assert len(public) > 10
    for path in (HERE / "pairs.py", HERE / "pipes.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streamsampler"):
                wrong += [one.name for one in node.names if one.name not in public.get(node.module or "", [])]
            elif isinstance(node, ast.Import):
                wrong += [one.name for one in node.names if one.name.startswith("streamsampler.")]
            elif isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr) and ast.unparse(node.value) != "self":
                wrong.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []


def test_the_page_has_the_rooms_in_the_order_in_which_they_import():
    sentence = (DOCS / "how-it-works.md").read_text().partition("from the ground up: ")[2].partition(". ")[0]
    assert re.findall(r"`(\w+)`", sentence) == [room for room in ROOMS if room not in ("", "__main__")]


def test_every_public_name_is_documented():
    for module, names in public_modules().items():
        for name in names:
            thing = getattr(importlib.import_module(module), name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert thing.__doc__, f"{module}.{name}"
            if inspect.isclass(thing):
                assert undocumented_members(thing) == [], f"{module}.{name}"


def undocumented_members(cls: type) -> list[str]:
    """Return the names of the package's own public methods and properties of a class without docstrings."""
    found = []
    for owner in cls.__mro__:
        if owner.__module__.startswith("streamsampler"):
            for name, member in vars(owner).items():
                function = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", member)) or member)
                written_here = getattr(function, "__qualname__", "") == f"{owner.__qualname__}.{name}"
                if not name.startswith("_") and inspect.isfunction(function) and written_here:
                    documented = inspect.getdoc(getattr(cls, name)) or function.__doc__
                    found += [] if documented else [f"{owner.__qualname__}.{name}"]
    return found


def test_a_member_without_docstring_is_found():
    class Example:
        def documented(self):
            """Do nothing."""

        def silent(self): ...

        def _private(self): ...

    Example.__module__ = "streamsampler.example"
    assert [name.rpartition(".")[2] for name in undocumented_members(Example)] == ["silent"]
