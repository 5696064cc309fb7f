"""Live Python objects as tasks: what a worker in another process needs to have them again."""

from __future__ import annotations

import base64
import copy
import inspect
import io
import pickle
from pathlib import Path
from typing import Any

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
    if "." in thing.__qualname__:
        raise BadInput(f"{thing.__qualname__} is defined inside something else: define it at the top level of its file")
    return Path(path).read_text(encoding="utf-8")


def _payload(content: dict[str, Any]) -> str:
    buffer = io.BytesIO()
    pickle.dump(content, buffer)
    return base64.b64encode(buffer.getvalue()).decode()
