"""What extends the package uses public names alone: see `streamsampler.__doc__`."""

import ast
import importlib
import inspect
import pathlib
import re

import streamsampler

HERE = pathlib.Path(__file__).parent


def public_modules() -> dict[str, list[str]]:
    """Return the public names, by module."""
    assert streamsampler.__doc__ is not None
    (paragraph,) = (part for part in streamsampler.__doc__.split("\n\n") if "workers and engines of your own" in part)
    modules = ["streamsampler", "streamsampler.testing", *re.findall(r"`(streamsampler\.[\w.]+)`", paragraph)]
    return {module: importlib.import_module(module).__all__ for module in modules}


def test_only_public_names_are_imported():
    public = public_modules()
    assert len(public) > 10
    wrong = []
    for path in sorted(HERE.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "streamsampler":
                names = public.get(node.module or "", [])
                wrong += [f"{path.name}: {node.module}.{each.name}" for each in node.names if each.name not in names]
            elif isinstance(node, ast.Import):
                named = [each.name for each in node.names if each.name.split(".")[0] == "streamsampler"]
                wrong += [f"{path.name}: {name}" for name in named if name != "streamsampler"]
    assert wrong == []


def test_no_private_attribute_is_used():
    """But those of the file's own objects."""
    wrong = []
    for path in (HERE / "pairs.py", HERE / "pipes.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Attribute) or node.attr.startswith("__"):
                continue
            if node.attr.startswith("_") and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                wrong.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert wrong == []


def test_every_public_name_is_documented():
    for module, names in public_modules().items():
        for name in names:
            thing = getattr(importlib.import_module(module), name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert thing.__doc__, f"{module}.{name}"
