"""What a forward pass reads beside its inputs and its state, found by running it once.

1. Each submodule gets, for the duration of the call, a class that records which attributes are read.
2. A profile function records which Python functions run, outside of torch and the standard library.
3. Attributes that are neither parameters, buffers nor submodules are settings, and so are the globals and
   closure variables that the bytecode of those functions names, and the functions' code.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import sys
import sysconfig
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from kernelpro.dropin.spec import code_digest, describe

_INTERNAL = (frozenset(vars(torch.nn.Module())) | frozenset(vars(torch.nn.Module))) - {"training"}
"""Names that belong to nn.Module itself."""
_SKIPPED = frozenset({"torch", "kernelpro", __name__.partition(".")[0], *sys.stdlib_module_names}) - {
    "__main__"
}
"""Top-level modules whose functions are not recorded."""
_INSTALLED = (sys.prefix, sys.base_prefix, sysconfig.get_path("purelib"))


class _Absent:
    """Stands for an attribute that a forward pass looks up and that does not exist."""


ABSENT = _Absent()


@dataclass(frozen=True)
class Setting:
    """A value that the forward pass reads: `owner[name]` for a namespace, else an attribute of `owner`."""

    owner: Any
    name: str
    is_namespace: bool

    def value(self) -> Any:
        """The value now."""
        if self.is_namespace:
            return self.owner.get(self.name, ABSENT)
        return getattr(self.owner, self.name, ABSENT)


@dataclass
class Reads:
    """Settings by the name that messages show, and the code that ran."""

    settings: dict[str, Setting] = field(default_factory=dict)
    code: dict[str, str] = field(default_factory=dict)
    """Digests by function."""

    def describe(self) -> dict[str, str]:
        """Descriptions of all settings, and the code digests."""
        values = {name: setting.value() for name, setting in self.settings.items()}
        return {name: "absent" if v is ABSENT else describe(v) for name, v in values.items()} | self.code


@contextlib.contextmanager
def recording(module: torch.nn.Module) -> Iterator[Reads]:
    """Record what a forward pass in this context reads. The result is complete when the context ends."""
    reads = Reads()
    parts = {id(part): (path, part) for path, part in module.named_modules()}
    names: dict[int, set[str]] = {key: set() for key in parts}
    frames: dict[types.CodeType, tuple[dict[str, Any], list[dict[str, Any]]]] = {}

    roots = {type(part).__module__.partition(".")[0] for _, part in parts.values()}

    def on_event(frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and _is_recorded(code, frame.f_globals, roots):
            _, closures = frames.setdefault(code, (frame.f_globals, []))
            names = [name for name in code.co_freevars if name not in ("self", "__class__")]
            free = {name: frame.f_locals[name] for name in names if name in frame.f_locals}
            if free and not any(_same_objects(free, other) for other in closures):
                closures.append(free)

    classes = _swap_classes([part for _, part in parts.values()], names)
    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        yield reads
    finally:
        sys.setprofile(before)
        for part, cls in classes:
            object.__setattr__(part, "__class__", cls)
    for key, (path, part) in parts.items():
        for name in sorted(names[key] - _INTERNAL):
            _add_attribute(reads, f"{path}.{name}" if path else name, part, name)
    for code, (namespace, closures) in frames.items():
        reads.code[f"code of {code.co_qualname}"] = code_digest(code)
        _add_globals(reads, code, namespace)
        _add_closures(reads, code, closures)


def _is_recorded(code: types.CodeType, namespace: dict[str, Any], roots: set[str]) -> bool:
    """Whether a function belongs to the user's code, or to the packages of the module's classes."""
    root = str(namespace.get("__name__")).partition(".")[0]
    if root in _SKIPPED or code.co_name == "<module>":
        return False
    path = code.co_filename
    if path.startswith("<") and root not in roots | {"__main__"}:
        return False  # generated code, such as a dataclass's __init__
    is_installed = path.startswith(_INSTALLED) or "site-packages" in path or "dist-packages" in path
    return root in roots or not is_installed


def _swap_classes(parts: list[Any], names: dict[int, set[str]]) -> list[tuple[Any, type]]:
    """Give each part a class that records attribute names; return the original classes."""
    swapped: list[tuple[Any, type]] = []
    recorders: dict[type, type] = {}

    def recorder(cls: type) -> type:
        def get(self: Any, name: str) -> Any:
            if (seen := names.get(id(self))) is not None:
                seen.add(name)
            return super(recorders[cls], self).__getattribute__(name)  # type: ignore[arg-type]

        return type(
            cls.__name__, (cls,), {"__getattribute__": get, "__slots__": (), "__module__": cls.__module__}
        )

    for part in parts:
        cls = part.__class__
        try:
            if cls not in recorders:
                recorders[cls] = recorder(cls)
            object.__setattr__(part, "__class__", recorders[cls])
            swapped.append((part, cls))
        except TypeError:  # a class that cannot be subclassed: all its attributes count as read
            names[id(part)] |= set(vars(part))
    return swapped


def _add_attribute(reads: Reads, title: str, part: Any, name: str) -> None:
    if name in part._parameters or name in part._buffers or name in part._modules or name.startswith("__"):
        return
    if name in vars(part):
        reads.settings[title] = Setting(vars(part), name, is_namespace=True)
    else:
        value = next((vars(cls)[name] for cls in type(part).__mro__ if name in vars(cls)), ABSENT)
        if not hasattr(value, "__get__"):  # not for methods and properties: what they read is recorded anyway
            reads.settings[title] = Setting(part, name, is_namespace=False)


def _same_objects(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(one[name] is other.get(name) for name in one)


def _add_closures(reads: Reads, code: types.CodeType, closures: list[dict[str, Any]]) -> None:
    """Adds closure variables through their cells, which show later values."""
    functions = [f for f in gc.get_referrers(code) if isinstance(f, types.FunctionType)] if closures else []
    for number, free in enumerate(closures):
        for function in functions:
            cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
            if all(name in cells and cells[name].cell_contents is free[name] for name in free):
                suffix = f" ({number})" if number else ""
                for name in free:
                    title = f"{name} in {code.co_qualname}{suffix}"
                    reads.settings[title] = Setting(cells[name], "cell_contents", is_namespace=False)
                break


def _add_globals(reads: Reads, code: types.CodeType, namespace: dict[str, Any]) -> None:
    function = code.co_qualname
    for chain in _global_chains(code):
        owner, path = namespace, list(chain)
        while path and path[0] in owner:
            name = path.pop(0)
            value = owner[name]
            if not isinstance(value, types.ModuleType):
                if not _is_library(value):
                    title = ".".join(chain[: len(chain) - len(path)])
                    reads.settings[f"{title} in {function}"] = Setting(owner, name, is_namespace=True)
                break
            if _is_library(value):
                break
            owner = vars(value)


def _is_library(value: Any) -> bool:
    """Whether a value belongs to torch or to the standard library."""
    home = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    is_definition = isinstance(value, (types.ModuleType, type)) or callable(value)
    root = str(home).partition(".")[0]
    return is_definition and root != "__main__" and (root == "torch" or root in sys.stdlib_module_names)


def _global_chains(code: types.CodeType) -> set[tuple[str, ...]]:
    """Global names with the attributes that are read from them: `config.ACT` is ("config", "ACT")."""
    chains: set[tuple[str, ...]] = set()
    chain: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            chain = [str(instruction.argval)]
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain.append(str(instruction.argval))
        elif instruction.opname not in ("CACHE", "PUSH_NULL", "EXTENDED_ARG"):
            chain = []
        if chain:
            chains.add(tuple(chain))
    longer = {chain[:length] for chain in chains for length in range(1, len(chain))}
    return chains - longer
