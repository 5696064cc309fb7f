"""Create tasks from a KernelBench file, the name of a class, a live module, or a function."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from kernelpro.records import BadInput, Mode, Precision, Shape, Task
from kernelpro.records.shapes import check_weight, make_shape, parse_shape

Inputs = Sequence[Any] | Mapping[str, Any]
"""The positional or keyword arguments of a call, or a list of several such tuples or dicts, one for each
shape."""


def load_task(
    reference: Any,
    inputs: Inputs = (),
    init_inputs: Sequence[Any] | None = None,
    mode: Mode | None = None,
    precision: Precision | None = None,
    weights: Sequence[float] = (),
) -> Task:
    """A task from a KernelBench file, `package.module:Class`, `file.py:Class`, an `nn.Module` or a function.

    For modules and functions, `inputs` are examples: every judged call gets new values with the same shapes
    and the same distribution. Give positional arguments, or keyword arguments as a dict. A list of several
    tuples or dicts, `[(x1,), (x2,)]`, gives several shapes; `weights` says how often each occurs. For a
    KernelBench file, such a list has dicts of constants (see records/shapes.py).

    A module keeps its parameters, and its mode unless `mode` is given; a KernelBench file runs in train mode,
    as KernelBench runs it. `init_inputs` are the constructor arguments of `ModelNew`; by default they are
    inferred from the module's attributes and parameters.
    """
    for name, value, choices in (
        ("mode", mode, get_args(Mode)),
        ("precision", precision, get_args(Precision)),
    ):
        if value is not None and value not in choices:
            raise BadInput(f"{name} {value!r}: use {' or '.join(map(repr, choices))}")
    if isinstance(reference, Task):
        return reference
    init_inputs = None if init_inputs is None else list(init_inputs)
    reference, inputs, init_inputs = find_reference(reference, inputs, init_inputs)
    if isinstance(reference, (str, Path)):
        task = _check_file(Task.from_file(reference, mode or "train", precision), reference)
        return _with_constants(task, _input_sets(inputs), weights) if inputs else task
    import torch

    from kernelpro.pools import call_arguments, live_tasks

    if isinstance(inputs, (torch.Tensor, str)):
        raise BadInput(f"inputs: give a list of the arguments of a call, not a {type(inputs).__name__}")
    if isinstance(reference, type) and issubclass(reference, torch.nn.Module):
        raise BadInput(f"{reference.__qualname__} is a class: give an instance of it, with its weights")
    reference = getattr(reference, "_orig_mod", reference)  # what torch.compile wrapped
    is_module = isinstance(reference, torch.nn.Module)
    if not callable(reference):
        raise BadInput(f"a task is a path, an nn.Module or a function, not a {type(reference).__name__}")
    input_sets, keyword_only = call_arguments.positional_sets(
        reference.forward if is_module else reference, _input_sets(inputs)
    )
    if is_module:
        if init_inputs is None:
            init_inputs = call_arguments.infer_init_inputs(reference)
        packed = live_tasks.pack_module(reference, input_sets, init_inputs, keyword_only)
        own_mode: Mode = "train" if reference.training else "eval"
    else:
        packed = live_tasks.pack_function(reference, input_sets, keyword_only)
        own_mode = mode or "eval"
    return Task(
        packed.source,
        packed.entry,
        "module" if is_module else "function",
        packed.entry,
        packed.payload,
        mode or own_mode,
        precision,
        packed.outputs if mode in (None, own_mode) else "",
        packed.files,
        tuple(
            Shape(weight, example=number)
            for number, weight in enumerate(_checked_weights(weights, len(input_sets)))
        ),
    )


def _input_sets(inputs: Inputs) -> list[Any]:
    """The inputs of each shape: several shapes if `inputs` is a list of several tuples or dicts."""
    is_several = isinstance(inputs, list) and len(inputs) > 1
    if is_several and all(isinstance(item, (tuple, Mapping)) for item in inputs):
        return list(inputs)
    return [inputs]


def _checked_weights(weights: Sequence[float], count: int) -> list[float]:
    if weights and len(weights) != count:
        raise BadInput(f"weights: {len(weights)} for {count} shapes: give one for each")
    return [check_weight(weight, "weights") for weight in weights] if weights else [1.0] * count


def _with_constants(task: Task, input_sets: list[Any], weights: Sequence[float]) -> Task:
    """A KernelBench task with several shapes, each given by its constants."""
    if not all(isinstance(item, Mapping) for item in input_sets):
        raise BadInput(
            "inputs: a KernelBench file makes its own; for several shapes give dicts of its constants, "
            'such as [{"batch": 8}, {"batch": 64}]'
        )
    shapes = [make_shape(item, "inputs") for item in input_sets]
    if weights:
        checked = _checked_weights(weights, len(shapes))
        shapes = [replace(shape, weight=weight) for shape, weight in zip(shapes, checked, strict=True)]
    return _check_constants(replace(task, shapes=tuple(shapes)))


def with_shapes(task: Task, texts: Sequence[str]) -> Task:
    """The task with the shapes that the command line names. Raises BadInput."""
    if texts and task.form != "kernelbench":
        raise BadInput("--shape needs a KernelBench file: for a module give several inputs from Python")
    return _check_constants(replace(task, shapes=tuple(map(parse_shape, texts)))) if texts else task


def _check_file(task: Task, path: str | Path) -> Task:
    """The task. Raises BadInput if its file does not parse or lacks `Model`, `get_inputs` or a constant of a
    shape, before a worker is started."""
    try:
        tree = ast.parse(task.source)
    except SyntaxError as error:
        line = f" in line {error.lineno}" if error.lineno else ""  # none for a byte 0
        raise BadInput(f"task {task.name}: syntax error{line}: {error.msg}") from None
    names = _names(tree)
    if not {task.entry, "*"} & names:
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        several = f"its classes are {', '.join(classes)}; " if len(classes) > 1 else ""
        hint = f"{several}to use {classes[-1]}: {path}:{classes[-1]}" if classes else "define one"
        raise BadInput(f"task {task.name}: no class {task.entry} in {path}; {hint}")
    if not {"get_inputs", "*"} & names:
        raise BadInput(
            f"task {task.name}: no function get_inputs in {path}; "
            "define one that returns a list of the arguments of forward"
        )
    return _check_constants(task)


def _check_constants(task: Task) -> Task:
    """The task. Raises BadInput if a shape has a constant whose name does not occur in the file."""
    constants = [name for shape in task.shapes for name in shape.constants]
    names = _names(ast.parse(task.source)) if constants else set()
    unknown = [] if "*" in names else [name for name in constants if name not in names]
    if unknown:
        raise BadInput(f"shape: {unknown[0]} is neither a parameter of get_inputs nor a constant of the file")
    return task


def _names(tree: ast.Module) -> set[str]:
    """The names that occur in a file, and `*` if it has an import of all names."""
    fields = ("name", "id", "arg", "asname")  # of definitions, variables, parameters and imports
    return {getattr(node, field) for node in ast.walk(tree) for field in fields if getattr(node, field, None)}


def find_reference(reference: Any, inputs: Any, init_inputs: Any) -> tuple[Any, Any, Any]:
    """The module or function that `package.module:Class` or `file.py:Class` names, with its inputs. Any other
    reference is returned unchanged."""
    if isinstance(reference, (str, Path)):
        name, _, attribute = str(reference).rpartition(":")
        if name and attribute.isidentifier() and not Path(reference).exists():
            return _by_name(name, attribute)
    return reference, inputs, init_inputs


def _by_name(name: str, attribute: str) -> tuple[Any, Sequence[Any], Sequence[Any]]:
    """A module instance (or function), its example inputs and its constructor arguments.

    Weights and examples are drawn with a fixed seed, so that the same name is the same task every time.
    """
    import torch

    spec = f"{name}:{attribute}"
    module = _import(name, spec)
    reference = getattr(module, attribute, None)
    if reference is None:
        classes = [key for key, value in vars(module).items() if isinstance(value, type)]
        raise BadInput(
            f"{spec}: {name} defines no {attribute}; its classes are {', '.join(classes) or 'none'}"
        )
    torch.manual_seed(0)
    init_inputs: Sequence[Any] = ()
    if isinstance(reference, type):
        given = getattr(module, "init_inputs", getattr(module, "get_init_inputs", list))
        init_inputs = _call(given, f"{spec}: get_init_inputs()") if callable(given) else given
        hint = (
            ""
            if init_inputs
            else "; define get_init_inputs() or init_inputs next to it if it takes arguments"
        )
        reference = _call(lambda: reference(*init_inputs), f"{spec}: {attribute}()", hint)
    examples = getattr(reference, "example_inputs", None)
    if examples is None:
        examples = getattr(module, "example_inputs", getattr(module, "get_inputs", None))
    if examples is None:
        raise BadInput(
            f"{spec}: no example inputs: define get_inputs() or example_inputs in {name}, "
            f"or an attribute example_inputs of {attribute}"
        )
    return (
        reference,
        _call(examples, f"{spec}: example inputs") if callable(examples) else examples,
        init_inputs,
    )


def _import(name: str, spec: str) -> ModuleType:
    path = Path(name)
    if path.suffix != ".py":
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        if not all(part.isidentifier() for part in name.split(".")):
            raise BadInput(f"task file not found: {spec}")
        package: ModuleType = _call(lambda: importlib.import_module(name), f"{spec}: importing {name}")
        return package
    if not path.is_file():
        raise BadInput(f"task file not found: {name}")
    sys.path.insert(0, str(path.resolve().parent))
    loader = importlib.util.spec_from_file_location(path.stem, path.resolve())
    assert loader and loader.loader
    module = sys.modules[path.stem] = importlib.util.module_from_spec(loader)
    _call(lambda: loader.loader.exec_module(module), f"{spec}: importing {name}")  # type: ignore[union-attr]
    return module


def _call(function: Any, what: str, hint: str = "") -> Any:
    """Call user code; an exception becomes BadInput with a one-line message."""
    try:
        return function()
    except Exception as error:
        raise BadInput(f"{what} raised {type(error).__name__}: {error}{hint}") from None
