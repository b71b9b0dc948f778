"""Configuration of Sphinx for the site: pages in Markdown, and the reference of public names from docstrings."""

import re

from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform

import streamsampler
from streamsampler.core.arguments import GROUPS

project = "streamsampler"
author = "the authors of streamsampler"
version = release = streamsampler.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = f"streamsampler {release}"
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["narrow.css"]
exclude_patterns = ["README.md"]

myst_heading_anchors = 4
suppress_warnings = ["myst.header"]

python_maximum_signature_line_length = 100
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
napoleon_use_ivar = True
napoleon_custom_sections = [(heading, "params_style") for heading in GROUPS]

NAME = re.compile(r"(?:streamsampler\.)?([A-Za-z_][\w.]*?)(?:\(.*\))?")


class NamesAsLinks(SphinxPostTransform):
    """Make links of names in backticks that the reference has, and of pages: `evaluate`, `TrajectoryBatch.seeds`."""

    default_priority = 5

    def run(self) -> None:
        """Replace the literals of a document."""
        builder, document = self.env.app.builder, self.env.docname
        found = dict(self.env.domains.python_domain.objects)
        for literal in list(self.document.findall(nodes.literal)):
            text = literal.astext()
            if isinstance(literal.parent, nodes.reference | nodes.title):
                continue
            if page := re.fullmatch(r"streamsampler/docs/([\w-]+)\.md", text):
                uri = builder.get_relative_uri(document, page[1])
            elif (name := NAME.fullmatch(text)) and (place := found.get(f"streamsampler.{name[1]}")):
                uri = f"{builder.get_relative_uri(document, place.docname)}#{place.node_id}"
            else:
                continue
            link = nodes.reference("", "", internal=True, refuri=uri)
            literal.replace_self(link)
            link += literal


def as_restructured_text(_app, _what, _name, _obj, _options, lines):
    """Translate a docstring from Markdown, in which code stands in single backticks and in fences."""
    found = ""
    for number, part in enumerate(re.split(r"^( *)```(\w*)\n(.*?)^ *```$", "\n".join(lines), flags=re.M | re.S)):
        match number % 4:  # text, and of each fence the indentation, the language and the code
            case 0:
                code = re.split(r"`{1,2}([^`]+)`{1,2}", part)
                code[1::2] = [f"``{it}``" for it in code[1::2]]
                code[::2] = [re.sub(r"[*|]|(?<=\w)_(?!\w)", r"\\\g<0>", it) for it in code[::2]]
                found += "".join(code)
            case 1:
                indent = part
            case 2:
                found += f"{indent}.. code-block:: {part or 'text'}\n\n"
            case 3:
                found += "".join(f"   {line}\n" if line.strip() else "\n" for line in part.splitlines())
    lines[:] = found.splitlines()


def with_names(_app, _what, _name, _obj, _options, signature, returns):
    """Show classes and functions that are defaults by their names: Sphinx cannot part signatures with others."""
    return signature and re.sub(r"<(?:class|function) '?(?:\w+\.)*(\w+)'?(?: at 0x\w+)?>", r"\1", signature), returns


def setup(app):
    """Register the links and the translation, which comes before napoleon's."""
    app.connect("autodoc-process-signature", with_names)
    app.add_post_transform(NamesAsLinks)
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)
