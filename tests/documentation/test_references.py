"""Names of this package in backticks, in docstrings and comments: each leads to something that is there."""

import ast
import builtins
import functools
import importlib.util
import io
import pathlib
import re
import tokenize

import streamsampler

PACKAGE = pathlib.Path(streamsampler.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
# What docstrings write about as a user's code does, and examples of names in files.
VARIABLES = {
    *("agent", "batch", "board", "env", "env_infos", "error", "folder", "model", "name", "nn", "np", "observations"),
    *("record", "row", "sampler", "self", "stats", "ticket", "value", "minigrid", "pettingzoo"),
    *("dataset", "observation", "env_info", "agent_info", "reset_info", "TensorDict", "VecNormalize"),
}
FILE = re.compile(r"\w+\.(py|json|npz|zip|hdf5|parquet)$")
NAME = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.\w+)+)(?:\([^`]*\))?`(?!`)")


def module_of(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def names_in(tree):
    """Return what a module, or a class, defines: names, or for classes the same of them."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = names_in(node)
        elif isinstance(node, ast.FunctionDef):
            found[node.name] = {}
            if isinstance(tree, ast.ClassDef):  # attributes of instances
                found |= {name: {} for name in re.findall(r"self\.(\w+)", ast.unparse(node))}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id: {} for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: None for alias in node.names}
        elif isinstance(node, ast.If):  # `if TYPE_CHECKING:`
            found |= names_in(node)
    return found


@functools.cache
def trees():
    return {module_of(path): ast.parse(path.read_text()) for path in FILES}


@functools.cache
def defined():
    """Return what each module defines."""
    return {module: names_in(tree) for module, tree in trees().items()}


@functools.cache
def classes():
    return {name: found for names in defined().values() for name, found in names.items() if found and name[0].isupper()}


@functools.cache
def bases():
    return {
        node.name: [ast.unparse(base).partition("[")[0] for base in node.bases]
        for tree in trees().values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


def attributes(name):
    """Return what a class and its bases define."""
    found = dict(classes().get(name, {}))
    for base in bases().get(name, ()):
        found |= attributes(base)
    return found


def leads_somewhere(reference):
    """Tell whether a reference leads to a name of this package, of another one, or of a user's code."""
    parts = reference.removeprefix("streamsampler.").split(".")
    for n in range(len(parts), 0, -1):
        path = ".".join(parts[:n])
        modules = [m for m in defined() if m == f"streamsampler.{path}" or m.endswith(f".{path}")]
        if modules:
            rest = parts[n:]
            # A variable may have a module's name: `batch.seeds`.
            if rest and not reference.startswith("streamsampler.") and not rest[0][0].isupper():
                return True
            return not rest or any(inside(defined()[module], rest) for module in modules)
    if parts[0] in classes():
        return inside(classes(), parts)
    if reference.startswith("streamsampler."):
        return inside(defined()["streamsampler"], parts)
    return (
        parts[0] in VARIABLES
        or FILE.match(reference)
        or hasattr(builtins, parts[0])
        or importlib.util.find_spec(parts[0]) is not None
    )


def inside(names, parts):
    first, *rest = parts
    if first not in names:
        return False
    return not rest or rest[0] in attributes(first) or first not in classes()


def texts(path):
    source = path.read_text()
    if path.stem == "coming_from":  # the first column has names of other libraries
        source = re.sub(r"^\| .*? \|", "|", source, flags=re.MULTILINE)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
            yield token.string


def test_references_lead_somewhere():
    references = {(module_of(path), name) for path in FILES for text in texts(path) for name in NAME.findall(text)}
    assert len(references) > 100
    names = {name for _, name in references}
    dead = {name for name in names if not leads_somewhere(name)}
    assert sorted((module, name) for module, name in references if name in dead) == []


def test_references_that_lead_nowhere_are_found():
    gone = [
        "streamsampler.gone",
        "streamsampler.Sampler.gone",
        "protocol.Gone",
        "Sampler.gone",
        "engines.base.Gone",
        "gone.gone",
    ]
    assert [reference for reference in gone if leads_somewhere(reference)] == []
    there = ["streamsampler.samplers", "streamsampler.Sampler.seeds", "Sampler.stream", "env.reset", "batch.seeds"]
    assert [reference for reference in there if not leads_somewhere(reference)] == []
