"""`kernelpro plot`: SVG and PNG of a run."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest
from report import made_runs
from ui.generated_runs import ACCOUNT

from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput
from kernelpro.report.plots import plot


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    made = made_runs.won(tmp_path_factory.mktemp("plots"))
    best = made.step(7)
    assert best and best.diagnosis
    made.save_step(replace(best, diagnosis=replace(best.diagnosis, account=ACCOUNT)))
    return made


def texts(svg: str) -> list[str]:
    return [
        element.text or "" for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")
    ]


def test_the_tree_has_a_mark_for_every_step(store: RunStore) -> None:
    shown = texts(plot(store, "tree"))
    assert "★ 7: 2.50x" in shown and "4: wrong" in shown and "reference" in shown and len(shown) == 9


def test_progress_names_baselines_and_floor(store: RunStore) -> None:
    shown = texts(plot(store, "progress"))
    assert {"torch.compile", "PyTorch eager (FP32)", "floor"} <= set(shown)


def test_the_roofline_has_the_path_to_the_winner(store: RunStore) -> None:
    assert "step 7: 0.82 ms" in texts(plot(store, "roofline"))


def test_the_account_adds_up(store: RunStore) -> None:
    assert any("the floor" in text for text in texts(plot(store, "account")))
    with pytest.raises(BadInput, match=r"step 4 .* has no time account: it was not profiled"):
        plot(store, "account", 4)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    store = made_runs.hostile(tmp_path)
    for chart in ("tree", "progress"):
        ElementTree.fromstring(plot(store, chart))  # type: ignore[arg-type]


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "kernelpro", "plot", *words], capture_output=True, text=True)


def test_the_command_writes_svg_and_png(store: RunStore, tmp_path: Path) -> None:
    pytest.importorskip("resvg_py")
    home = ("--runs-dir", str(store.folder.parent))
    assert command(store.id, "progress", "-o", str(tmp_path / "p.png"), *home).returncode == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    refused = command(store.id, "tree", "-o", str(tmp_path / "tree.gif"), *home)
    assert refused.returncode == 2 and "must end in .svg or .png" in refused.stderr
