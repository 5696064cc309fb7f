"""What exported files consist of besides the kernel; `export` copies the two parts below as text, nothing imports this file.

An exported file binds `Optimized` and names that begin with `_guard`, so that the candidate's own names stay as they are.
The names in this head stand for what the export writes above each part.
"""

from __future__ import annotations

import torch

_GUARD_CARRIED: dict[str, str] = {}
_GUARD_REFERENCE = _GUARD_PAYLOAD = _GUARD_FORM = _GUARD_ENTRY = _GUARD_TARGET = ""
_GUARD_TRAINING = _GUARD_MODE_MATTERS = True
_GUARD_LIMIT = 0.0
_GUARD_INPUTS: object = ()
_GUARD_STATE: dict[str, object] = {}
_GUARD_SETTINGS: dict[str, str] = {}


class ModelNew(torch.nn.Module): ...


# --- part: native code -----------------------------------------------------------------------------------
from typing import Any  # noqa: E402


def _guard_carry() -> None:
    """Take the modules of kernelpro from this file where kernelpro is not installed."""
    import sys
    import types

    try:
        import kernelpro.runtime  # noqa: F401
    except ImportError:
        for name, text in _GUARD_CARRIED.items():
            module = sys.modules[name] = types.ModuleType(name)
            module.__path__ = []
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(sys.modules[parent], last, module)
            exec(compile(text, f"<{name}>", "exec", dont_inherit=True), module.__dict__)


class _GuardLibrary:
    """A native library that is compiled when a model is built, so that importing this file needs no compiler."""

    def __init__(self, compiler: Any, arguments: Any, named: Any):
        self._guard_recipe = compiler, arguments, named
        self._guard_library: Any = None

    def _guard_build(self) -> Any:
        if self._guard_library is None:
            compiler, arguments, named = self._guard_recipe
            self._guard_library = compiler(*arguments, **named)
        return self._guard_library

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._guard_build(), name)
        setattr(self, name, found)
        return found


def _guard_later() -> Any:
    """Put off what the candidate compiles while it is imported. Returns the libraries, and what ends this."""
    from kernelpro import runtime

    own = {name: getattr(runtime, name) for name in ("cpp", "cuda", "cute")}
    libraries: list[_GuardLibrary] = []

    def put_off(compiler: Any) -> Any:
        def later(*arguments: Any, **named: Any) -> _GuardLibrary:
            libraries.append(_GuardLibrary(compiler, arguments, named))
            return libraries[-1]

        return later

    vars(runtime).update({name: put_off(compiler) for name, compiler in own.items()})
    return libraries, lambda: vars(runtime).update(own)


_guard_carry()
_GUARD_LIBRARIES, _guard_at_once = _guard_later()
# --- part: guard and self-test ---------------------------------------------------------------------------
from typing import Any  # noqa: E402

import torch  # noqa: E402


def _guard_load() -> Any:
    """The reference's text as a module of its own, readable by inspect and compilers."""
    import linecache
    import sys
    import types

    module = types.ModuleType(f"{__name__}_reference")
    sys.modules[module.__name__] = module
    module.__file__ = place = f"<{module.__name__}>"
    linecache.cache[place] = (len(_GUARD_REFERENCE), None, _GUARD_REFERENCE.splitlines(True), place)
    exec(compile(_GUARD_REFERENCE, place, "exec", dont_inherit=True), module.__dict__)
    return module


_GUARD_MODULE = _guard_load()


def _guard_payload() -> Any:
    """Module, example inputs and init inputs of a task that was made from a live module or function."""
    import base64
    import io
    import operator
    import pickle

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            try:
                found = operator.attrgetter(name)(_GUARD_MODULE)
            except AttributeError:
                found = None
            own = getattr(found, "__module__", None) == _GUARD_MODULE.__name__
            return found if own else super().find_class(module, name)

    return Unpickler(io.BytesIO(base64.b64decode(_GUARD_PAYLOAD))).load()


class _GuardFunction(torch.nn.Module):
    """A reference that is a plain function."""

    def forward(self, *inputs: Any) -> Any:
        return getattr(_GUARD_MODULE, _GUARD_ENTRY)(*inputs)


def _guard_init() -> list[Any]:
    if _GUARD_FORM != "kernelbench":
        return list(_guard_payload()["init_inputs"])
    return list(getattr(_GUARD_MODULE, "get_init_inputs", list)())


