"""Names of this package in backticks, in docstrings and comments: each leads to something that is there."""

import ast
import builtins
import collections
import functools
import importlib.util
import itertools
import pathlib
import re

import streamsampler

PACKAGE = pathlib.Path(streamsampler.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
PAGES = sorted((PACKAGE / "docs").glob("*.md"))
# What docstrings write about as a user's code does, and examples of names in files.
VARIABLES = {
    *(
        "agent",
        "batch",
        "board",
        "env",
        "env_infos",
        "episodes",
        "error",
        "evaluation",
        "folder",
        "manager",
        "model",
        "name",
        "nn",
    ),
    *(
        "np",
        "observations",
        "ray",
        "record",
        "row",
        "sampler",
        "self",
        "stats",
        "ticket",
        "value",
        "minari",
        "minigrid",
    ),
    *("dataset", "observation", "env_info", "agent_info", "reset_info", "TensorDict", "VecNormalize", "pettingzoo"),
    "torch",
    "engine",
    "report",
}
FILE = re.compile(r"\w+(\.partial)?\.(py|cfg|json|npz|npy|csv|pt|md|zip|hdf5|parquet)$")
NAME = re.compile(r"(?<!`)`([A-Za-z_]\w*(?:\.\w+)+)(?:\([^`]*\))?`(?!`)")


def names_in(node, of, found):
    """Add all names that a piece of code binds to what is found of the module and the classes that it is in."""
    for child in ast.iter_child_nodes(node):
        inside = of
        match child:
            case ast.ClassDef(name=name):
                names, inside = [name], [*of, name]
            case ast.FunctionDef(name=name) | ast.arg(arg=name):
                names = [name]
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names = [name]
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                names = [one.asname or one.name for one in aliases]
            case _:
                names = []
        if names:
            for each in of:
                found[each].update(names)
        names_in(child, inside, found)


@functools.cache
def defined():
    """Return what is in each module and in each class of this package, by their names."""
    found, bases = collections.defaultdict(set), collections.defaultdict(set)
    for path in FILES:
        tree, parts = ast.parse(path.read_text()), path.relative_to(PACKAGE.parent).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        for outer, inner in itertools.pairwise(parts):
            found[outer].add(inner)
        names_in(tree, [parts[-1]], found)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                bases[node.name] |= {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases}
    for _ in range(5):  # classes have few ancestors
        for name, of in bases.items():
            found[name].update(*(found[base] for base in of & found.keys()))
    return found


@functools.cache
def everything():
    return set().union(defined(), *defined().values())


def leads_somewhere(reference):
    """Tell whether a reference leads to a name of this package, of another one, or of a user's code."""
    first, *rest = reference.split(".")
    if first in VARIABLES or FILE.match(reference) or hasattr(builtins, first):
        return True
    every = everything()
    is_ours = first in every and all(it in defined().get(of, every) for of, it in itertools.pairwise([first, *rest]))
    return is_ours or (first != "streamsampler" and importlib.util.find_spec(first) is not None)


def test_references_lead_somewhere():
    # The first column of a table has names of other libraries.
    texts = {path: re.sub(r"^\| .*? \|", "|", path.read_text(), flags=re.MULTILINE) for path in [*FILES, *PAGES]}
    references = {(path.name, name) for path, text in texts.items() for name in NAME.findall(text)}
    assert len(references) > 100
    assert [it for it in sorted(references) if not leads_somewhere(it[1])] == []
    gone = ["streamsampler.lost_x", "streamsampler.Sampler.lost_x", "protocol.LostX", "engines.base.LostX", "lost_x.y"]
    gone += ["Sampler.on_timestep", "core.seeding.TrajectoryBatch"]
    assert [reference for reference in gone if leads_somewhere(reference)] == []


def test_adapters_are_imported_from_one_path_in_all_texts():
    text = re.compile(r"streamsampler\.agents\.(torch|mlp|sb3)\b")
    pages = [
        *FILES,
        *PAGES,
        PACKAGE.parent / "README.md",
        *sorted(PACKAGE.parent.glob("benchmarks/*.md")),
    ]
    wrong = [
        f"{path}: {line.strip()}"
        for path in pages
        for line in path.read_text().splitlines()
        if text.search(line) and not re.match(r"\s*from streamsampler\.|.*sys\.modules", line)
    ]
    assert wrong == [], "users import from streamsampler.adapters"
    examples = [path for path in FILES if path.parent.name == "examples" if text.search(path.read_text())]
    assert examples == []
