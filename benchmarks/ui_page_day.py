"""The live page that stays open: memory of the page and of the server over a day's worth of updates.

    nice python benchmarks/ui_page_day.py --updates 60000
    python benchmarks/ui_page_day.py --updates 0 --background 90000 --out FILE

Nothing is replaced: a store that changes, the server, its stream, the page in Chromium. Only the pause
between two looks at the store is shorter (`TICK`). An update saves a step with another time and adds two
events; the page draws tiles, tree, list and log again, and the chart once a second.

After every `--every` updates the script does what the user of a day does: opens a step and closes it, changes
the axis of the chart, puts the page into the background and back, and loses the connection. Then it forces
garbage collection and measures. Writes benchmarks/results/ui-page-day.json after each measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from report.browser import Browser  # noqa: E402
from report.made_runs import passed  # noqa: E402
from ui.generated_runs import record  # noqa: E402
from ui.page_server import UPDATES, Page, PageServer, own_locks  # noqa: E402
from ui_page import heap_by_type  # noqa: E402

from kernelpro.engine.store import RunStore  # noqa: E402
from kernelpro.records.events import StepProgress  # noqa: E402

TICK = 0.01
"""Seconds between two looks at the store; the server that users start waits 0.3 s."""
PAUSE = 0.022
"""Seconds between two updates: a page draws at most 60 times a second."""
SERVER = """
import signal, sys
from kernelpro.cli import main
from kernelpro.ui import app, stream

lost, plain = [], app.stream
signal.signal(signal.SIGUSR1, lambda *_: lost.append(1))

def droppable(folder, cursor, extra, is_closed):
    begun = len(lost)
    return plain(folder, cursor, extra, lambda: is_closed() or len(lost) > begun)

app.stream, stream._TICK = droppable, {tick}
sys.argv[1:] = ["ui", "--runs-dir", {runs!r}, "--port", "0"]
main()
"""
"""The server; SIGUSR1 ends its streams, as a lost connection does."""
STEPS = 200
SCALE = 0.25
"""Pixels of the screen per pixel of the page: without a GPU, painting pixels is most of the work."""
AHEAD = 50
"""Updates that are written before the page must have drawn the first of them."""
HIDDEN = 400
"""Updates while the page is in the background, after each of `--every` in front."""
LAST = "Number(document.querySelector('#log').dataset.last)"


@contextmanager
def fast_server(home: Path) -> Iterator[tuple[PageServer, int]]:
    """`kernelpro ui` with a shorter pause, and the id of its process."""
    code = SERVER.format(tick=TICK, runs=str(home / "runs"))
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=own_locks(home),
    )
    try:
        assert process.stdout
        yield PageServer(process.stdout.readline().strip(), home), process.pid
    finally:
        process.terminate()
        process.wait(20)


def resident(pid: int) -> dict[str, float]:
    """Mebibytes of a process: all that is resident, and what is its own."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name: int(fields[key].split()[0]) / 1024 for name, key in (("all", "VmRSS"), ("own", "RssAnon"))}


def renderer(profile: Path) -> int:
    """The process that draws the page: the renderer that has worked most."""
    busiest, most = 0, -1
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_text()
            times = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
        except OSError:
            continue
        work = sum(int(time) for time in times)
        if "--type=renderer" in words and str(profile) in words and work > most:
            busiest, most = int(folder.name), work
    return busiest


def measure(browser: Browser, profile: Path, server: int) -> dict[str, float]:
    """After forced garbage collection."""
    for _ in range(4):  # later ones free what finalizers of the first released, and code that is not used
        browser.ask("HeapProfiler.collectGarbage")
    heap, counters = browser.ask("Runtime.getHeapUsage"), browser.ask("Memory.getDOMCounters")
    page, own = resident(renderer(profile)), resident(server)
    browser.events.clear()
    return {
        "heap of the page, MiB": heap["usedSize"] / 2**20,
        "nodes": counters["nodes"],
        "listeners": counters["jsEventListeners"],
        "documents": counters["documents"],
        "process of the page, MiB": page["all"],
        "process of the page, its own, MiB": page["own"],
        "server, MiB": own["all"],
        "server, its own, MiB": own["own"],
        "threads of the server": len(os.listdir(f"/proc/{server}/task")),
        "open files of the server": len(os.listdir(f"/proc/{server}/fd")),
    }


