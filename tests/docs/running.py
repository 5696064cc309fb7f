"""Runs the commands and snippets of a page of the documentation.

What needs a GPU, a key, a network or a cluster is parsed against the real command line and the real signatures. Everything
else is executed, page by page, in an empty folder that holds a copy of `examples/`. To save time, searches run with one
candidate and no final judging, searches and judgements without the baseline torch.compile, and inputs of tasks have few
rows.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import typer.main
from docs.pages import ROOT, Block, blocks

import kernelpro
from kernelpro.cli.commands import app

COMMAND = typer.main.get_command(app)
SHORT = {
    "optimize": "--budget candidates=1 --tune-points 0 --finalists 0 --no-compile-seed --no-baseline compile",
    "judge": "--no-baseline compile --quick",
}
FEWER_ROWS = partial(re.sub, r"torch\.randn\(\d{3,}, (\d+)\)", r"torch.randn(64, \1)")
PREAMBLE = """
import functools, kernelpro, kernelpro.records
_optimize = kernelpro.optimize
def _short(*args, **keywords):
    eager = kernelpro.records.Options(baselines=("eager_fp32",))
    return _optimize(*args, **keywords | {"candidates": 1, "finalists": 0, "compile_seed": False, "options": eager})
kernelpro.optimize = functools.wraps(_optimize)(_short)
"""
SECONDS = 600


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


def parse(command: str) -> None:
    """Parse a `kernelpro` command line as the program does. Raises an exception for what it rejects."""
    words = shlex.split(command, comments=True)
    ends = [i for i, word in enumerate(words) if word in ("|", ">", "&&", "||", ";", "&")]
    parser: Any = COMMAND
    arguments = words[1 : min(ends, default=len(words))]
    while hasattr(parser, "commands") and arguments and not arguments[0].startswith("-"):
        if arguments[0] not in parser.commands:
            raise ValueError(f"no command {arguments[0]}")
        parser, arguments = parser.commands[arguments[0]], arguments[1:]
    if not {"--help", "--version", "--install-completion"} & set(arguments):
        parser.make_context(parser.name, list(arguments))


def check_command(command: str) -> None:
    """A command that is not executed must at least exist: ours by its options, `make` and `pip` by what they name."""
    words = shlex.split(command, comments=True)
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    if words[:1] == ["kernelpro"] or words[:1] == [".venv/bin/kernelpro"]:
        parse(shlex.join(words))
    if words[:1] == ["make"]:
        targets = re.findall(r"^([\w .-]+):(?!=)", (ROOT / "Makefile").read_text(), re.MULTILINE)
        known = {name for line in targets for name in line.split()}
        assert {word for word in words[1:] if "=" not in word} <= known, command
    if "install" in words and any("[" in word for word in words):
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for word in words:
            for group in re.findall(r"^\.\[([\w,-]+)\]$", word):
                assert set(group.split(",")) <= set(extras), command
    for word in words:
        if word.startswith(("examples/", "tests/", "benchmarks/")):
            assert (ROOT / word).exists(), f"{command}: no {word}"


def check_snippet(source: str) -> None:
    """A snippet that is not executed must compile, and call what `kernelpro` exports with parameters that exist."""
    for node in ast.walk(ast.parse(source)):
        if not (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == "kernelpro"
        ):
            continue
        assert hasattr(kernelpro, node.attr), f"kernelpro.{node.attr}"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("kernelpro."):
            target: Any = kernelpro
            for part in ast.unparse(node.func).split(".")[1:]:
                target = getattr(target, part)
            keywords = {keyword.arg: None for keyword in node.keywords if keyword.arg}
            inspect.signature(target).bind(*node.args, **keywords)


def scratch(folder: Path) -> dict[str, str]:
    """An empty place for a page: examples beside it, its own home, `kernelpro` on the path."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    home = folder / "home"
    home.mkdir()
    keys = {
        name for name in os.environ if name.endswith("_API_KEY") or name.startswith(("KERNELPRO_", "XDG_"))
    } - {"KERNELPRO_LOCKS", "KERNELPRO_CPU_FLUSH"}
    inherited = {name: value for name, value in os.environ.items() if name not in keys}
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return inherited | {"HOME": str(home), "PATH": programs, "XDG_CACHE_HOME": cache, "COLUMNS": "120"}


def shell(block: Block) -> str:
    """The script of a block, with short searches."""
    lines = []
    for command in block.commands:
        match = re.match(r"kernelpro (\S+) ", command)
        extra = SHORT.get(match[1], "") if match else ""
        lines.append(
            re.sub(r"^(.*?)(?=( [|>&].*)?$)", rf"\1 {extra}", command, count=1) if extra else command
        )
    return "\n".join(lines)


def run_page(path: Path, folder: Path) -> None:
    environment = scratch(folder)
    snippets: list[str] = []
    for block in blocks(path):
        where = f"{names(path)}:{block.line}"
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(FEWER_ROWS(block.body))
        elif block.language in ("bash", "console"):
            for command in block.commands:
                check_command(command)
            if not block.not_run and block.commands:
                script = f"set -euo pipefail\n{shell(block)}\n"
                run(["bash", "-c", script], folder, environment, where)
        elif block.language == "python":
            check_snippet(block.body)
            if not block.not_run:
                snippets.append(block.body)
    if snippets:
        (folder / "snippets.py").write_text(PREAMBLE + "\n".join(snippets))
        run([sys.executable, "snippets.py"], folder, environment, names(path))


def run(command: list[str], folder: Path, environment: dict[str, str], where: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
