"""What the builder of the API's pages finds out: `.ci/docs` itself needs pdoc, and is run by `.ci/full docs`."""

import pathlib

from tests.documentation import pages

HERE = pathlib.Path("/api/streamsampler.html")
ERRORS = pathlib.Path("/api/streamsampler/errors.html")


def test_names_in_backticks_become_links_to_where_they_are_documented():
    texts = {HERE: '<section id="Sampler"></section>', ERRORS: '<section id="UsageError"></section>'}
    found = pages.places(HERE.parent, texts, {})
    text = "<code>Sampler</code> <code>streamsampler.errors.UsageError</code> <code>errors(1)</code> <code>other</code>"
    assert pages.link_names(HERE, text, found) == (
        '<code><a href="#Sampler">Sampler</a></code> '
        '<code><a href="streamsampler/errors.html#UsageError">streamsampler.errors.UsageError</a></code> '
        '<code><a href="streamsampler/errors.html">errors</a>(1)</code> <code>other</code>'
    )
    assert pages.link_names(ERRORS, "<code>Sampler</code>", found) == (
        '<code><a href="../streamsampler.html#Sampler">Sampler</a></code>'
    )
    bases = [HERE.parent / "streamsampler" / room / "base.html" for room in ("agents", "workers")]
    found = pages.places(HERE.parent, {bases[0]: '<section id="Agent"></section>'}, {})
    assert 'href="../agents/base.html#Agent"' in pages.link_names(bases[1], "<code>agents.base.Agent</code>", found)


def test_what_leads_nowhere_is_found(tmp_path):
    page = tmp_path / "page.html"
    page.touch()
    texts = {page: '<a id="here"></a><a href="#here"></a><a href="https://example.org"></a>'}
    assert list(pages.dead_ends(page, texts)) == []
    texts = {page: '<a href="#gone"></a><a href="other.html"></a><code>streamsampler.Gone</code>'}
    assert list(pages.dead_ends(page, texts)) == [
        "the link #gone leads nowhere",
        "the link other.html leads nowhere",
        "streamsampler.Gone is documented nowhere",
    ]
