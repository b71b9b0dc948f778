"""Build the pages of the API: `python -m tests.documentation.pages FOLDER`. Needs the extras `dev` and `torch`.

A page for each public module, and links from backticked names to what they name. A warning of pdoc is an error; so is a
link, or a full name of this package in backticks, that leads nowhere.
"""

import functools
import html
import os
import pathlib
import re
import sys
import warnings

import streamsampler

MODULES = [
    *("", "errors", "samplers", "samplers.obtaining", "samplers.lifecycle", "samplers.progress", "samplers.ray"),
    *(
        "filters",
        "filters.running",
        "filters.base",
        "stepping",
        "stepping.manager",
        "stepping.lifecycle",
        "stepping.inference",
        "workers.seams",
        "workers.hooks",
    ),
    *("workers.trajectory_context", "data.batch_fragments", "data.batch_estimates", "data.batch_episodes", "data.raw"),
    *("agents", "agents.base", "agents.draws"),
    *("agents.independence", "agents.updates"),
    *("environments", "environments.updates", "data", "data.statistics", "data.timers", "data.opaque", "data.recorder"),
    *("timing", "storage"),
    *("storage.npz", "adapters", "adapters.torch", "adapters.mlp", "adapters.heads", "adapters.sb3", "workers"),
    *("workers.base", "workers.board", "workers.factory", "workers.generators", "workers.loop", "workers.vec"),
    *("engines", "engines.base", "scheduling.blocks", "scheduling.restarts", "seeding", "serialization", "protocol"),
    *("evaluation", "evaluation.evaluate", "evaluation.evaluation", "evaluation.intervals", "evaluation.betting"),
    *("formats", "formats.export", "formats.minari", "formats.pandas", "formats.parquet", "formats.sb3"),
    *("formats.source", "formats.tables", "formats.tensordict", "storage.folder", "storage.sequences"),
    *("evaluation.compare", "evaluation.comparison", "evaluation.merging"),
    *("checking", "checking.check", "checking.report"),
    *("checking.findings", "checking.speed", "checking.recommending"),
    *("benchmarking", "benchmarking.bench", "benchmarking.report"),
    *("protocol.fingerprints", "protocol.messages", "protocol.states", "testing", "testing.fail_points", "cli"),
    *("examples", "examples.reinforce", "examples.evolution_strategy", "examples.ppo"),
    *("examples.trpo", "examples.ppo_recurrent", "examples.evaluate_sb3"),
]
# A type that is defined by itself cannot be looked up from another module.
RECURSIVE = re.compile(r"Error parsing type annotation .*\bTree\b")
# The constructor of a NamedTuple is in no module where its annotations could be looked up.
NAMED_TUPLE = re.compile(r"Error parsing type annotation ForwardRef\(.*\.__init__\. Import of (Any|NDArray) failed")
CODE = re.compile(r"<code>([A-Za-z_][\w.]*)((?:\([^<]*\))?)</code>")


def build(folder):
    """Write the pages into a folder, and return what is wrong with them: pdoc's warnings, and what leads nowhere."""
    import pdoc

    for name in streamsampler.__all__:
        getattr(streamsampler, name)  # pdoc does not look for names that a module imports on demand
    pdoc.render.configure(docformat="google", show_source=False)
    filters = pdoc.render.env.filters
    filters["linkify"] = keep_suffixes(filters["linkify"])
    names = [".".join(filter(None, ("streamsampler", name))) for name in MODULES]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        modules = {name: pdoc.doc.Module.from_name(name) for name in names}
        for name, module in modules.items():
            module.submodules = [modules[other] for other in names if other.rpartition(".")[0] == name]
        pages = {}
        for name, module in modules.items():
            path = folder / f"{name.replace('.', '/')}.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            pages[path] = pdoc.render.html_module(module, modules)
        (folder / "search.js").write_text(pdoc.render.search_index(modules))
    found = places(folder, pages)
    linked = {path: link_names(path, text, found) for path, text in pages.items()}
    for path, text in linked.items():
        path.write_text(text)
    known = RECURSIVE, NAMED_TUPLE
    wrong = [text for it in warned if not any(pattern.match(text := str(it.message)) for pattern in known)]
    wrong += [f"{path.relative_to(folder)}: {what}" for path in linked for what in dead_ends(path, linked)]
    return sorted(set(wrong))


def keep_suffixes(linkify):
    """Return the filter of pdoc that makes links, changed: `.npz` is a suffix of files, not a module."""

    @functools.wraps(linkify)
    def keeping(context, code, *args, **kwargs):
        return linkify(context, code.replace(".npz", "\0npz"), *args, **kwargs).replace("\0npz", ".npz")

    return keeping


def places(folder, pages):
    """Return where each public name is documented: page and anchor, by its full name and its short ones."""
    found = {}
    for path, text in pages.items():
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        found[module] = (path, "")
        for anchor in re.findall(r' id="([A-Za-z_][\w.]*)"', text):
            found[f"{module}.{anchor}"] = (path, anchor)
    # Names are written as they are imported, or with the last parts of their module's name.
    short = {}
    for name, place in found.items():
        parts = name.split(".")
        first = 1 if len(parts) == 2 else 2
        short |= {".".join(parts[n:]): place for n in range(1, len(parts) - first + 1)}
    return {**short, **{name.removeprefix("streamsampler."): place for name, place in found.items()}, **found}


def link_names(path, text, found):
    """Link names in backticks to their places."""

    def linked(match):
        name, arguments = match.groups()
        if name not in found:
            return match.group()
        page, anchor = found[name]
        target = "" if page == path else os.path.relpath(page, path.parent)
        return f'<code><a href="{target}{"#" if anchor else ""}{anchor}">{name}</a>{arguments}</code>'

    # Markdown does not know the two colons before an indented block.
    return CODE.sub(linked, text).replace("<p>::</p>", "").replace("::</p>", ":</p>")


def dead_ends(path, pages):
    """Yield each link of a page, and each name of this package in backticks, that leads nowhere."""
    text = pages[path]
    for address in re.findall(r'href="([^"]*)"', text):
        target, _, anchor = html.unescape(address).partition("#")
        if "://" in target or "$" in target:  # of the script that searches
            continue
        page = path if not target else (path.parent / target).resolve()
        if not page.exists() or (anchor and f'id="{anchor}"' not in pages.get(page, "")):
            yield f"the link {address} leads nowhere"
    public = {*streamsampler.__all__, "streamsampler"}
    for name, _ in CODE.findall(text):
        if "." in name and name.split(".")[0] in public:
            yield f"{name} is documented nowhere"


def main():
    """Build them, and say where they are."""
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/api").resolve()
    if wrong := build(folder):
        sys.exit("\n".join(wrong))
    print(f"{folder / 'streamsampler.html'}")


if __name__ == "__main__":
    main()