def _guard_reference(init: list[Any]) -> Any:
    if _GUARD_FORM == "kernelbench":
        return getattr(_GUARD_MODULE, _GUARD_ENTRY)(*init)
    return _guard_payload()["module"] if _GUARD_FORM == "module" else _GuardFunction()


def _guard_map(value: Any, change: Any) -> Any:
    """`value` with every tensor in its lists, tuples and dicts changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return (tuple if isinstance(value, tuple) else list)(_guard_map(item, change) for item in value)
    return {key: _guard_map(item, change) for key, item in value.items()} if isinstance(value, dict) else value


def _guard_leaves(value: Any) -> list[Any]:
    leaves: list[Any] = []
    _guard_map(value, leaves.append)
    return leaves


def _guard_inputs(seed: int, device: str) -> list[Any]:
    """Fresh inputs, dense, as they were judged: from get_inputs, or the examples' elements in another order."""
    torch.manual_seed(seed)

    def dense(leaf: Any) -> Any:
        leaf = leaf.detach().to(device)
        return torch.empty_like(leaf).copy_(leaf)

    def shuffled(leaf: Any) -> Any:
        flat = leaf.detach().to(device).flatten()
        return flat[torch.randperm(flat.numel(), device=device)].reshape(leaf.shape)

    if _GUARD_FORM != "kernelbench":
        return list(_guard_map(_guard_payload()["inputs"], shuffled))
    with torch.device(device):
        return list(_guard_map(list(_GUARD_MODULE.get_inputs()), dense))


def _guard_signature(value: Any) -> Any:
    """Shape, type and strides of every tensor, and the value of everything else."""
    if isinstance(value, torch.Tensor):
        strides = value.stride() if value.layout is torch.strided else ()
        return tuple(value.shape), str(value.dtype), tuple(s for n, s in zip(value.shape, strides, strict=False) if n > 1)
    if isinstance(value, (list, tuple)):
        return tuple(map(_guard_signature, value))
    if isinstance(value, dict):
        return tuple((key, _guard_signature(item)) for key, item in value.items())
    return f"{type(value).__name__} {value!r}"


def _guard_describe(module: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """A reference's state (names, shapes, types), and its settings: classes of its parts and their plain attributes."""
    state = {name: (tuple(t.shape), str(t.dtype)) for name, t in module.state_dict().items()}
    settings = {}
    for path, part in module.named_modules():
        settings |= {path: type(part).__name__} if path else {}
        for name, value in vars(part).items():
            plain = all(isinstance(v, (bool, int, float, str)) for v in (value if isinstance(value, tuple) else [value]))
            if plain and name != "training" and not name.startswith("_"):
                settings[f"{path}:{name}"] = repr(value)
    return state, settings


def _guard_seeded(seed: int | None, make: Any) -> Any:
    """What `make` returns when it runs under the seed; the generators are as before afterwards."""
    with torch.no_grad(), torch.random.fork_rng(range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []):
        torch.manual_seed(seed or 0)
        return make()


class _GuardMismatch(ValueError):
    """The kernel cannot stand for this reference."""


class Optimized(torch.nn.Module):
    """The kernel where it was judged, the reference everywhere else; `last_path` says which of the two ran.

    `Optimized(*init)` builds both; without arguments with the task's own. `Optimized.of(module)` goes around a reference
    module and takes its parameters by name. The kernel runs where inputs have the judged number, shapes, types, strides and
    device and no gradient is asked for: call it under `torch.no_grad()`. It follows when parameters change or move.
    """

    reference: Any

    def __init__(self, *init: Any):
        super().__init__()
        arguments, seed = list(init) or _guard_init(), int(torch.randint(2**31, (), device="cpu"))
        reference = _guard_seeded(seed, lambda: _guard_reference(arguments)).requires_grad_(True)
        reference.train(_GUARD_TRAINING)
        self._begin(reference, arguments, None if _GUARD_FORM == "module" else seed)

    @classmethod
    def of(cls, module: torch.nn.Module) -> Optimized:
        """Around a reference that exists; ValueError where the kernel cannot take its parameters by name."""
        made = cls.__new__(cls)
        torch.nn.Module.__init__(made)
        made._begin(module, _guard_init(), None)
        if isinstance(made.refusal, _GuardMismatch):
            raise made.refusal
        return made
