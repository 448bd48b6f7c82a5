"""Ten questions of a new user are answered two clicks from the start page, and by the first results of the search."""

import html.parser
import json
import posixpath
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.test_site import built

# Pages that answer a question, and what people type to find them.
QUESTIONS = {
    "own environment": ["own-environment/"],
    "mask actions": ["algorithms/", "faq/"],
    "video": ["videos/"],
    "not compiled": ["not-compiled/", "fast-script/", "faq/"],
    "save load": ["save-and-load/"],
    "VecNormalize": ["save-and-load/", "faq/", "wrappers/"],
    "100 seeds": ["many-seeds/", "faq/"],
    "which environments": ["environments/", "faq/"],
    "GPU": ["gpu/"],
    "JAX environment": ["own-environment/", "environments/"],
}
# What else must be found, by the page that has to come first.
FIRST = {
    "VecVideoRecorder": "videos/",
    "RecordVideo": "videos/",
    "tensorboard": "logging/",
    "install": "install/",
    "LunarLander-v3": "environments/lunarlander-v3/",
    "Breakout": "environments/minatar-breakout-v1/",
    "custom environment": "own-environment/",
    "custom gym environment": "own-environment/",
    "Ctrl-C": "faq/",
}
FIRST_RESULTS = 3


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    return built(tmp_path_factory.mktemp("site"))


class Links(html.parser.HTMLParser):
    """Links of a page that are visible on a wide screen: in the tabs, in the text, and in the section's navigation."""

    def __init__(self, page):
        super().__init__()
        self.found, self._inside = set(), []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        classes = attributes.get("class", "").split()
        if tag in ("article", "li", "ul"):
            is_section = "md-nav__item--section" in classes
            self._inside.append((tag, classes, is_section and "md-nav__item--active" not in classes))
        elif tag == "a" and not any(is_hidden for *_, is_hidden in self._inside):
            shown = {"md-tabs__list", "md-nav__item--active"}
            if any(tag == "article" or shown & {*classes} for tag, classes, _ in self._inside):
                self.found.add(attributes.get("href", ""))

    def handle_endtag(self, tag):
        if self._inside and tag == self._inside[-1][0]:
            self._inside.pop()


def clicks(site, page):
    """The pages that are linked from a page."""
    links = Links(site / page / "index.html").found
    targets = {posixpath.normpath(posixpath.join(page, link.partition("#")[0])) for link in links if "://" not in link}
    return {"" if target == "." else f"{target}/" for target in targets}


@pytest.mark.thorough
def test_each_answer_is_two_clicks_from_the_start(site):
    first = clicks(site, "")
    second = first.union(*(clicks(site, page) for page in first if (site / page / "index.html").exists()))
    assert {"guides/", "own-environment/"} & first
    assert not {page for pages in QUESTIONS.values() for page in pages} - second


@pytest.fixture(scope="module")
def results(site):
    if shutil.which("node") is None:
        pytest.skip("node is not installed, which runs the search as a browser does")
    command = [
        "node",
        Path(__file__).with_name("search.js"),
        site,
        *QUESTIONS,
        *FIRST,
        "HalfCheetah PPO steps per second",
    ]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.thorough
@pytest.mark.parametrize("query", QUESTIONS)
def test_the_search_finds_the_answer_among_its_first_results(query, results):
    pages = [place.partition("#")[0] for place in results[query][:FIRST_RESULTS]]
    assert {*pages} & {*QUESTIONS[query]}, results[query][:10]


@pytest.mark.thorough
@pytest.mark.parametrize("query", FIRST)
def test_the_search_finds_pages_by_their_subject(query, results):
    assert results[query][0].partition("#")[0] == FIRST[query], results[query][:10]


@pytest.mark.thorough
def test_llms_txt_has_the_snippets_and_a_link_to_every_page(site):
    text = (site / "llms.txt").read_text()
    assert "from jaxenvs.sb3 import PPO" in text
    listed = re.findall(r"^- \[.+?\]\((.*?)\)", text, re.MULTILINE)
    pages = {path.parent.relative_to(site).as_posix() for path in site.rglob("index.html")}
    assert sorted(posixpath.normpath(page) for page in listed) == sorted(pages)
    assert "- [Install](install/): " in text


def test_tables_of_figures_are_not_searched(results):
    assert not [place for places in results.values() for place in places if place.startswith("benchmarks/tables")]
