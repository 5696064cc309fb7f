"""A task brought to life: its model, its inputs, at any precision, on one device."""

from __future__ import annotations

import base64
import copy
import importlib.util
import io
import pickle
import sys
import tempfile
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from kernelpro.lab import tree
from kernelpro.lab.tasks import examples, parameters
from kernelpro.records import BadInput, Precision, Task

BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Significant bits of each floating type."""


def widened(own: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    """What a tensor of type `own` becomes where floating ones become `dtype`: complex ones keep both their parts."""
    if dtype is None or not (own.is_floating_point or own.is_complex):
        return own
    return dtype.to_complex() if own.is_complex else dtype


class Reference:
    """The task's model and inputs. `seed` decides the parameters; inputs have seeds of their own."""

    def __init__(self, task: Task, device: str, seed: int):
        self.task, self.device, self.seed = task, device, seed
        self._module = load_source(task)
        if task.form == "kernelbench":
            self._entry = self._callable(task.entry)
            self._get_inputs = self._callable("get_inputs")
            self._get_init_inputs = getattr(self._module, "get_init_inputs", list)
        else:
            self._payload = _load_payload(task, self._module)
        self.init_inputs = self._guarded("get_init_inputs", self._make_init)
        self._guarded("init_inputs", lambda: tree.pack(self.init_inputs, []))
        self._built = self._guarded(task.entry, self._build)

    def _callable(self, name: str) -> Any:
        found = getattr(self._module, name, None)
        if not callable(found):
            what = f"class {name}" if name == self.task.entry else f"function {name}"
            raise BadInput(
                f"task {self.task.name}: no {what}; a task defines Model, get_inputs and get_init_inputs"
            )
        return found

    def _guarded(self, what: str, make: Any) -> Any:
        try:
            return make()
        except BadInput:
            raise
        except SystemExit as error:
            raise BadInput(f"task {self.task.name}: {what} called sys.exit({error})") from None
        except Exception as error:
            raise BadInput(
                f"task {self.task.name}: {what} raised {type(error).__name__}: {str(error)[:300]}"
            ) from error

    def _make_init(self) -> list[Any]:
        if self.task.form != "kernelbench":
            return list(self._payload["init_inputs"])
        parameters.seed_everything(self.seed)
        return list(self._get_init_inputs())

    def _build(self) -> nn.Module:
        model: nn.Module
        if self.task.form == "function":
            model = _Function(self._module, self.task.entry)
        elif self.task.form == "module":
            model = self._payload["module"]
            parameters.replace_constants(model, self.seed)
        else:
            with torch.no_grad(), parameters.under_seed(self.seed):
                model = self._entry(*self.init_inputs)
            if not isinstance(model, nn.Module):
                raise BadInput(f"task {self.task.name}: {self.task.entry} is not a torch.nn.Module")
        model.train(self.task.mode == "train").requires_grad_(False)
        return model

    def differs_from_asker(self) -> str:
        """Why a live object is not what it was where it was given: by its outputs for the examples. Empty where it is, or is
        random."""
        if not self.task.outputs:
            return ""
        content = _load_payload(self.task, self._module)
        model = (
            self._moved(content["module"], None)
            if self.task.form == "module"
            else getattr(self._module, self.task.entry)
        )
        leaves: list[torch.Tensor] = []
        form = tree.pack(content["inputs"], leaves)

        def call() -> Any:
            return model(*tree.unpack(form, [leaf.to(self.device, copy=True) for leaf in leaves]))

        with torch.no_grad():
            found, again = (examples.told(self._guarded(self.task.entry, call)) for _ in range(2))
        is_random = bool(examples.difference(found, again))
        return "" if is_random else examples.difference(examples.loads(self.task.outputs), found)

    def is_made_of_init_inputs(self) -> bool:
        """Whether a class that is constructed with them has the weights of this model, by name and shape."""
        if self.task.form != "module":
            return True
        try:
            made = type(self._built)(*self.init_inputs).state_dict()
        except Exception:  # whatever a constructor raises that gets something else than it wants
            return False
        return {name: t.shape for name, t in made.items()} == {
            name: t.shape for name, t in self._built.state_dict().items()
        }

    def state(self) -> parameters.State:
        """Parameters and buffers by name, on the CPU."""
        return {name: tensor.detach().cpu() for name, tensor in self._built.state_dict().items()}

    def model(self, dtype: torch.dtype | None = None) -> nn.Module:
        """A fresh copy on the device; with `dtype`, all its floating tensors converted, plain attributes too."""
        again = self.task.form == "kernelbench" and _is_held_by_functions(self._built)
        return self._moved(self._build() if again else copy.deepcopy(self._built), dtype)

    def _moved(self, model: nn.Module, dtype: torch.dtype | None) -> nn.Module:
        def cast(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self.device, widened(tensor.dtype, dtype))

        for part in model.modules():
            for name, value in list(vars(part).items()):
                if isinstance(value, torch.Tensor):
                    setattr(part, name, cast(value))
        return model._apply(cast)  # type: ignore[no-untyped-call, no-any-return]

    def inputs(self, seed: int) -> tuple[tree.Form, list[torch.Tensor]]:
        """The form and the tensors of one set of inputs, made on the device from the seed."""
        parameters.seed_everything(seed)
        if self.task.form == "kernelbench":
            with torch.device(self.device):
                values = self._guarded("get_inputs", self._get_inputs)
        else:
            values = _resampled(self._payload["inputs"], self.device)
        leaves: list[torch.Tensor] = []
        form = self._guarded("get_inputs", lambda: tree.pack(list(values), leaves))
        return form, [leaf.detach().to(self.device) for leaf in leaves]

    def dtype(self) -> torch.dtype:
        """The floating type of the task: of its parameters, else of its inputs."""
        found = [t.dtype for t in self._built.state_dict().values() if t.is_floating_point()]
        found += [t.dtype for t in self.inputs(0)[1] if t.is_floating_point()]
        return found[0] if found else torch.float32

    def precision(self) -> Precision:
        if self.task.precision:
            return self.task.precision
        if self.dtype() != torch.float32:
            return "native"
        return "tf32" if self.device == "cuda" else "fp32"


