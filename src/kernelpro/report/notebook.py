"""Runs in notebooks: live progress while a run works, and its result as HTML."""

from __future__ import annotations

import html
import sys
from pathlib import Path
from typing import Any, Protocol

from kernelpro.records import Verdict
from kernelpro.report import wording

_MAX_LINES = 12


class LiveDisplay(Protocol):
    """A place where progress lines of a run appear."""

    def add_line(self, line: str) -> None:
        """Show another line."""


def live_display() -> LiveDisplay | None:
    """The output of the running notebook cell; None outside of a notebook."""
    shell = getattr(sys.modules.get("__main__"), "get_ipython", lambda: None)()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return CellOutput()


class CellOutput:
    """Output of a notebook cell. It shows the latest lines and is updated in place."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._handle: Any = None

    def add_line(self, line: str) -> None:
        """Show another line."""
        from IPython.display import HTML, display

        self._lines.append(line)
        hidden = len(self._lines) - _MAX_LINES
        shown = ([f"... {hidden} more"] if hidden > 0 else []) + self._lines[-_MAX_LINES:]
        page = HTML(f"<pre>{html.escape(chr(10).join(shown))}</pre>")  # type: ignore[no-untyped-call]
        if self._handle is None:
            self._handle = display(page, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(page)


def result_html(verdict: Verdict | None, summary: str, report: Path | None) -> str:
    """The result of a run as HTML: its winner and a table of speed-ups."""
    first = html.escape(summary.partition("\n")[0])
    if verdict is None:
        return f"<p><b>{first}</b></p>"
    rows = [
        f"<tr><td>{html.escape(name)}</td><td>{verdict.times[name].value:.4g} ms</td>"
        f"<td>{html.escape(wording.format_speedup(ratio))}</td></tr>"
        for name, ratio in verdict.speedup.items()
        if name in verdict.times
    ]
    link = f'<p><a href="{html.escape(report.resolve().as_uri())}">report</a></p>' if report else ""
    head = "<tr><th>baseline</th><th>time</th><th>speed-up</th></tr>"
    return f"<p><b>{first}</b></p><table>{head}{''.join(rows)}</table>{link}"
