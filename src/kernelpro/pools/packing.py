"""Live Python objects as tasks: what a worker in another process needs to have them again."""

from __future__ import annotations

import ast
import base64
import copy
import inspect
import io
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from kernelpro.pools import notebook
from kernelpro.records import BadInput

_MOST_LINES = 600
"""Of comments."""


def module(instance: Any, inputs: Any, init_inputs: Any = ()) -> tuple[str, str, str]:
    """Source, entry and payload of a task made from an nn.Module and example inputs."""
    kind = type(instance)
    content = {"module": copy.deepcopy(instance).cpu(), "inputs": list(inputs), "init_inputs": list(init_inputs)}
    parts = {type(part) for part in instance.modules()}
    return _source_of(kind, parts, repr(instance)), kind.__qualname__, _payload(content)


def function(callable_: Any, inputs: Any) -> tuple[str, str, str]:
    """Source, entry and payload of a task made from a function and example inputs."""
    return _source_of(callable_), callable_.__qualname__, _payload({"inputs": list(inputs), "init_inputs": []})


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
    if path is not None and Path(path).is_file():
        text = Path(path).read_text(encoding="utf-8")
        alone = not any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(ast.parse(text)))
        return text if alone else _imported(thing, structure)
    own = {name, *(part.__qualname__ for part in parts if part.__module__ == "__main__")}
    found = notebook.source_of(own) if thing.__module__ == "__main__" else None
    if found is None:
        raise BadInput(f"{name} has no source file: define it in a .py file, or in a cell of a notebook")
    return found


def _imported(thing: Any, structure: str) -> str:
    """An import, and as comments for whoever writes a kernel what the package has there, and what the module is made of."""
    told = [
        f"{thing.__qualname__} is imported from where it is defined as:",
        "",
        *inspect.getsource(thing).splitlines(),
    ]
    told += ["", "The module at hand:", "", *structure.splitlines()] if structure else []
    return "\n".join(
        [*(f"# {line}".rstrip() for line in told[:_MOST_LINES]), f"from {thing.__module__} import {thing.__qualname__}\n"]
    )


def _payload(content: dict[str, Any]) -> str:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(content)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise BadInput(f"the module and its inputs cannot be taken to a worker: {error}") from None
    return base64.b64encode(buffer.getvalue()).decode()


class _Pickler(pickle.Pickler):
    """Storages by content alone: a plain pickle has their addresses in it, and a task is known by its content."""

    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, torch.storage.TypedStorage):
            return NotImplemented
        buffer = io.BytesIO()
        torch.save(thing, buffer)
        return torch.storage._load_from_bytes, (buffer.getvalue(),)
