"""Packs live Python objects as tasks, so that a worker in another process can recreate them."""

from __future__ import annotations

import ast
import base64
import copy
import inspect
import io
import pickle
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kernelpro.lab.tasks import examples
from kernelpro.lab.tasks.reference import split_keywords
from kernelpro.pools import notebook_source, project_files
from kernelpro.records import BadInput

_MAX_COMMENT_LINES = 600


class PackedTask(NamedTuple):
    """The fields of records.Task that a live object determines."""

    source: str
    entry: str
    payload: str
    outputs: str
    files: dict[str, str]


def pack_module(
    instance: Any, input_sets: Sequence[Any], init_inputs: Any = (), keyword_only: Sequence[str] = ()
) -> PackedTask:
    """Pack an nn.Module and example inputs of each shape. `keyword_only`: the names of the last inputs if the
    module takes them as keywords only."""
    cls = type(instance)
    try:
        copied, callable_copy = copy.deepcopy(instance).cpu(), copy.deepcopy(instance)
    except (RuntimeError, TypeError) as error:
        raise BadInput(f"{cls.__qualname__} cannot be copied to a worker: {error}") from None
    payload = _payload(input_sets, init_inputs, keyword_only) | {"module": copied}
    submodule_types = {type(part) for part in instance.modules()}
    return PackedTask(
        _source_of(cls, submodule_types, repr(instance)),
        cls.__qualname__,
        _pickle_base64(payload),
        _example_outputs(callable_copy, input_sets[0], keyword_only),
        project_files.imported_files({cls, *submodule_types}),
    )


def _payload(input_sets: Sequence[Any], init_inputs: Any, keyword_only: Sequence[str]) -> dict[str, Any]:
    sets = [list(inputs) for inputs in input_sets]
    named = {"keyword_only": list(keyword_only)} if keyword_only else {}
    return {"inputs": sets, "init_inputs": list(init_inputs)} | named


def pack_function(callable_: Any, input_sets: Sequence[Any], keyword_only: Sequence[str] = ()) -> PackedTask:
    """Pack a function and example inputs of each shape. `keyword_only`: as for `pack_module`."""
    payload = _pickle_base64(_payload(input_sets, (), keyword_only))
    return PackedTask(
        _source_of(callable_),
        callable_.__qualname__,
        payload,
        _example_outputs(callable_, input_sets[0], keyword_only),
        project_files.imported_files({callable_}),
    )


def _example_outputs(function: Any, inputs: Any, keyword_only: Sequence[str]) -> str:
    """A few elements of the outputs in this process, which a worker must reproduce; empty if the call
    fails."""
    try:
        with torch.no_grad():
            arguments, named = split_keywords(tuple(copy.deepcopy(list(inputs))), keyword_only)
            return examples.dumps(examples.sample_outputs(function(*arguments, **named)))
    except Exception:  # the worker will get and report the same error
        return ""


def _source_of(definition: Any, parts: Iterable[Any] = (), structure: str = "") -> str:
    """The source of a definition: the text of its file.

    In a notebook: the statements that the definition and its submodules need. For a file with relative
    imports: an import statement.
    """
    name = definition.__qualname__
    if "." in name or not name.isidentifier():
        raise BadInput(f"{name} is not defined at the top level of its file: define it there")
    try:
        path = inspect.getsourcefile(definition)
    except (TypeError, OSError):  # a builtin, or typed into a shell
        path = None
    main_names = {part.__qualname__ for part in (definition, *parts) if part.__module__ == "__main__"}
    main_source = _main_source(main_names) if main_names else ""
    if definition.__module__ == "__main__" and main_source:
        return main_source
    if path is None or not Path(path).is_file():
        raise BadInput(f"{name} has no source file: define it in a .py file, or in a cell of a notebook")
    text = Path(path).read_text(encoding="utf-8")
    standalone = not any(
        isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(ast.parse(text))
    )
    if standalone and not main_source:
        return text
    return f"{main_source}\n\n{_import_with_comments(definition, structure)}".lstrip()


def _main_source(names: set[str]) -> str:
    """The notebook statements that these names need, or the text of the running script; empty without
    either."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    text = Path(script).read_text(encoding="utf-8") if script and Path(script).is_file() else ""
    return notebook_source.source_of(names) or text


def _import_with_comments(definition: Any, structure: str) -> str:
    """An import statement; for kernel authors, comments before it show the definition and the module's
    structure."""
    comments = [
        f"{definition.__qualname__} is imported. Its definition:",
        "",
        *inspect.getsource(definition).splitlines(),
    ]
    comments += ["", "The structure of this module:", "", *structure.splitlines()] if structure else []
    return "\n".join(
        [
            *(f"# {line}".rstrip() for line in comments[:_MAX_COMMENT_LINES]),
            f"from {definition.__module__} import {definition.__qualname__}\n",
        ]
    )


def _pickle_base64(content: dict[str, Any]) -> str:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(content)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        remedy = (
            "define its classes at the top level of a file or cell, and create it after their last change"
        )
        raise BadInput(
            f"the module and its inputs cannot be pickled for a worker: {error}; {remedy}"
        ) from None
    return base64.b64encode(buffer.getvalue()).decode()


class _Pickler(pickle.Pickler):
    """Pickles storages by content. A plain pickle contains addresses, which would change the task's content
    hash from process to process."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, torch.storage.TypedStorage):
            return NotImplemented
        buffer = io.BytesIO()
        torch.save(value, buffer)
        return torch.storage._load_from_bytes, (buffer.getvalue(),)
