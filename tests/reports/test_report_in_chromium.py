"""A report in a real browser, the system's Chromium: it asks nobody for anything, fits, and is used by keyboard."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import treadle
from conftest import TEST_ALL, require
from reports.run_of import directory_of, evaluation, line
from treadle.record.video import video

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.heavy
sync_api = require("playwright.sync_api")
axe_api = require("axe_playwright_python.sync_playwright")

if CHROMIUM is None and not TEST_ALL:
    pytest.skip("chromium is not installed (Debian's package)", allow_module_level=True)


@pytest.fixture(name="browser", scope="module")
def _browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM or "chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(name="pages", scope="module")
def _pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    at = tmp_path_factory.mktemp("reports")
    running = directory_of(at / "running", [line(i) for i in range(31)], arguments={"episodes": 50})
    many = directory_of(at / "many", [line(i, i % 77, success=i % 3 == 0) for i in range(10_000)])
    few = evaluation(at / "few", 60)
    return {
        "few": treadle.report(few),
        "running": treadle.report(running),
        "many": treadle.report(many),
        "pair": treadle.report(few, evaluation(at / "another one", 60, seed=1)),
    }


class Opened:
    """A page, and what it asked for and complained of."""

    def __init__(self, browser: Any, path: Path, width: int = 1280, scheme: str = "light") -> None:
        self.page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        self.asked: list[str] = []
        self.said: list[str] = []
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.goto(path.as_uri())

    @property
    def title(self) -> str:
        return str(self.page.locator("#which").inner_text())


@pytest.mark.parametrize("width", [390, 820, 1280])
@pytest.mark.parametrize("name", ["few", "running", "many", "pair"])
def test_it_asks_for_nothing_complains_of_nothing_and_fits(
    browser: Any, pages: dict[str, Path], name: str, width: int
) -> None:
    opened = Opened(browser, pages[name], width)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    opened.page.locator("#rows a").first.click()
    opened.page.wait_for_selector("dialog[open]")
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert (opened.asked, opened.said) == ([pages[name].as_uri()], [])
    opened.page.close()


def test_it_is_sorted_and_opened_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["few"])
    page = opened.page
    head = page.locator("th", has_text="return")
    head.locator("button").focus()
    page.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    shown = [float(each.replace("−", "-")) for each in page.locator("td.bar").all_inner_texts() if each != "–"]
    assert shown == sorted(shown, reverse=True)
    first = page.locator("#rows a").first
    number = first.inner_text()
    first.focus()
    page.keyboard.press("Enter")
    assert opened.title == f"Episode {number}"
    assert page.url.endswith(f"#e{number}")
    page.keyboard.press("Escape")
    page.locator(f"a:focus:text-is('{number}')").wait_for()  # the browser gives the focus back a moment later
    assert not page.locator("dialog").is_visible()
    assert page.evaluate("document.activeElement.textContent") == number
    page.locator("input[type=search]").focus()
    page.keyboard.type("17")
    page.keyboard.press("Enter")
    page.locator("#which", has_text="Episode 17").wait_for()  # an address opens its episode a moment later
    assert opened.title == "Episode 17"
    page.close()


def test_an_address_opens_its_episode_and_a_filter_shows_its_own(browser: Any, pages: dict[str, Path]) -> None:
    for name, number, most in (("few", 37, 60), ("many", 9_876, 200)):
        opened = Opened(browser, Path(pages[name]))
        page = opened.page
        page.evaluate(f"location.hash = 'e{number}'")
        page.wait_for_selector("dialog[open]")
        assert opened.title == f"Episode {number}"
        page.keyboard.press("Escape")
        page.locator(f"a:focus:text-is('{number}')").wait_for()
        assert page.evaluate("document.activeElement.textContent") == str(number)
        page.locator(".tools button", has_text="no success").click()
        assert set(page.locator("#rows tr:not(.gap) td:nth-child(6)").all_inner_texts()) == {"○ no success"}
        assert page.locator("#rows tr").count() <= most
        page.close()


def test_of_many_rows_those_are_made_that_are_looked_at(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["many"])
    page = opened.page
    assert page.locator("#rows tr").count() < 200
    page.evaluate("document.getElementById('frame').scrollTop = 1e9")
    page.wait_for_selector("#e9999")
    assert page.locator("#rows tr").count() < 200
    page.close()


def test_a_click_on_a_cell_opens_its_episode(browser: Any, pages: dict[str, Path]) -> None:
    opened = Opened(browser, pages["few"])
    box = opened.page.locator("#strip").bounding_box()
    opened.page.mouse.click(box["x"] + box["width"] * 3.4 / 25, box["y"] + 5)
    opened.page.wait_for_selector("dialog[open]")
    assert opened.title == "Episode 3"
    opened.page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["few", "many", "pair"])
def test_axe_finds_nothing_serious(browser: Any, pages: dict[str, Path], name: str, scheme: str) -> None:
    opened = Opened(browser, pages[name], scheme=scheme)
    serious = []
    for opens in (False, True):  # the page, then an episode
        if opens:
            opened.page.locator("#rows a").first.click()
        found = axe_api.Axe().run(opened.page).response["violations"]
        serious += [
            (each["id"], each["nodes"][0]["html"]) for each in found if each["impact"] in ("serious", "critical")
        ]
    opened.page.close()
    assert serious == []


FILM = "var film = document.querySelector('dialog video');"


def on(event: str) -> str:
    """A promise of an event of the film's, which the page's policy allows, as it does no text that becomes code."""
    return f"new Promise((done) => film.addEventListener('{event}', () => done(1), {{once: true}}))"


def test_a_click_on_the_curve_seeks_the_film(browser: Any, tmp_path: Path) -> None:
    require("imageio_ffmpeg")
    out = evaluation(tmp_path / "out", 6)
    with video(out / "films" / "episode-0003_return-1.0_failure.mp4", fps=10.0) as take:
        for i in range(40):
            take(np.full((64, 96, 3), 6 * i, np.uint8))
    opened = Opened(browser, treadle.report(out))
    page = opened.page
    page.evaluate("location.hash = 'e3'")
    page.wait_for_selector("dialog video")
    page.evaluate(f"{FILM} film.readyState > 0 || {on('loadedmetadata')}")
    page.evaluate(f"{FILM} window.seeked = {on('seeked')}; 0")
    box = page.locator("dialog .curve").bounding_box()
    page.mouse.click(box["x"] + 0.75 * box["width"], box["y"] + box["height"] / 2)
    page.evaluate("window.seeked")
    assert page.evaluate(f"{FILM} film.currentTime") == pytest.approx(3.0, abs=0.1)
    assert float(page.locator("dialog .curve line").get_attribute("x1")) == pytest.approx(750, abs=10)
    page.evaluate(f"{FILM} film.play(); {on('ended')}")
    assert float(page.locator("dialog .curve line").get_attribute("x1")) == pytest.approx(1_000, abs=30)
    assert opened.said == []
    page.close()


def test_it_is_readable_without_a_script(browser: Any, pages: dict[str, Path]) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages["few"].as_uri())
    assert page.locator("#rows tr").count() == 60
    assert "KeyError: 'corner' reach.py:31" in page.locator("body").inner_text()
    context.close()
