"""The live page in Chromium: first paint and interaction with a large run, and a long stream of events.

    python benchmarks/ui_page.py --steps 10000 --seconds 600

Writes benchmarks/results/ui-page.json and prints a table. Needs chromium and the extra `ui`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from report.browser import Browser  # noqa: E402
from report.made_runs import passed  # noqa: E402
from ui.generated_runs import record  # noqa: E402
from ui.page_server import Page, PageServer, serving  # noqa: E402

from kernelpro.engine.store import RunStore  # noqa: E402
from kernelpro.records.events import StepProgress  # noqa: E402

TREE = "window.kernelpro.tree"
RATE = 50
"""Events per second."""
OBSERVE = """new PerformanceObserver((list) => {
  window.longest = Math.max(window.longest || 0, ...list.getEntries().map((entry) => entry.duration));
}).observe({type: 'longtask', buffered: true})"""
FRAMES = """(async (zoom) => {
  const tree = window.kernelpro.tree;
  tree.moved = true;
  tree.fit();
  if (zoom) { tree.view.zoom = tree.view.across = zoom; tree.centre(tree.nodes.get(tree.meta.best)); }
  const times = [];
  for (let k = 0; k < 60; k++) {
    await new Promise((done) => requestAnimationFrame(done));
    tree.view.x -= 3;
    tree.view.y += 2;
    const start = performance.now();
    tree.paintNow();
    times.push(performance.now() - start);
  }
  return times;
})"""

FILTER = """(() => {
  const start = performance.now();
  const filter = document.querySelector('#step-filter');
  filter.value = 'wrong';
  filter.dispatchEvent(new Event('input'));
  return performance.now() - start;
})()"""

UPDATES = """(async (first, count) => {
  const { receive, state } = window.kernelpro;
  const numbers = [...state.steps.keys()];
  let id = Number(document.querySelector('#log').dataset.last);
  for (let k = first; k < first + count; k++) {
    const step = { ...state.steps.get(numbers[k % numbers.length]) };
    if (step.ms) step.ms *= 1 + ((k * 7919) % 97 - 48) / 4000;
    const now = Date.now() / 1000;
    const line = (j) => ({ id: ++id, time: now, text: `step ${step.n}: ${k}.${j}`, step: step.n, level: '' });
    const lines = [0, 1, 2, 3].map(line);
    const status = JSON.parse(JSON.stringify(state.status));
    status.activity = [{ job: `step ${step.n}`, stage: 'timing', since: now }];
    status.spent.wall_seconds += 1;
    const process = { starting: false, error: '' };
    receive({ steps: [step], lines, seconds: { [step.n]: k }, process, status: { ...status, now } });
    await new Promise((done) => requestAnimationFrame(done));
    if (k % 20 === 0) for (const by of ['time', 'step']) document.querySelector(`[data-by="${by}"]`).click();
  }
})"""


def large_run(browser: Browser, server: PageServer, steps: int) -> dict[str, Any]:
    """First paint, the whole tree, and how long it takes to answer the user."""
    page = Page(browser, server)
    browser.open("about:blank")
    browser.ask("Network.clearBrowserCache")
    browser.open(f"{server.base}/runs/runs/recorded-1", 1440, 900)
    browser.value(OBSERVE)
    page.until(
        f"document.body.dataset.ready === 'yes' && {TREE}.order.length === {steps + 1} && !{TREE}.painting"
    )
    drawn = browser.value("performance.now()")
    paint = "performance.getEntriesByType('paint').find((e) => e.name === 'first-contentful-paint').startTime"
    found = {"first paint, ms": browser.value(paint), "all steps drawn, ms (at most)": drawn}
    time.sleep(1.0)
    found["longest task while loading, ms"] = browser.value("window.longest || 0")
    browser.value("window.longest = 0")
    for name, zoom in (("whole tree", 0), ("readable", 0.9)):
        times = sorted(browser.value(f"{FRAMES}({zoom})"))
        found[f"a frame while panning, {name}, median ms"] = statistics.median(times)
        found[f"a frame while panning, {name}, 95 % ms"] = times[round(0.95 * (len(times) - 1))]
    lay = f"(() => {{ const t = performance.now(); {TREE}.layout(); return performance.now() - t; }})()"
    found["layout of all steps, ms"] = statistics.median(browser.value(lay) for _ in range(9))
    start = time.monotonic()
    browser.value("location.hash = 'step-77'")
    page.until("document.querySelector('#part-Overview') !== null")
    found["open a step, ms (at most)"] = 1000 * (time.monotonic() - start)
    found["filter the list of steps, ms"] = browser.value(FILTER)
    found["elements of the page"] = browser.value("document.querySelectorAll('*').length")
    return found


def memory(browser: Browser, server_pid: int) -> dict[str, float]:
    """After a forced garbage collection."""
    for _ in range(2):  # the second also frees what finalizers of the first released
        browser.ask("HeapProfiler.collectGarbage")
    used = browser.ask("Runtime.getHeapUsage")["usedSize"]
    counters = browser.ask("Memory.getDOMCounters")
    status = Path(f"/proc/{server_pid}/status").read_text()
    resident = next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]
    return {
        "heap of the page, MiB": used / 2**20,
        "nodes of the page": counters["nodes"],
        "listeners of the page": counters["jsEventListeners"],
        "server, MiB": int(resident) / 1024,
    }


def heap_by_type(browser: Browser) -> dict[str, float]:
    """Mebibytes of a heap snapshot: compiled code, objects of scripts, and the browser's own (native)."""
    browser.events.clear()
    browser.ask("HeapProfiler.takeHeapSnapshot", reportProgress=False)
    chunks = [
        event["params"]["chunk"] for event in browser.events if event["method"].endswith("SnapshotChunk")
    ]
    browser.events.clear()
    snapshot = json.loads("".join(chunks))
    meta = snapshot["snapshot"]["meta"]
    fields, names = meta["node_fields"], meta["node_types"][0]
    nodes, width = snapshot["nodes"], len(fields)
    sizes: Counter[str] = Counter()
    for at in range(0, len(nodes), width):
        name = names[nodes[at + fields.index("type")]]
        kind = {"code": "compiled code", "native": "native"}.get(name, "objects")
        sizes[kind] += nodes[at + fields.index("self_size")]
    return {kind: sizes[kind] / 2**20 for kind in ("compiled code", "objects", "native")}


