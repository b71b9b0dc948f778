"""Names of this package in backticks, in docstrings and comments: each leads to something that is there."""

import ast
import builtins
import functools
import importlib.util
import pathlib
import re

import streamsampler

PACKAGE = pathlib.Path(streamsampler.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
# What docstrings write about as a user's code does, and examples of names in files.
VARIABLES = {
    *("agent", "batch", "board", "env", "env_infos", "error", "folder", "model", "name", "nn", "np", "observations"),
    *("record", "row", "sampler", "self", "stats", "ticket", "value", "minari", "minigrid", "pettingzoo", "torch"),
    *("dataset", "observation", "env_info", "agent_info", "reset_info", "TensorDict", "VecNormalize"),
}
FILE = re.compile(r"\w+\.(py|cfg|json|npz|zip|hdf5|parquet)$")
NAME = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.\w+)+)(?:\([^`]*\))?`(?!`)")


@functools.cache
def defined():
    """Return all names that this package has: of modules, classes, functions, attributes and parameters."""
    found = {part for path in FILES for part in path.relative_to(PACKAGE.parent).with_suffix("").parts}
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                    found.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    found.add(name)
    return found


def leads_somewhere(reference):
    """Tell whether a reference leads to a name of this package, of another one, or of a user's code."""
    first, *rest = reference.split(".")
    if first in VARIABLES or FILE.match(reference) or hasattr(builtins, first):
        return True
    is_ours = first in defined() and set(rest) <= defined()
    return is_ours or (first != "streamsampler" and importlib.util.find_spec(first) is not None)


def test_references_lead_somewhere():
    # The first column of a table has names of other libraries.
    texts = {path: re.sub(r"^\| .*? \|", "|", path.read_text(), flags=re.MULTILINE) for path in FILES}
    references = {(path.name, name) for path, text in texts.items() for name in NAME.findall(text)}
    assert len(references) > 100
    assert [it for it in sorted(references) if not leads_somewhere(it[1])] == []
    gone = ["streamsampler.lost_x", "streamsampler.Sampler.lost_x", "protocol.LostX", "engines.base.LostX", "lost_x.y"]
    assert [reference for reference in gone if leads_somewhere(reference)] == []
