"""Live Python objects as tasks: what a worker in another process needs to have them again."""

from __future__ import annotations

import base64
import copy
import inspect
import io
import pickle
from pathlib import Path
from typing import Any

import torch

from kernelpro.records import BadInput


def module(instance: Any, inputs: Any, init_inputs: Any = ()) -> tuple[str, str, str]:
    """Source, entry and payload of a task made from an nn.Module and example inputs."""
    kind = type(instance)
    content = {"module": copy.deepcopy(instance).cpu(), "inputs": list(inputs), "init_inputs": list(init_inputs)}
    return _source_of(kind), kind.__qualname__, _payload(content)


def function(callable_: Any, inputs: Any) -> tuple[str, str, str]:
    """Source, entry and payload of a task made from a function and example inputs."""
    return _source_of(callable_), callable_.__qualname__, _payload({"inputs": list(inputs), "init_inputs": []})


def _source_of(thing: Any) -> str:
    try:
        path = inspect.getsourcefile(thing)
    except TypeError:
        path = None
    if path is None or not Path(path).is_file():
        raise BadInput(f"{thing.__qualname__} has no source file: define it in a .py file")
    if "." in thing.__qualname__ or not thing.__qualname__.isidentifier():
        raise BadInput(f"{thing.__qualname__} has no name of its own at the top level of its file: define it there")
    return Path(path).read_text(encoding="utf-8")


def _payload(content: dict[str, Any]) -> str:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(content)
    return base64.b64encode(buffer.getvalue()).decode()


class _Pickler(pickle.Pickler):
    """Storages by content alone: a plain pickle has their addresses in it, and a task is known by its content."""

    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, torch.storage.TypedStorage):
            return NotImplemented
        buffer = io.BytesIO()
        torch.save(thing, buffer)
        return torch.storage._load_from_bytes, (buffer.getvalue(),)
