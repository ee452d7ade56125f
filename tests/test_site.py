"""The site as it is built: nothing is loaded from elsewhere, every link leads somewhere, every public name is there,
and the search finds the page of a symptom first when its title is typed.
"""

from __future__ import annotations

import functools
import http.server
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import treadle
from conftest import require

ROOT = Path(__file__).parent.parent
COPIED = ("docs", "examples", "scripts", "src", "mkdocs.yml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
SYMPTOMS = sorted(each for each in (ROOT / "docs" / "symptoms").glob("*.md") if each.name != "index.md")
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(300)]


class Parsed(HTMLParser):
    """What a page of the site loads, links to and can be linked at; and the number of its `h2`."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.h2, self.text = 0, ""
        self._in_code = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in LOADS and given.get(LOADS[tag]) and given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(given[LOADS[tag]])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        self.anchors.add(given.get("id") or given.get("name", ""))
        self.h2 += tag == "h2"
        self._in_code += tag in ("code", "script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._in_code -= tag in ("code", "script", "style")

    def handle_data(self, data: str) -> None:
        self.text += "" if self._in_code else data


@pytest.fixture(scope="module", name="site")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("zensical")
    folder = tmp_path_factory.mktemp("site")
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    zensical = Path(sys.executable).with_name("zensical")
    for command in (
        [sys.executable, "scripts/site.py"],
        [zensical, "build", "-f", "mkdocs.yml", "--clean", "--strict"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "build" / "site"


@pytest.fixture(scope="module", name="pages")
def parsed_pages(site: Path) -> dict[Path, Parsed]:
    return {page: Parsed(page.read_text(encoding="utf-8")) for page in site.rglob("*.html")}


def test_the_output(site: Path, pages: dict[Path, Parsed]) -> None:
    bad = []
    for source in sorted((site.parent / "docs").rglob("*.md")):
        page = site / source.relative_to(site.parent / "docs").with_suffix(".html")
        text = re.sub(r"^```.*?^```$", "", source.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        wanted = len(re.findall(r"^## ", text, re.MULTILINE))
        if page not in pages:
            bad.append(f"{source.name} is no page")
        elif pages[page].h2 != wanted:
            bad.append(f"{page.name}: {pages[page].h2} h2, and {wanted} times ##")
    for page, parsed in pages.items():
        if "```" in parsed.text or "<!-- test" in parsed.text:
            bad.append(f"{page.name}: a fence or its mark is shown as text")
        if re.search(r"^- ", parsed.text, re.MULTILINE):
            bad.append(f"{page.name}: a list without an empty line before it is shown as text")
        bad += [f"{page.name} loads {each}" for each in parsed.loaded if urlsplit(each).netloc]
        for link in (*parsed.links, *parsed.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.is_file():
                if page.name != "404.html":
                    bad.append(f"{page.name}: {link} leads nowhere")
            elif target in pages and unquote(parts.fragment) not in pages[target].anchors | {"__skip"}:
                bad.append(f"{page.name}: {link} has no anchor")
    assert not bad, "\n".join(bad)


def test_styles_and_scripts_name_no_address_to_load(site: Path) -> None:
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(?:https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_every_public_name_is_in_the_reference(site: Path, pages: dict[Path, Parsed]) -> None:
    anchors = set().union(*(parsed.anchors for page, parsed in pages.items() if page.parent.name == "reference"))
    modules = {"plan", "samplers", "tasks", "__version__"}
    homes = {anchor.rpartition(".")[2] for anchor in anchors if anchor.startswith("treadle.")}
    assert set(treadle.__all__) - modules <= homes


@pytest.fixture(scope="module", name="address")
def served(site: Path) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def test_symptoms_are_short_and_the_search_finds_each_first(address: str) -> None:
    assert len(SYMPTOMS) == 9
    for page in SYMPTOMS:
        assert len(page.read_text(encoding="utf-8").splitlines()) < 40, page
    sync_api = require("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed (Debian's package)")
    wrong: list[str] = []
    asked: list[str] = []
    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        view = browser.new_page()
        view.on("request", lambda request: asked.append(request.url))
        for page in SYMPTOMS:
            title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
            view.goto(f"{address}/index.html")
            found = first_result(view, title)
            if page.stem not in found:
                wrong.append(f"{title}: {found}")
        browser.close()
    assert not wrong, "\n".join(wrong)
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def first_result(view: Any, title: str) -> str:
    """The address that the site's search shows first for a title that is typed."""
    view.keyboard.press("/")
    box = view.locator("input[type=text], input[type=search], input:not([type])").last
    box.fill(title)
    results = view.locator("a[href*='?h=']")
    results.first.wait_for(timeout=20_000)
    return str(results.first.get_attribute("href"))