def many_updates(browser: Browser, server: PageServer, pid: int, updates: int) -> dict[str, Any]:
    """Updates as fast as the page draws them: what stays in memory after 40 % of them, and after all."""
    page = Page(browser, server)
    page.visit("/runs/runs/recorded-2")
    first = round(updates * 0.4)
    browser.value(f"{UPDATES}(0, {first})")
    before = memory(browser, pid) | heap_by_type(browser)
    browser.value(f"{UPDATES}({first}, {updates - first})")
    after = memory(browser, pid) | heap_by_type(browser)
    return {f"{name}, after {first} and {updates}": [before[name], after[name]] for name in before}


def long_stream(browser: Browser, server: PageServer, pid: int, seconds: float) -> dict[str, Any]:
    """`RATE` events a second on a run of fixed size: memory, delay and the longest task. Every sixth saves a
    step, with another time if it passed: tiles, tree, list and chart are drawn again."""
    store = RunStore.open(server.runs, "recorded-2")
    page = Page(browser, server)
    page.visit("/runs/runs/recorded-2")
    steps = store.steps()
    written, ended = [0], threading.Event()

    def write() -> None:
        own = RunStore(store.folder)
        own.lock()
        own._db.execute("PRAGMA synchronous=OFF")
        start = time.monotonic()
        while not ended.is_set():
            step = steps[written[0] // 4 % len(steps)]
            phase = ("writing", "judging", "judged", "settled")[written[0] % 4]
            own.add_event(StepProgress(step.number, phase))  # type: ignore[arg-type]
            if written[0] % 6 == 0:
                ms = step.ms and step.ms * (1 + written[0] % 97 / 500)
                own.save_step(replace(step, verdict=passed(step.number, ms)) if ms else step)
            written[0] += 1
            ended.wait(max(0.0, start + written[0] / RATE - time.monotonic()))
        own.close()

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(min(20.0, seconds / 5))  # the first drawings
    browser.value(OBSERVE)
    browser.events.clear()
    first, delays = memory(browser, pid), []
    minutes, heap_first = [first], heap_by_type(browser)
    start, begun = time.monotonic(), written[0]
    while time.monotonic() - start < seconds:
        last, at = store.last_event, time.monotonic()
        Page(browser, server).until(f"Number(document.querySelector('#log').dataset.last) >= {last}")
        delays.append(1000 * (time.monotonic() - at))
        browser.events.clear()
        if (time.monotonic() - start) // 60 >= len(minutes):
            minutes.append(memory(browser, pid))
        time.sleep(1.0)
    elapsed = time.monotonic() - start
    second, heap_second = memory(browser, pid), heap_by_type(browser)
    rate = (written[0] - begun) / elapsed
    ended.set()
    writer.join()
    return {
        **{f"{name}, by minute": [each[name] for each in minutes] for name in first},
        **{f"heap, {name}, MiB, start and end": [heap_first[name], heap_second[name]] for name in heap_first},
        "seconds": elapsed,
        "events per second": rate,
        "from the store to the page, median ms": statistics.median(delays),
        "from the store to the page, longest ms": max(delays),
        "longest task, ms": browser.value("window.longest || 0"),
        **{f"{name}: at the start": value for name, value in first.items()},
        **{f"{name}: at the end": value for name, value in second.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "ui-page.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        record(home / "runs", options.steps, open_steps=3).close()
        record(home / "runs", 400, open_steps=0).close()
        with serving(home) as server:
            pid = int(os.popen(f"pgrep -f 'kernelpro ui --runs-dir {home}'").read().split()[0])
            browser = Browser(home / "profile")
            browser.open(server.address)
            large = large_run(browser, server, options.steps)
            updates = many_updates(browser, server, pid, options.updates)
            stream = long_stream(browser, server, pid, options.seconds)
            browser.close()
    result = {
        "steps": options.steps,
        "load": os.getloadavg(),
        "large run": large,
        "updates": updates,
        "stream": stream,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for title in ("large run", "updates", "stream"):
        print(title)
        for name, value in result[title].items():  # type: ignore[attr-defined]
            values = value if isinstance(value, list) else [value]
            print(f"  {name:55} {'  '.join(f'{number:.1f}' for number in values):>10}")


if __name__ == "__main__":
    main()
