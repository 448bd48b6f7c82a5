"""Add pages for files outside of docs/ to the site, and llms.txt, which lists all pages. mkdocs.yml calls it.

The pages are examples, CHANGELOG.md and CONTRIBUTING.md.
"""

import ast
import json
import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

CHECKOUT = Path(__file__).parent.parent
sys.path.insert(0, str(CHECKOUT))
from docs import environment_pages  # noqa: E402
from docs.repository import BADGES, repository  # noqa: E402

PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
SPELT = {"c": "C", "envpool": "EnvPool", "gymnasium": "Gymnasium", "jax": "JAX", "ppo": "PPO", "sb3": "SB3"}
# What the search shows later, and not at all: guides and the pages of environments come first.
LATER = ("reference/", "examples/", "changelog", "contributing", "decisions", "environments/minatar.md")
ANSWERS = ("own-environment", "environments.md", "many-seeds", "gpu", "videos", "save-and-load")
SEARCH: dict[str, dict] = {"benchmarks/tables.md": {"exclude": True}}
SEARCH |= {start: {"boost": 0.5} for start in LATER} | {start: {"boost": 2} for start in ANSWERS}
LANGUAGES = {".py": "python", ".c": "c"}
FENCED = re.compile(r"^(````?)\w[^\n]*\n.*?^\1$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)#:\s]+)(#[^)]*)?\)")
SHORT = re.compile(r"<code>(?=[^<>\s]{1,28}</code>)")
# Of a page, where a line begins with it: no heading, list, picture, code or name of a file.
FIRST_SENTENCE = re.compile(r"^(?:[A-Z]|`(?=\w[^/`]*`)).+?(?=[.:]\s|\n\n|\Z)", re.MULTILINE | re.DOTALL)


