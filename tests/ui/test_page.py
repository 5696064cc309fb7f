"""Every view of the live page in a real browser, on a generated run of 230 steps."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from report import made_runs
from report.browser import PROGRAM, Browser
from ui.generated_runs import record
from ui.page_server import UPDATES, Page, PageServer, serving

from kernelpro.engine.store import RunStore
from kernelpro.records.events import HintGiven, Note, StepProgress

pytest.importorskip("starlette")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no chromium here")

TREE = "window.kernelpro.tree"
OUTSIDE = """[...document.querySelectorAll('main *')].filter((element) => {
  const box = element.getBoundingClientRect();
  const clipped = element.closest('.wide, .steps-window, .log, .tabs, .tree-stage, .hidden, .spark, canvas, #chart-progress');
  return box.width && !clipped && box.right > document.documentElement.clientWidth + 1;
}).map((element) => `${element.tagName}.${element.className}`).slice(0, 5)"""
UNNAMED = """[...document.querySelectorAll('button, a[href], input, select, textarea, #tree')].filter((element) => {
  const label = element.labels?.length || element.getAttribute('aria-label') || element.getAttribute('aria-labelledby') || element.title;
  return element.offsetParent !== null && element.getAttribute('aria-hidden') !== 'true' && !label && !element.innerText?.trim();
}).map((element) => element.outerHTML.slice(0, 120))"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    home = tmp_path_factory.mktemp("page")
    record(home / "runs", 230, seed=8)
    record(home / "runs", 40, seed=3, ended=True, name="softmax_rows")
    made_runs.hostile(home / "runs")
    bench = home / "benches" / "builtin-author"
    record(bench / "runs", 12, seed=4, ended=True, name="relu").close()
    (bench / "results.jsonl").write_text("")
    rows = [
        {
            "problem": f"1/{k} task",
            "status": "passed",
            "speedup": {"compile": {"value": k / 2}},
            "ms": 1.0 / k,
        }
        for k in range(1, 9)
    ]
    rows += [{"problem": "1/9 bad", "status": "wrong", "reason": made_runs.HOSTILE}]
    (bench / "scoreboard.json").write_text(json.dumps({"evaluated": "playbook", "rows": rows}))
    with serving(home) as found:
        yield found


VIEWS = (
    "/",
    "/runs/runs/recorded-1",
    "/runs/runs/recorded-1#step-20",
    "/compare?run=runs/recorded-1&run=runs/recorded-2",
    "/suites",
    "/suites/builtin-author",
)


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(1440, "light"), pytest.param(1024, "dark", marks=pytest.mark.long), (390, "dark")],
)
def test_every_view_fits_is_labelled_and_logs_no_error(page: Page, width: int, scheme: str) -> None:
    for view in VIEWS:
        page.visit(view, width, 844, scheme)
        assert page.browser.value(OUTSIDE) == [], view
        assert page.browser.value(UNNAMED) == [], view
    assert page.browser.complaints == []
    assert all(url.startswith(page.server.base) for url in page.browser.requests), "no network"


def test_the_list_filters_sorts_and_compares(page: Page) -> None:
    page.visit("/")
    names = "[...document.querySelectorAll('#runs tbody a')].map((link) => link.textContent)"
    assert len(page.browser.value(names)) == 3
    page.click('#runs th[data-sort="speedup"] button')
    speeds = page.browser.value(
        "[...document.querySelectorAll('#runs td:nth-child(4) b')].map((b) => parseFloat(b.textContent))"
    )
    assert speeds == sorted(speeds, reverse=True)
    page.fill("#filter", "softmax")
    assert page.browser.value(names) == ["recorded-2"]
    page.fill("#filter", "")
    page.browser.value(
        "[...document.querySelectorAll('#runs tbody input')].slice(0, 2).forEach((box) => box.click())"
    )
    page.click("#compare")
    page.until("location.pathname === '/compare' && document.querySelectorAll('#compared td').length > 20")


