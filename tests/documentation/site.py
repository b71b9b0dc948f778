"""Which pages there are, and what stands on each: found from the package, from `streamsampler` on.

Each name that users import from `streamsampler` has a page, exceptions one for all of them. A module that something on
a page names in full has a page with all that it exports. A class that something on a page takes, returns or holds
stands on the page of its module. A class is shown with what it inherits from classes of this package, but for what its
page shows anyway.
"""

from __future__ import annotations

import importlib
import inspect
import pathlib
import re
import types
import typing
from collections.abc import Iterator

import streamsampler

NAMED = re.compile(r"`(streamsampler(?:\.\w+)+)")
Place = tuple[str, str]
PACKAGE = pathlib.Path(streamsampler.__file__).parent


class Site:
    """The pages.

    Attributes:
        modules: What is on each page, as a module of pdoc's, by the page's name: a module's, or `streamsampler.NAME`.
        homes: The page of each class and function, by the module that defines it and its name there.
    """

    def __init__(self) -> None:
        self.modules: dict[str, typing.Any] = {}
        self.homes: dict[Place, str] = {}
        # The names on pages that do not have all that their modules export.
        self._only: dict[str, set[str]] = {"streamsampler": set()}
        self._looked_at: set[typing.Any] = set()
        values = {name: getattr(streamsampler, name) for name in streamsampler.__all__}  # which imports them
        self._add_module("streamsampler")
        self._add_module("streamsampler.errors")
        for name, value in values.items():
            if isinstance(value, type | types.FunctionType) and _place(value) not in self.homes:
                self._add_name(name, value)
        while new := [doc for doc in self._docs() if doc not in self._looked_at]:
            self._looked_at.update(new)
            for doc in new:
                self._follow(doc)
        self._arrange()
        self.modules["streamsampler"].docstring += self._names_by_room()
        for name, module in self.modules.items():
            module.submodules = [it for other, it in self.modules.items() if other.rpartition(".")[0] == name]

    def _add_module(self, name: str) -> None:
        import pdoc

        module = pdoc.doc.Module(importlib.import_module(name))
        if (only := self._only.get(name)) is not None:
            module.members = {key: doc for key, doc in module.members.items() if key in only}
        # What stands on another page is not shown twice.
        here = {key: doc for key, doc in module.members.items() if self.homes.get(doc.taken_from, name) == name}
        module.members, module.own_members = here, list(here.values())
        self._keep(name, module)

    def _add_name(self, name: str, value: typing.Any) -> None:
        import pdoc

        made = types.ModuleType(f"streamsampler.{name}", f"```python\nfrom streamsampler import {name}\n```")
        made.__dict__.update({"__all__": [name], name: value})
        self._keep(made.__name__, pdoc.doc.Module(made))

    def _keep(self, name: str, module: typing.Any) -> None:
        self.modules[name] = module
        self.homes |= {
            doc.taken_from: name for doc in module.members.values() if doc.taken_from[0].startswith("streamsampler")
        }

    def _docs(self) -> Iterator[typing.Any]:
        """Yield what is on the pages: modules, what they have, and what their classes have."""
        for module in list(self.modules.values()):
            yield module
            for doc in module.members.values():
                yield doc
                if doc.kind == "class":
                    yield from (it for it in doc.members.values() if _is_shown(it))

    def _follow(self, doc: typing.Any) -> None:
        """Add pages for what is named in full here, and for the types in annotations."""
        for name in NAMED.findall(doc.docstring):
            module = _module_of(name)
            if module not in self.modules or (module in self._only and module != "streamsampler"):
                self._only.pop(module, None)
                self._add_module(module)
        for module, name in _types_in(doc, with_arguments=doc.modulename not in self._only):
            if (module, name) in self.homes or (module in self.modules and module not in self._only):
                continue
            if name not in self._only.setdefault(module, set()) and not name.startswith("_"):
                self._only[module].add(name)
                self._add_module(module)

    def _arrange(self) -> None:
        """Show what classes inherit, and name what users import as they do."""
        for doc in list(self._docs()):
            if doc.kind == "class":
                self._show_inherited(doc)
            if (
                doc.qualname
                and doc.modulename != "streamsampler.errors"
                and doc.modulename.removeprefix("streamsampler.") in streamsampler.__all__
            ):
                doc.fullname = f"streamsampler.{doc.qualname}"  # as it is imported, in results of a search

    def _show_inherited(self, doc: typing.Any) -> None:
        """Let a class have what it inherits from this package among its own members, and name its bases by page."""
        page = self.homes[doc.taken_from]
        inherited = []
        for base, members in doc.inherited_members.items():
            if base[0].startswith("streamsampler") and self.homes.get(base) != page:
                inherited += members
        doc.own_members = [*doc.own_members, *inherited]
        doc.inherited_members = {
            base: members for base, members in doc.inherited_members.items() if self.homes.get(base) == page
        }
        doc.members = {name: it for name, it in doc.members.items() if _is_shown(it)}
        doc.bases = [
            (self.homes[base[:2]], base[1], base[1]) if base[:2] in self.homes else base
            for base in doc.bases
            if base[:2] in self.homes or not base[0].startswith("streamsampler.")
        ]

    def _names_by_room(self) -> str:
        """Return the last section of the start page, in Markdown: what is on each other page."""
        rooms: dict[str, list[str]] = {}
        names = {f"streamsampler.{name}": name for name in streamsampler.__all__ if name != "errors"}
        for page, module in sorted(self.modules.items(), key=lambda item: (item[0] not in names, item[0].lower())):
            address = f"{page.replace('.', '/')}.html"
            if page in names:
                (doc,) = module.members.values()
                rooms.setdefault(doc.taken_from[0].split(".")[1], []).append(
                    f"- [`{names[page]}`]({address}): {_first_sentence(doc.docstring)}"
                )
            elif page != "streamsampler":
                shown = [name for name, doc in module.members.items() if _is_named(name, doc)]
                inside = ", ".join(f"[`{name}`]({address}#{name})" for name in shown)
                title = _first_sentence(module.docstring)
                title = f"{title[:-1]}: {inside}" if inside else title
                rooms.setdefault(page.split(".")[1], []).append(f"- [`{page}`]({address}): {title}")
        sections = [f"### {room}\n\n" + "\n".join(rooms[room]) for room in sorted(rooms)]
        return "\n\n".join(["", "Names by room\n-------------", *sections]) + "\n"


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.partition("\n\n")[0].split()), maxsplit=1)[0]


