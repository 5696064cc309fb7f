"""A real browser, driven over a pipe: chromium's own debugging protocol, null-terminated JSON on descriptors 3 and 4."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --remote-debugging-pipe "
    "--disable-site-isolation-trials --renderer-process-limit=1"  # or every visit starts a process
)
_PATIENCE = 60.0


class Browser:
    """One page; what it logs, throws and asks the network for is kept."""

    def __init__(self, profile: Path):
        assert PROGRAM
        there, self._out = os.pipe()
        self._in, back = os.pipe()
        words = " ".join(
            f'"{word}"' for word in (PROGRAM, *_QUIET.split(), f"--user-data-dir={profile}", "about:blank")
        )
        self._process = subprocess.Popen(
            ["bash", "-c", f"exec {words} 3<&{there} 4>&{back}"],
            pass_fds=(there, back),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(there)
        os.close(back)
        self._number, self._buffer, self._session = 0, b"", ""
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    # --- the protocol ------------------------------------------------------------------------------------

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, end - time.monotonic()))
            read = os.read(self._in, 1 << 20) if ready else b""
            assert read, "the browser went silent"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message

    def _wait(self, method: str, since: int) -> None:
        while not any(event["method"] == method for event in self.events[since:]):
            self._read()

    # --- what a person does ------------------------------------------------------------------------------

    def open(self, place: Path | str, width: int = 1400, height: int = 1000, scheme: str = "light") -> None:
        """Open a file or an address."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        since = len(self.events)
        url = place if isinstance(place, str) else place.resolve().as_uri()
        self.ask("Page.navigate", url=url)
        self._wait("Page.loadEventFired", since)

    def value(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def click(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, height: int | None = None) -> None:
        """Of the whole page, or of its top."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))

    # --- what it saw -------------------------------------------------------------------------------------

    @property
    def complaints(self) -> list[str]:
        """Exceptions, errors and warnings, refused scripts among them."""
        found = []
        for event in self.events:
            parameters = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(json.dumps(parameters["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
                found.append(parameters["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and parameters["type"] in (
                "error",
                "warning",
                "assert",
            ):
                found.append(json.dumps(parameters["args"]))
        return found

    @property
    def requests(self) -> list[str]:
        """Addresses asked for, the page's own file and what is inside it aside."""
        urls = [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in urls if not url.startswith(("file:", "data:", "about:", "blob:"))]