def test_a_run_shows_its_tree_charts_and_lists(page: Page) -> None:
    page.visit("/runs/runs/recorded-1")
    assert page.browser.value(f"{TREE}.order.length") == 231, "all steps and the reference"
    page.until("document.querySelector('#chart-progress canvas') !== null")
    assert "of 300" in page.text("#tiles") and "design" in page.text("#costs")
    assert "The process that worked on this run died" in page.text("#banner")
    assert page.browser.value("document.querySelectorAll('.step-row').length") < 40, "only rows in view exist"
    best = page.browser.value("window.kernelpro.state.status.best.n")
    page.browser.value("document.querySelector('#tree').focus()")
    for key, code in (("b", "KeyB"), ("Enter", "Enter")):
        for kind in ("keyDown", "keyUp"):
            page.browser.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, code=code, text=key if len(key) == 1 else ""
            )
    page.until(
        f"location.hash === '#step-{best}' && document.querySelector('#drawer-title').textContent === 'Step {best}'"
    )
    assert f"step {best}" in page.text("#tree-said")
    page.until("document.querySelectorAll('#tabs button').length >= 3")
    page.click("#tab-Source")
    assert "class ModelNew" in page.text("#part-Source pre")
    for kind in ("keyDown", "keyUp"):
        page.browser.ask("Input.dispatchKeyEvent", type=kind, key="Escape", code="Escape")
    page.until("document.querySelector('#drawer').hidden && location.hash === ''")
    assert page.browser.complaints == []


def test_a_click_in_the_tree_opens_a_step(page: Page) -> None:
    page.visit("/runs/runs/recorded-1")
    spot = f"(() => {{ const node = {TREE}.nodes.get({TREE}.meta.best); const box = document.querySelector('#tree').getBoundingClientRect(); const [x, y] = {TREE}.place(node); return [box.left + x, box.top + y, node.n]; }})()"
    page.browser.value("document.querySelector('#tree').scrollIntoView({block: 'center'})")
    page.until(f"{TREE}.paints > 0 && {TREE}.painting === 0")
    x, y, number = page.browser.value(spot)
    page.browser.click(x, y)
    page.until(f"location.hash === '#step-{number}'")


def test_what_happens_appears_and_a_lost_connection_is_resumed(
    browser: Browser, server: PageServer, tmp_path: Path
) -> None:
    store = record(tmp_path / "runs", 20)
    with serving(tmp_path) as own:
        browser.open(own.address)
        page = Page(browser, own)
        page.visit(f"/runs/runs/{store.id}")
        store.add_event(Note("a line while the page is open"))
        page.until_text("#log", "a line while the page is open")
    page.until_text("#link", "reconnecting")
    for number in range(5):
        store.add_event(Note(f"missed line {number}"))
    with serving(tmp_path, port=int(own.base.rpartition(":")[2])):
        page.until_text("#log", "missed line 4")
        page.until_text("#link", "live")
        lines = page.text("#log")
        assert all(lines.count(f"missed line {k}") == 1 for k in range(5)), "each once"
        assert lines.count("a line while") == 1
        browser.open("about:blank")


def test_a_run_that_is_deleted_is_reported_and_stays_readable(page: Page) -> None:
    store = record(page.server.runs, 5)
    page.visit(f"/runs/runs/{store.id}")
    store.close()
    shutil.rmtree(store.folder)
    page.until_text("#banner", f"run {store.id} was deleted")
    assert page.text("#state") == "gone" and page.browser.value(f"{TREE}.order.length") == 6
    assert page.browser.complaints == []


def test_hostile_text_is_shown_as_text(page: Page) -> None:
    escapes = "\x1b[31mred\x1b]0;title\x07 \u202eright to left"
    store = RunStore.open(page.server.runs, "affine-1")
    store.add_event(Note(made_runs.HOSTILE + escapes))
    store.add_event(HintGiven(made_runs.HOSTILE))

    def check() -> None:
        assert page.browser.value("window.hacked") is None
        assert page.browser.value("document.querySelectorAll('img, main script').length") == 0

    for view in ("/", "/suites/builtin-author", "/runs/runs/affine-1"):
        page.visit(view)
        check()
    page.until_text("#log", "onerror=")
    assert "␛[31mred␛]0;title␇" in page.text("#log") and "\u202e" not in page.text("#log")
    for step in (1, 2):
        page.browser.value(f"location.hash = 'step-{step}'")
        page.until(f"document.querySelector('#drawer-title').textContent === 'Step {step}'")
        page.until("document.querySelectorAll('#tabs button').length >= 2")
        page.browser.value("document.querySelectorAll('#tabs button').forEach((button) => button.click())")
        check()
    assert page.browser.complaints == []