def _is_named(name: str, doc: typing.Any) -> bool:
    """Tell whether a module's name stands on its page: it is public, and says what it is."""
    return not name.startswith("_") and (doc.kind in ("class", "function") or bool(doc.docstring))


def _is_shown(doc: typing.Any) -> bool:
    """Tell whether a member of a class stands on its page: it is of this package, and public."""
    return doc.taken_from[0].startswith("streamsampler") and (not doc.name.startswith("_") or doc.name == "__init__")


def _place(value: typing.Any) -> Place:
    return value.__module__, value.__qualname__


def _module_of(name: str) -> str:
    """Return the module in a full name."""
    while not (path := PACKAGE.parent.joinpath(*name.split("."))).is_dir() and not path.with_suffix(".py").exists():
        name = name.rpartition(".")[0]
    return name


def _types_in(doc: typing.Any, *, with_arguments: bool) -> set[Place]:
    """Return the classes of this package in the annotations of what is documented.

    Args:
        doc: A function or a variable; anything else has none.
        with_arguments: Whether to look at what functions take, too, and not only at what they return. The arguments of
            a dataclass are what it holds.
    """
    if doc.name != "__init__" and not doc.docstring:  # not meant for users
        return set()
    if doc.kind == "variable":
        return set(_classes_in(doc.annotation))
    if doc.kind != "function":
        return set()
    annotations = [doc.signature.return_annotation]
    if with_arguments or (doc.name == "__init__" and doc.obj.__code__.co_filename == "<string>"):
        annotations += [it.annotation for it in doc.signature.parameters.values()]
    return set(_classes_in(annotations))


def _classes_in(annotation: typing.Any) -> Iterator[Place]:
    """Yield the public classes of this package in an annotation."""
    if isinstance(annotation, list):  # several, as the parameters of a Callable
        parts: list[typing.Any] = annotation
    else:
        parts = [typing.get_origin(annotation), *typing.get_args(annotation)]
        # A TypedDict is of arguments, which are documented where they are taken.
        if inspect.isclass(annotation) and not typing.is_typeddict(annotation):
            module, name = _place(annotation)
            if module.startswith("streamsampler.") and re.fullmatch(r"[A-Za-z]\w*", name):
                yield module, name
    for part in parts:
        if part is not None:
            yield from _classes_in(part)
