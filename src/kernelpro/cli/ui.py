"""`kernelpro ui` and `kernelpro plot`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from kernelpro.cli.commands.ui import PlotOptions, UiOptions
from kernelpro.engine.store import RunStore, runs_dir
from kernelpro.records import BadInput
from kernelpro.report import plots

_INSTALL = "pip install -e '.[ui]' in the clone of KernelPro"


def serve_page(options: UiOptions) -> int:
    """Serve the page until Ctrl-C."""
    for package in ("starlette", "uvicorn"):
        if importlib.util.find_spec(package) is None:
            raise BadInput(f"kernelpro ui needs {package}: {_INSTALL}")
    from kernelpro.ui.locations import Locations
    from kernelpro.ui.server import serve

    folder = runs_dir(options.runs_dir)
    benches = Path(options.benches_dir) if options.benches_dir else folder.parent / "benches"
    if benches.is_file():
        raise BadInput(f"--benches-dir {benches}: this is a file, not a folder")

    def announce(address: str) -> None:
        found = "" if any(folder.glob("*/run.db")) else " (none yet; they appear when they start)"
        print(f"the page of the runs in {folder}{found}: open", file=sys.stderr)
        print(address, flush=True)
        print("Ctrl-C closes the page; runs go on", file=sys.stderr, flush=True)

    serve(Locations(folder, benches), options.host, options.port, announce)
    return 0


def write_plot(options: PlotOptions) -> int:
    """Draw a chart and write it."""
    store = RunStore.open(runs_dir(options.runs_dir), options.run)
    svg = plots.plot(store, options.chart, options.step)
    path = Path(options.out or f"{options.run}-{options.chart}.svg")
    if path.suffix.lower() not in (".svg", ".png"):
        raise BadInput(f"--out {path}: the name must end in .svg or .png")
    data = svg.encode() if path.suffix.lower() == ".svg" else _png(svg, options.scale)
    try:
        path.write_bytes(data)
    except OSError as error:
        raise BadInput(f"--out {path}: cannot be written ({error.strerror})") from None
    print(path)
    return 0


def _png(svg: str, scale: float) -> bytes:
    if importlib.util.find_spec("resvg_py") is None:
        raise BadInput(f"--out FILE.png needs resvg-py: {_INSTALL}; or write FILE.svg")
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=scale, sans_serif_family="DejaVu Sans"))
