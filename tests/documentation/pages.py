"""Build the pages: `python -m tests.documentation.pages FOLDER`. Needs the extras `dev` and `torch`.

The start page is the docstring of `streamsampler` with a list of what is on all other pages (see `site`). A warning of
pdoc is an error; so is a link, or a full name of this package in backticks, that leads nowhere.
"""

from __future__ import annotations

import functools
import html
import os
import pathlib
import re
import sys
import typing
import warnings

import streamsampler
from tests.documentation.site import Site

# A type that is defined by itself cannot be looked up from another module.
RECURSIVE = re.compile(r"Error parsing type annotation .*\bTree\b")
# The constructors that NamedTuple and dataclass write are in no module where all annotations could be looked up.
GENERATED = re.compile(r"Error parsing type annotation .*\.__init__\. Import of \w+ failed")
CODE = re.compile(r'(?<!">)<code>([A-Za-z_][\w.]*)((?:\([^<]*\))?)</code>')
DOT = r'(?:\.|</span><span class="o">\.</span><span class="n">)'
TYPE = re.compile(rf"\bstreamsampler(?:{DOT}\w+)+")


def build(folder: pathlib.Path) -> list[str]:
    """Write the pages into a folder, and return what is wrong with them: pdoc's warnings, and what leads nowhere."""
    import pdoc

    pdoc.render.configure(
        docformat="google", show_source=False, template_directory=pathlib.Path(__file__).with_name("templates")
    )
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        site = Site()
        pdoc.render.env.filters["linkify"] = linkify_with(site.homes)
        pages = {}
        for name, module in site.modules.items():
            path = folder / f"{name.replace('.', '/')}.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            pages[path] = pdoc.render.html_module(module, site.modules)
        (folder / "index.html").write_text(pdoc.render.html_index(site.modules))
        (folder / "search.js").write_text(pdoc.render.search_index(site.modules))
    found = places(folder, pages, site.homes)
    linked = {path: link_names(path, text, found) for path, text in pages.items()}
    for path, text in linked.items():
        path.write_text(text)
    known = RECURSIVE, GENERATED
    wrong = [text for it in warned if not any(pattern.match(text := str(it.message)) for pattern in known)]
    wrong += [f"{path.relative_to(folder)}: {what}" for path in linked for what in dead_ends(path, linked)]
    return sorted(set(wrong))


def linkify_with(homes: dict[tuple[str, str], str]) -> typing.Callable[..., str]:
    """Return pdoc's filter that makes links, changed.

    In annotations a type has the name that users import it by, or, where it is on no page, its last name alone; and
    `.npz` is a suffix of files, not a module.

    Args:
        homes: The page of each name, by its module and its name there.
    """
    import pdoc

    linkify = pdoc.render_helpers.linkify

    def short(match: re.Match[str]) -> str:
        module, _, name = re.sub(DOT, ".", match.group()).rpartition(".")
        page = homes.get((module, name), "")
        return page if page.rpartition(".")[2] == name else f"{page}.{name}" if page else name

    @functools.wraps(linkify)
    def changed(context: typing.Any, code: str, namespace: str = "", shorten: bool = True) -> str:
        if shorten:
            code = TYPE.sub(short, str(code))
        linked = linkify(context, code.replace(".npz", "\0npz"), namespace=namespace, shorten=shorten)
        return linked.replace("\0npz", ".npz")  # Markup, which templates do not escape

    return changed


def places(
    folder: pathlib.Path, pages: dict[pathlib.Path, str], homes: dict[tuple[str, str], str]
) -> dict[str, tuple[pathlib.Path, str]]:
    """Return where each public name is documented: page and anchor, by its full name and its short ones.

    Args:
        folder: The folder of all pages.
        pages: The text of each page, by its path.
        homes: The page of each name, by its module and its name there.
    """
    found = {}
    for path, text in pages.items():
        module = ".".join(path.relative_to(folder).with_suffix("").parts)
        found[module] = (path, "")
        # A name that is imported from `streamsampler` has its own page.
        own = {f"streamsampler.{name}" for name in streamsampler.__all__} - {"streamsampler.errors"}
        owner = "streamsampler" if module in own else module
        for anchor in re.findall(r' id="([A-Za-z_][\w.]*)"', text):
            found.setdefault(f"{owner}.{anchor}", (path, anchor))
    for (module, name), page in homes.items():
        path = folder / f"{page.replace('.', '/')}.html"
        if f' id="{name}"' in pages.get(path, ""):
            found.setdefault(f"{module}.{name}", (path, name))
            if name in streamsampler.__all__:
                found.setdefault(f"streamsampler.{name}", (path, name))
    # Names are written as they are imported, or with the last parts of their module's name.
    short: dict[str, tuple[pathlib.Path, str]] = {}
    for name, place in found.items():
        parts = name.split(".")
        first = 1 if len(parts) == 2 else 2
        short |= {".".join(parts[n:]): place for n in range(1, len(parts) - first + 1)}
    return {**short, **{name.removeprefix("streamsampler."): place for name, place in found.items()}, **found}


def link_names(path: pathlib.Path, text: str, found: dict[str, tuple[pathlib.Path, str]]) -> str:
    """Link names in backticks to their places."""

    def linked(match: re.Match[str]) -> str:
        name, arguments = match.groups()
        if name not in found:
            return match.group()
        page, anchor = found[name]
        target = "" if page == path else os.path.relpath(page, path.parent)
        return f'<code><a href="{target}{"#" if anchor else ""}{anchor}">{name}</a>{arguments}</code>'

    # Markdown does not know the two colons before an indented block.
    return CODE.sub(linked, text).replace("<p>::</p>", "").replace("::</p>", ":</p>")


def dead_ends(path: pathlib.Path, pages: dict[pathlib.Path, str]) -> typing.Iterator[str]:
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


def main() -> None:
    """Build them, and say where they are."""
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "build/api").resolve()
    if wrong := build(folder):
        sys.exit("\n".join(wrong))
    print(f"{folder / 'index.html'}")


if __name__ == "__main__":
    main()