class Writer:
    """Changes the run as its process would."""

    def __init__(self, folder: Path):
        self.store = RunStore(folder)
        self.store.lock()
        self.store._db.execute("PRAGMA synchronous=OFF")
        self.steps = self.store.steps()
        self.updates = 0

    def update(self) -> None:
        k = self.updates
        step = self.steps[k % len(self.steps)]
        ms = step.ms and step.ms * (1 + (k * 7919 % 97 - 48) / 4000)
        with self.store.transaction():
            self.store.add_event(StepProgress(step.number, "judging"))
            self.store.save_step(replace(step, verdict=passed(step.number, ms)) if ms else step)
            self.store.add_event(StepProgress(step.number, "settled"))
        self.store.set_activity(f"step {step.number}", "timing")
        self.store.set_activity(f"step {self.steps[k % len(self.steps) - 1].number}", "")
        self.updates += 1


def write(page: Page, writer: Writer, updates: int) -> None:
    """So many updates, as fast as the page shows them."""
    for first in range(0, updates, AHEAD):
        for _ in range(min(AHEAD, updates - first)):
            writer.update()
            time.sleep(PAUSE)
        page.until(f"{LAST} >= {writer.store.last_event}")
        page.browser.events.clear()


def visit_of_a_user(page: Page, writer: Writer, server: int) -> None:
    """A step is opened and closed, the axis of the chart changes, the page goes to the background and comes
    back, and the connection is lost and found."""
    browser, number = page.browser, writer.steps[writer.updates % 50].number
    browser.value(f"location.hash = 'step-{number}'")
    page.until("document.querySelector('#part-Overview') !== null")
    page.click("#drawer-close")
    for by in ("time", "step"):
        page.click(f'[data-by="{by}"]')
    other = browser.ask("Target.createTarget", url="about:blank")["targetId"]
    page.until("document.hidden")
    write(page, writer, HIDDEN)
    browser.ask("Page.bringToFront")
    browser.ask("Target.closeTarget", targetId=other)
    page.until("!document.hidden")
    os.kill(server, signal.SIGUSR1)
    page.until("!document.querySelector('#link').textContent.includes('live')")
    writer.update()
    page.until_text("#link", "live")
    write(page, writer, 1)


def stay_in_background(page: Page, updates: int, profile: Path, server: int) -> list[dict[str, float]]:
    """The page is hidden all the time, and receives updates without a pause."""
    browser, samples = page.browser, []
    other = browser.ask("Target.createTarget", url="about:blank")["targetId"]
    page.until("document.hidden")
    for so_far in range(500, updates + 1, 500):
        browser.value(f"{UPDATES}(500)")
        if so_far % 5000 == 0:
            samples.append({"updates": so_far} | measure(browser, profile, server))
    browser.ask("Target.closeTarget", targetId=other)
    return samples


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=60_000)
    parser.add_argument("--every", type=int, default=2000)
    parser.add_argument("--background", type=int, default=0, help="then so many updates of a hidden page")
    parser.add_argument("--minutes", type=float, default=120.0, help="stop after so long at the latest")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "ui-page-day.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        record(home / "runs", STEPS, open_steps=0).close()
        writer = Writer(home / "runs" / "recorded-1")
        with fast_server(home) as (server, pid):
            browser = Browser(home / "profile")
            browser.open(server.address)
            page = Page(browser, server)
            page.visit("/runs/runs/recorded-1", 1280, 800)
            for domain in ("Network", "Log"):  # they keep what the page received, for developer tools
                browser.ask(f"{domain}.disable")
            size = {"width": 1280, "height": 800, "mobile": False}
            browser.ask("Emulation.setDeviceMetricsOverride", deviceScaleFactor=SCALE, **size)
            samples: list[dict[str, Any]] = []
            result = {
                "browser": browser.ask("Browser.getVersion")["product"],
                "python": sys.version.split()[0],
                "steps": STEPS,
                "samples": samples,
            }
            start = time.monotonic()
            while writer.updates < options.updates and time.monotonic() - start < 60 * options.minutes:
                write(page, writer, min(options.every, options.updates - writer.updates))
                visit_of_a_user(page, writer, pid)
                drawn = browser.value("window.kernelpro.tree.paints")
                samples.append(
                    {
                        "updates": writer.updates,
                        "drawn": drawn,
                        "seconds": round(time.monotonic() - start),
                        "load": round(os.getloadavg()[0], 1),
                    }
                    | measure(browser, home / "profile", pid)
                )
                options.out.write_text(json.dumps(result, indent=1) + "\n")
                print("  ".join(f"{name} {value:.1f}" for name, value in samples[-1].items()), flush=True)
            assert not browser.complaints, browser.complaints
            result["heap by type at the end, MiB"] = heap_by_type(browser)
            result["in the background"] = stay_in_background(page, options.background, home / "profile", pid)
            options.out.write_text(json.dumps(result, indent=1) + "\n")
            print(result["heap by type at the end, MiB"])
            browser.close()
        writer.store.close()


if __name__ == "__main__":
    main()
