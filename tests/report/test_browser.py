"""The report in a real browser: charts are drawn, a click in the tree shows its step, nothing is asked of the network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import made_runs
import pytest
from browser import PROGRAM, Browser

from kernelpro.engine.store import RunStore
from kernelpro.report import write

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no chromium here: `apt-get install chromium`, or any Chrome on PATH"
)
OUTSIDE = """[...document.querySelectorAll('#chart-progress svg text, #chart-roofline svg text')].filter((text) => {
  const [box, room] = [text.getBoundingClientRect(), text.ownerSVGElement.getBoundingClientRect()];
  return box.left < room.left - 1 || box.right > room.right + 1;
}).map((text) => text.textContent)"""
COVERED = """(() => {
  const texts = [...document.querySelectorAll('#chart-progress svg text, #chart-roofline svg text')];
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 4 && b.top < a.bottom - 4;
  return boxes.flatMap(([name, a], k) => boxes.slice(k + 1).filter(([, b]) => meet(a, b)).map(([other]) => [name, other]));
})()"""
NODES = "[...document.querySelectorAll('#chart-tree svg text')]"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def page(browser: Browser) -> Browser:
    browser.events.clear()
    return browser


def drawn(page: Browser, chart: str) -> int:
    """Shapes in a chart."""
    return int(page.value(f"document.querySelectorAll('#chart-{chart} svg path').length"))


def press(page: Browser, text: str) -> None:
    """Click on the tree's node with this label."""
    page.value("document.querySelector('#chart-tree').scrollIntoView({block: 'center'})")
    node = f"{NODES}.find((text) => text.textContent.includes({text!r})).getBoundingClientRect()"
    x, y = page.value(f"(({{x, y, width, height}}) => [x + width / 2, y + height / 2])({node})")
    page.click(x, y)


@pytest.mark.parametrize("width", [420, 1400])
def test_charts_are_drawn_and_nothing_overflows(tmp_path: Path, page: Browser, width: int) -> None:
    page.open(write(made_runs.won(tmp_path)), width)
    assert all(drawn(page, chart) > 5 for chart in ("progress", "roofline", "tree"))
    assert page.value("document.documentElement.scrollWidth") <= width
    assert (
        page.value(
            "(({scrollWidth, clientWidth}) => scrollWidth - clientWidth)(document.querySelector('#baselines .wide'))"
        )
        <= 0
    )
    assert page.value(OUTSIDE) == [] and page.value(COVERED) == []
    assert page.value("document.querySelector('#panel').dataset.step") == "7", "the winner is shown first"
    assert page.complaints == [] and page.requests == []


def test_a_click_in_the_tree_shows_the_step(tmp_path: Path, page: Browser) -> None:
    page.open(write(made_runs.won(tmp_path)))
    press(page, "5: build failed")
    assert page.value("document.querySelector('#panel').dataset.step") == "5"
    assert "expected ;" in page.value("document.querySelector('#panel').textContent")
    before = page.value(f"{NODES}.length")
    page.value("document.querySelector('#only-passed').click()")
    assert page.value(f"{NODES}.length") == before - 3
    assert page.complaints == []


def test_buttons_do_what_they_say(tmp_path: Path, page: Browser) -> None:
    page.open(write(made_runs.won(tmp_path)))
    page.value("document.querySelector('[data-by=time]').click()")
    assert page.value("document.querySelector('[data-by=time]').getAttribute('aria-pressed')") == "true"
    assert "working time" in page.value("document.querySelector('#chart-progress').textContent")
    page.value("document.querySelector('[data-copy=winner-source]').click()")
    page.value("location.hash = '#step-3'; new Promise((done) => setTimeout(done, 100))")
    assert page.value("document.querySelector('#step-3').open") is True
    assert page.complaints == []


def test_the_dark_page_is_dark(tmp_path: Path, page: Browser) -> None:
    page.open(write(made_runs.won(tmp_path)), scheme="dark")
    red, green, blue = page.value(
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
    )
    assert max(red, green, blue) < 60
    assert page.complaints == []


@pytest.mark.parametrize(
    "kind", [made_runs.searched, made_runs.compiler_won, made_runs.lost, made_runs.refused]
)
def test_runs_of_all_kinds_open_without_a_complaint(
    tmp_path: Path, page: Browser, kind: Callable[[Path], RunStore]
) -> None:
    store = kind(tmp_path)
    page.open(write(store))
    assert store.steps() == [] or drawn(page, "tree") > 0
    assert page.complaints == [] and page.requests == []


def test_hostile_texts_stay_texts(tmp_path: Path, page: Browser) -> None:
    page.open(write(made_runs.hostile(tmp_path)))
    press(page, "2: wrong")
    assert page.value("document.querySelector('#panel').dataset.step") == "2"
    assert page.value("document.querySelector('#panel').textContent.includes('window.hacked')") is True
    assert page.value("window.hacked === undefined && !document.querySelector('img')") is True
    assert page.complaints == [] and page.requests == []