def on_config(config: MkDocsConfig) -> None:
    """Set the address of the repository, if pyproject.toml has one."""
    if address := repository():
        config.repo_url, config.repo_name = address, address.split("://")[-1].partition("/")[2]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and put the pages of folders into the navigation."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(CHECKOUT / source).read_text()))
    for page, content in (examples() | environment_pages.pages()).items():
        files.append(File.generated(config, page, content=content))
    for path in (CHECKOUT / "examples").rglob("*.ipynb"):
        files.append(File.generated(config, path.relative_to(CHECKOUT).as_posix(), abs_src_path=str(path)))
    config.nav = _with_folders(config.nav, sorted(file.src_uri for file in files.documentation_pages()))
    files.append(File.generated(config, "llms.txt", content=llms_txt(config, files)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links out of docs/ to pages of the site or to the repository. Otherwise remove the link."""
    uri = page.file.src_uri
    for start, search in SEARCH.items():
        if uri.startswith(start):
            page.meta.setdefault("search", search)
    source = {made: source for source, made in PAGES.items()}.get(uri, f"docs/{uri}")

    def link(match: re.Match[str]) -> str:
        text, anchor = match[1], match[3] or ""
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        if not (CHECKOUT / target).exists():
            return match[0]  # mkdocs says so, if it is a link
        if (shown := site_page(target)) is not None:
            text = _title(target) if re.fullmatch(r"[\w/.-]+\.md", text) else text
            return f"[{text}]({posixpath.relpath(shown, posixpath.dirname(uri) or '.')}{anchor})"
        if address := repository():
            return f"[{text}]({address}/blob/main/{target}{anchor})"
        return text if text.startswith("`") else f"`{text}`"

    markdown = markdown.replace("<!-- speed -->", _of_readme("<!-- speed: python -m benchmarks.docs -->", "\n!["))
    markdown = markdown.replace("<!-- agents -->", pretrained_agents())
    markdown = markdown.replace("<!-- gallery -->", environment_pages.gallery(uri))
    pieces, end = [], 0
    for block in FENCED.finditer(markdown):
        pieces += [LINK.sub(link, markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*pieces, LINK.sub(link, markdown[end:])])


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Keep short code on one line, as browsers split at hyphens, and title overviews as their headings do."""
    if page.title == "Overview":
        page.meta["title"] = page.toc.items[0].title
    return SHORT.sub('<code class="short">', html)


def llms_txt(config: MkDocsConfig, files: Files) -> str:
    """Return a page for language models, as llmstxt.org describes it: README.md's snippets, and a list of all pages."""
    text = f"# {config.site_name}\n\n> {config.site_description}\n\n{_of_readme('## Install', '## Documentation')}"

    def listed(entries: list) -> Iterator[str]:
        for entry in entries:
            value = entry if isinstance(entry, str) else next(iter(entry.values()))
            if isinstance(value, list):
                yield from listed(value)
            elif file := files.get_file_from_path(value):
                page = file.content_string
                sentence = FIRST_SENTENCE.search(page)
                about = f": {' '.join(_plain(sentence[0]).split())}" if sentence else ""
                yield f"- [{_heading(page) or value}]({file.url}){about}"

    for section in config.nav:
        ((title, entries),) = section.items()
        text += f"\n\n## {title}\n\n" + "\n".join(listed(entries if isinstance(entries, list) else [entries]))
    return f"{text}\n"


def _of_readme(start: str, end: str) -> str:
    """Return what stands between two texts in README.md, as a page in docs/ has it."""
    text = (CHECKOUT / "README.md").read_text().partition(start)[2].partition(end)[0]
    return (start if start.startswith("#") else "") + text.replace("](docs/", "](").rstrip()


def _plain(text: str) -> str:
    """Return text without the addresses of its links."""
    return LINK.sub(r"\1", text)


def pretrained_agents() -> str:
    """Return a table of the pretrained agents, with a video of each."""
    stills = {env.id: env.still for env in environment_pages.environments()}
    rows = ["| environment | video | algorithm | return of 1,000 episodes | steps | seed |", "| --- " * 6 + "|"]
    for path in sorted((CHECKOUT / "docs" / "pretrained").glob("*/config.json")):
        config, score = (json.loads(path.with_name(name).read_text()) for name in ("config.json", "score.json"))
        id, poster = config["env_id"], f"../environments/{stills[config['env_id']]}"
        attributes = "autoplay loop muted playsinline"
        video = f'<video src="{path.parent.name}/agent.mp4" poster="{poster}" width="160" {attributes}></video>'
        steps, result = f"{config['total_timesteps']:,}", f"{score['mean']} ± {score['std']}"
        rows.append(f"| {id} | {video} | {config['algorithm']} | {result} | {steps} | {config['seed']} |")
    return "\n".join(rows)


def site_page(target: str) -> str | None:
    """Return the page of the site that shows a file or folder of the checkout, or None."""
    if target in PAGES:
        return PAGES[target]
    if target == "README.md":
        return "index.md"
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return _page_of_example(Path(target)) if target.startswith("examples") else None


def examples() -> dict[str, str]:
    """Return a page for each example or folder of examples, and a page that lists them."""
    names: dict[str, str] = {}
    about: dict[str, str] = {}
    bodies: dict[str, str] = {}
    for path in sorted((CHECKOUT / "examples").rglob("*")):
        if path.suffix not in (*LANGUAGES, ".ipynb"):
            continue
        page = _page_of_example(path.relative_to(CHECKOUT))
        names[page] = _spelt(Path(page).stem)
        bodies[page] = bodies.get(page, "") + _example(path)
        if path.suffix == ".py":
            docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
            about[page] = docstring.partition("\n\n")[0].replace("\n", " ")
        elif path.suffix == ".ipynb":
            first = BADGES.sub("", "".join(json.loads(path.read_text())["cells"][0]["source"]))
            names[page] = _heading(first) or names[page]
            about[page] = first.partition("\n\n")[2]
    notebooks = [page for page in names if page.startswith("examples/notebooks/")]
    scripts = [page for page in names if page not in notebooks]
    index = "# Examples\n\nEach example is a file in `examples/`. The tests run all of them."
    for title, pages in (("Notebooks", notebooks), ("Scripts", scripts)):
        lines = (f"* [{names[page]}]({posixpath.relpath(page, 'examples')}): {about[page]}" for page in pages)
        index += f"\n\n## {title}\n\n" + "\n".join(lines)
    wide = dict.fromkeys(scripts, "---\nhide: [toc]\n---\n\n")
    texts = {page: f"{wide.get(page, '')}# {names[page]}\n{body}" for page, body in bodies.items()}
    return {"examples/index.md": f"{index}\n"} | texts


def _title(path: str) -> str:
    """Return the heading of a page, which is more useful on a site than the name of its file."""
    return _heading((CHECKOUT / path).read_text()) or path


def _heading(text: str) -> str | None:
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else None


def _spelt(stem: str) -> str:
    """Make a heading from the name of a file."""
    words = " ".join(SPELT.get(word, word) for word in stem.split("_"))
    return words[0].upper() + words[1:]


def _page_of_example(path: Path) -> str:
    """Return the page of a file in examples/. Scripts in a folder share one page."""
    if path.suffix == ".ipynb" or len(path.parts) < 3:
        return (path / "index.md" if path == Path("examples") else path.with_suffix(".md")).as_posix()
    return path.parent.with_suffix(".md").as_posix()


def _example(path: Path) -> str:
    name = path.relative_to(CHECKOUT).as_posix()
    if path.suffix != ".ipynb":
        return f"\n`{name}`:\n\n{_fenced(path.read_text(), LANGUAGES[path.suffix])}"
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text = re.sub("^# .*", "", text)  # the page has it already
            text = re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", text)  # another notebook
            parts.append(text.replace("](../../docs/", "](../../"))
        else:
            parts += [_fenced(text), *(shown for output in cell["outputs"] if (shown := _shown(output)))]
    return f"\n[The notebook]({path.name}), `{name}`:\n\n" + "\n\n".join(parts)


def _shown(output: dict) -> str:
    """Return what a cell printed or drew."""
    data = output.get("data", {})
    for kind in ("image/gif", "image/png"):
        if kind in data:
            picture = "".join(data[kind]).replace("\n", "")
            return f'<img src="data:{kind};base64,{picture}" alt="What the cell draws">'
    return _fenced("".join(output["text"]), "text") if "text" in output else ""


def _fenced(text: str, language: str = "python") -> str:
    text = text.strip("\n")
    return f"````{language}\n{text}\n````\n"


def _with_folders(nav: list, pages: list[str]) -> list:
    """Replace entries that end with / by the pages of the folder, except its index."""
    found = []
    for entry in nav:
        if isinstance(entry, str):
            inside = [env.page for env in environment_pages.environments() if f"environments/{env.suite}.md" == entry]
            found.append({_title(f"docs/{entry}"): [{"Overview": entry}, *inside]} if inside else entry)
            continue
        ((title, value),) = entry.items()
        if isinstance(value, list):
            value = _with_folders(value, pages)
        elif value.endswith("/"):
            value = [page for page in pages if posixpath.dirname(page) == value[:-1] and not page.endswith("index.md")]
        found.append({title: value})
    return found
