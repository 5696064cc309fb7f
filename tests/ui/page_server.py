"""The real server in a process of its own, and a browser that waits for what it should show."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from report.browser import Browser

_PATIENCE = 90.0
UPDATES = """((count) => {
  const { receive, state } = window.kernelpro;
  const first = Number(document.querySelector('#log').dataset.last) + 1;
  for (let id = first; id < first + count; id++) {
    const step = { ...state.steps.get(2 + id % 30) };
    if (step.ms) step.ms *= 1 + (id % 7 - 3) / 1000;
    const now = Date.now() / 1000;
    const line = { id, time: now, text: `event ${id}`, step: step.n, level: '' };
    receive({ steps: [step], lines: [line], seconds: { [step.n]: id }, process: {}, status: { ...state.status, now } });
  }
})"""
"""So many updates as the stream brings them, one after the other."""


@dataclass(frozen=True)
class PageServer:
    """A running `kernelpro ui`."""

    address: str
    """With the token."""
    home: Path
    runs: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", self.home / "runs")

    @property
    def base(self) -> str:
        return self.address.partition("/?")[0]

    @property
    def token(self) -> str:
        return self.address.partition("token=")[2]

    def ask(
        self, path: str, data: Any = None, method: str = "", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers and text of the answer to one request, without redirects."""
        parts = urlsplit(self.base)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        body = None if data is None else json.dumps(data)
        all_headers = {"content-type": "application/json"} if data is not None else {}
        all_headers |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method or ("GET" if data is None else "POST"), path, body, all_headers)
        answer = connection.getresponse()
        text = "" if answer.headers.get_content_type() == "text/event-stream" else answer.read().decode()
        connection.close()
        return answer.status, {k.lower(): v for k, v in answer.headers.items()}, text


def own_locks(home: Path) -> dict[str, str]:
    """An environment in which judgements do not wait for those of other tests."""
    return os.environ | {"KERNELPRO_LOCKS": str(home / "locks")}


@contextmanager
def serving(home: Path, *options: str, port: int = 0) -> Iterator[PageServer]:
    command = [sys.executable, "-m", "kernelpro", "ui", "--runs-dir", str(home / "runs")]
    command += ["--port", str(port), *options]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=own_locks(home)
    )
    try:
        assert process.stdout
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), "the server did not start"
        yield PageServer(address, home)
    finally:
        process.terminate()
        process.wait(20)


def wait_until(check: Callable[[], Any], what: str) -> Any:
    """The first true value of `check`."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        if value := check():
            return value
        time.sleep(0.05)
    raise AssertionError(f"waited in vain: {what}")


class Page:
    """What a person does with the page."""

    def __init__(self, browser: Browser, server: PageServer):
        self.browser, self.server = browser, server

    def visit(self, path: str, width: int = 1440, height: int = 900, scheme: str = "light") -> None:
        """Open a view and wait until it is drawn."""
        self.browser.open("about:blank")
        self.browser.open(self.server.base + path, width, height, scheme)
        self.until("document.body.dataset.ready === 'yes'")

    def until(self, expression: str) -> Any:
        return wait_until(lambda: self.browser.value(expression), expression)

    def click(self, selector: str) -> None:
        found = f"[...document.querySelectorAll({json.dumps(selector)})].find((e) => e.offsetParent !== null)"
        self.until(f"Boolean({found})")
        self.browser.value(f"{found}.click()")

    def fill(self, selector: str, text: str) -> None:
        self.browser.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.value = {json.dumps(text)}; "
            "e.dispatchEvent(new Event('input', {bubbles: true})); })()"
        )

    def text(self, selector: str) -> str:
        return str(self.browser.value(f"document.querySelector({json.dumps(selector)}).innerText"))

    def until_text(self, selector: str, part: str) -> None:
        self.until(f"document.querySelector({json.dumps(selector)}).innerText.includes({json.dumps(part)})")