def _is_held_by_functions(model: nn.Module) -> bool:
    """Whether one of its attributes is a function that may hold parts of the model, and would hold the same ones in a copy."""
    values = (value for part in model.modules() for value in vars(part).values())
    return any(isinstance(value, FunctionType) and value.__closure__ for value in values)


class _Function(nn.Module):
    """A plain function as a module without parameters."""

    def __init__(self, module: ModuleType, name: str):
        super().__init__()
        self._function = getattr(module, name)

    def __deepcopy__(self, memo: Any) -> _Function:
        return self

    def forward(self, *arguments: Any) -> Any:
        return self._function(*arguments)


def load_source(task: Task) -> ModuleType:
    """Import the task's text as a module of its own, from a real file so that inspect and the compiler can read it."""
    name = f"kernelpro_task_{task.id}"
    if name in sys.modules:
        return sys.modules[name]
    folder = tempfile.TemporaryDirectory(prefix="kernelpro-task-")
    path = Path(folder.name) / f"{name}.py"
    path.write_text(task.source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__kernelpro_folder__"] = folder  # lives as long as the module
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        del sys.modules[name]
        raise BadInput(f"task {task.name}: syntax error in line {error.lineno}: {error.msg}") from None
    except SystemExit as error:
        del sys.modules[name]
        raise BadInput(f"task {task.name}: importing it called sys.exit({error})") from None
    except Exception as error:
        del sys.modules[name]
        raise BadInput(
            f"task {task.name}: importing it raised {type(error).__name__}: {str(error)[:300]}"
        ) from error
    return module


def unload(task: Task) -> None:
    """Let the task's module go, with its file; what holds its classes keeps them."""
    if module := sys.modules.pop(f"kernelpro_task_{task.id}", None):
        module.__dict__["__kernelpro_folder__"].cleanup()


# --- tasks from live Python objects ----------------------------------------------------------------------


class _Unpickler(pickle.Unpickler):
    """Finds classes of the task's own file in the module that was loaded from it."""

    def __init__(self, data: bytes, home: ModuleType):
        super().__init__(io.BytesIO(data))
        self._home = home

    def find_class(self, module: str, name: str) -> Any:
        found: Any = self._home
        try:
            for part in name.split("."):
                found = getattr(found, part)
        except AttributeError:
            return super().find_class(module, name)
        return (
            found
            if getattr(found, "__module__", None) == self._home.__name__
            else super().find_class(module, name)
        )


def _load_payload(task: Task, module: ModuleType) -> dict[str, Any]:
    try:
        content = _Unpickler(base64.b64decode(task.payload), module).load()
    except Exception as error:
        raise BadInput(
            f"task {task.name}: its payload cannot be loaded ({type(error).__name__}: {error})"
        ) from error
    return dict(content)


def _resampled(examples: list[Any], device: str) -> Any:
    """Fresh values with the examples' distribution: every tensor's elements in a new random order."""

    def shuffle(leaf: torch.Tensor) -> torch.Tensor:
        flat = leaf.detach().to(device).flatten()
        return flat[torch.randperm(flat.numel(), device=device)].reshape(leaf.shape)

    leaves: list[torch.Tensor] = []
    form = tree.pack(list(examples), leaves)
    return tree.unpack(form, [shuffle(leaf) for leaf in leaves])
