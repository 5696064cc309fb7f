"""Live Python objects as tasks: what a worker in another process needs to have them again."""

from __future__ import annotations

import ast
import base64
import copy
import inspect
import io
import pickle
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kernelpro.lab.tasks import examples
from kernelpro.pools import notebook
from kernelpro.records import BadInput

_MOST_LINES = 600
"""Of comments."""


class Packed(NamedTuple):
    """What a task is made of (records.Task)."""

    source: str
    entry: str
    payload: str
    outputs: str


def module(instance: Any, inputs: Any, init_inputs: Any = ()) -> Packed:
    """From an nn.Module and example inputs."""
    kind = type(instance)
    try:
        copied, tried = copy.deepcopy(instance).cpu(), copy.deepcopy(instance)
    except (RuntimeError, TypeError) as error:
        raise BadInput(f"{kind.__qualname__} cannot be copied, as a worker needs it: {error}") from None
    content = {"module": copied, "inputs": list(inputs), "init_inputs": list(init_inputs)}
    parts = {type(part) for part in instance.modules()}
    return Packed(
        _source_of(kind, parts, repr(instance)), kind.__qualname__, _payload(content), _outputs(tried, inputs)
    )


def function(callable_: Any, inputs: Any) -> Packed:
    """From a function and example inputs."""
    payload = _payload({"inputs": list(inputs), "init_inputs": []})
    return Packed(_source_of(callable_), callable_.__qualname__, payload, _outputs(callable_, inputs))


def _outputs(called: Any, inputs: Any) -> str:
    """What it gives here for the examples, which is what it must give elsewhere; nothing where it fails."""
    try:
        with torch.no_grad():
            return examples.dumps(examples.told(called(*copy.deepcopy(list(inputs)))))
    except Exception:  # whatever it raises, a worker will hear it too, and say so
        return ""


def _source_of(thing: Any, parts: Iterable[Any] = (), structure: str = "") -> str:
    """The file of its definition; in a notebook what it and its parts need of the cells, and of a package, whose files cannot stand
    alone, an import."""
    name = thing.__qualname__
    if "." in name or not name.isidentifier():
        raise BadInput(f"{name} has no name of its own at the top level of its file: define it there")
    try:
        path = inspect.getsourcefile(thing)
    except (TypeError, OSError):  # it was built in, or typed in
        path = None
    typed = {part.__qualname__ for part in (thing, *parts) if part.__module__ == "__main__"}
    main = _main(typed) if typed else ""
    if thing.__module__ == "__main__" and main:
        return main
    if path is None or not Path(path).is_file():
        raise BadInput(f"{name} has no source file: define it in a .py file, or in a cell of a notebook")
    text = Path(path).read_text(encoding="utf-8")
    alone = not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(ast.parse(text)))
    return text if alone and not main else f"{main}\n\n{_imported(thing, structure)}".lstrip()


def _main(names: set[str]) -> str:
    """What these names need of a notebook's cells, or the script that is running; empty where neither is there."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    text = Path(script).read_text(encoding="utf-8") if script and Path(script).is_file() else ""
    return notebook.source_of(names) or text


def _imported(thing: Any, structure: str) -> str:
    """An import, and as comments for whoever writes a kernel what the package has there, and what the module is made of."""
    told = [
        f"{thing.__qualname__} is imported from where it is defined as:",
        "",
        *inspect.getsource(thing).splitlines(),
    ]
    told += ["", "The module at hand:", "", *structure.splitlines()] if structure else []
    return "\n".join(
        [
            *(f"# {line}".rstrip() for line in told[:_MOST_LINES]),
            f"from {thing.__module__} import {thing.__qualname__}\n",
        ]
    )


def _payload(content: dict[str, Any]) -> str:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(content)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        remedy = "what it holds must have a name at the top level of a file or cell, and be made after that was last changed"
        raise BadInput(f"the module and its inputs cannot be taken to a worker: {error}; {remedy}") from None
    return base64.b64encode(buffer.getvalue()).decode()


class _Pickler(pickle.Pickler):
    """Storages by content alone: a plain pickle has their addresses in it, and a task is known by its content."""

    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, torch.storage.TypedStorage):
            return NotImplemented
        buffer = io.BytesIO()
        torch.save(thing, buffer)
        return torch.storage._load_from_bytes, (buffer.getvalue(),)