def test_ten_thousand_steps_do_not_freeze_the_page(page: Page, tmp_path: Path) -> None:
    """How long it takes: benchmarks/ui_page.py."""
    page.visit("/runs/runs/recorded-1")
    made = """(() => {
      const steps = [];
      for (let n = 1; n <= 10000; n++) steps.push({n, p: n < 20 ? 0 : Math.floor(n * 0.6) - (n % 7), a: 'improve', s: 'passed', ms: 1 + n % 9, x: 1 + n % 5, base: 'compile', plan: 'p'});
      window.kernelpro.receive({steps, lines: [], seconds: {}, process: {}});
    })()"""
    page.browser.value(made)
    page.until(f"{TREE}.order.length > 10000 && {TREE}.painting === 0")
    page.browser.value(f"{TREE}.fit()")
    page.until(f"{TREE}.painting === 0")
    assert page.browser.value("document.querySelectorAll('*').length") < 3000, (
        "rows and labels are not elements"
    )


def test_a_page_left_open_keeps_its_size(page: Page) -> None:
    """A thousand events: as many elements and listeners as before."""
    page.visit("/runs/runs/recorded-1")
    store = RunStore.open(page.server.runs, "recorded-1")
    step = store.steps()[-1]

    def burst() -> int:
        with store.transaction():
            for _ in range(400):
                store.add_event(StepProgress(230, "judging"))
            store.save_step(step)
        last = store.last_event
        page.until(f"Number(document.querySelector('#log').dataset.last) >= {last}")
        time.sleep(0.2)
        return int(page.browser.ask("Memory.getDOMCounters")["nodes"])

    burst()
    page.browser.ask("HeapProfiler.enable")
    page.browser.ask("HeapProfiler.collectGarbage")
    before = burst()
    burst()
    page.browser.ask("HeapProfiler.collectGarbage")
    after = int(page.browser.ask("Memory.getDOMCounters")["nodes"])
    assert after <= before * 1.05
    assert page.browser.value("document.querySelector('#log').children.length") == 300


def test_a_page_in_the_background_keeps_its_size(page: Page) -> None:
    """A hidden tab draws no frames: whatever waits for one must not pile up."""
    page.visit("/runs/runs/recorded-2")
    browser = page.browser
    other = browser.ask("Target.createTarget", url="about:blank")["targetId"]
    page.until("document.hidden")

    def size() -> tuple[float, int, int]:
        """Heap in MiB after garbage collection, nodes and listeners."""
        for _ in range(3):
            browser.ask("HeapProfiler.collectGarbage")
        heap = browser.ask("Runtime.getHeapUsage")
        used = (heap["usedSize"] + heap.get("embedderHeapUsedSize", 0)) / 2**20
        counters = browser.ask("Memory.getDOMCounters")
        return used, counters["nodes"], counters["jsEventListeners"]

    browser.value(f"{UPDATES}(800)")  # the browser compiles what is used often
    before = size()
    browser.value(f"{UPDATES}(1500)")
    after = size()
    browser.ask("Page.bringToFront")
    browser.ask("Target.closeTarget", targetId=other)
    page.until("!document.hidden && !window.kernelpro.tree.painting")
    assert after[1:] == before[1:], "as many nodes and listeners"
    assert after[0] < before[0] + 0.1, "a callback for each update takes 0.2 MiB"


def test_news_do_not_move_the_place_of_the_user(page: Page) -> None:
    """The active row of the list stays the same step, and the drawer keeps the focus."""
    page.visit("/runs/runs/recorded-2#step-20")
    page.until("document.querySelectorAll('#tabs button').length >= 3")
    press = "document.querySelector('#steps').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}))"
    for _ in range(3):
        page.browser.value(press)
    active = "document.querySelector('.step-row.active').id"
    before = page.browser.value(active)
    page.browser.value("document.querySelector('#tab-Overview').focus()")
    asked = "performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/steps/20')).length"
    so_far = page.browser.value(asked)
    page.browser.value(
        "(() => { const { receive, state } = window.kernelpro; const step = state.steps.get(20); "
        "receive({steps: [step, {...step, n: 41}], lines: [], seconds: {}, process: {}, status: state.status}); })()"
    )
    page.until(f"document.querySelector('#row-41') !== null && {asked} > {so_far}")
    assert page.browser.value(active) == before
    assert page.browser.value("document.activeElement.id") == "tab-Overview"
    assert page.browser.complaints == []
