"""A loaded task: creates its model and inputs on one device, at any precision."""

from __future__ import annotations

import base64
import copy
import functools
import importlib.util
import inspect
import io
import pickle
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from kernelpro.lab import tree
from kernelpro.lab.tasks import examples, parameters
from kernelpro.records import BadInput, Precision, Task

_LARGE_BYTES = 64 << 20
"""Models with larger parameters are constructed on the GPU: a CPU takes a second or two to draw a gigabyte of
random numbers, in each of the judge's processes."""
_MIN_FREE = 8
"""A model is constructed on the GPU only if this multiple of its size is free there. The judge, the candidate
and the baselines hold four copies, and the oracle holds one in float64."""
BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""Significant bits of each floating type."""


def widened_dtype(own: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of a converted tensor: floating-point types become `dtype`, complex ones its complex
    counterpart."""
    if dtype is None or not (own.is_floating_point or own.is_complex):
        return own
    return dtype.to_complex() if own.is_complex else dtype


class Reference:
    """A task's model and inputs. `seed` determines the parameters; inputs have their own seeds."""

    def __init__(self, task: Task, device: str, seed: int, init_device: str | None = None):
        """`init_device`: see the attribute; if None, the constructor chooses it."""
        self.task, self.device, self.seed = task, device, seed
        self._module = load_source(task)
        if task.form == "kernelbench":
            self._entry = self._callable(task.entry)
            self._get_inputs = self._callable("get_inputs")
            self._get_init_inputs = getattr(self._module, "get_init_inputs", list)
        else:
            self._payload = _load_payload(task, self._module)
        self.init_inputs = self._reporting_errors("get_init_inputs", self._make_init)
        self.init_device = self._choose_init_device() if init_device is None else init_device
        """The device on which the model's constructor creates tensors by default; empty for the CPU. A
        candidate is constructed on the same device, and so draws the same values."""
        self.constants: set[parameters.Constant] = set()
        """The constant parameters that were replaced."""
        self._reporting_errors("init_inputs", lambda: tree.flatten(self.init_inputs, []))
        self._shape = task.shapes[0]
        self._model = self._reporting_errors(task.entry, self._build)

    def _callable(self, name: str) -> Any:
        value = getattr(self._module, name, None)
        if not callable(value):
            what = f"class {name}" if name == self.task.entry else f"function {name}"
            raise BadInput(
                f"task {self.task.name}: no {what}; a task defines Model, get_inputs and get_init_inputs"
            )
        return value

    def _reporting_errors(self, what: str, make: Any) -> Any:
        try:
            return make()
        except (BadInput, torch.OutOfMemoryError):  # whoever planned memory handles the latter
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
            model = _Function(self._module, self.task.entry, self.keyword_only)
        elif self.task.form == "module":
            model = with_positional_forward(self._payload["module"], self.keyword_only)
            self.constants = parameters.replace_constants(model, self.seed)
        else:
            model = self._construct()
            if not isinstance(model, nn.Module):
                raise BadInput(f"task {self.task.name}: {self.task.entry} is not a torch.nn.Module")
        model.train(self.task.mode == "train").requires_grad_(False)
        return model

    def _choose_init_device(self) -> str:
        """A GPU for large models, because it draws their weights in almost no time; else empty."""
        if self.device != "cuda" or self.task.form != "kernelbench":
            return ""
        nbytes = _parameter_bytes(self._entry, self.init_inputs)
        fits = _MIN_FREE * nbytes < torch.cuda.mem_get_info()[0]
        return self.device if nbytes > _LARGE_BYTES and fits else ""

    def _construct(self) -> Any:
        if self.init_device:
            try:
                return self._construct_on(self.init_device)
            except Exception:  # the constructor needs the CPU
                self.init_device = ""
        return self._construct_on("")

    def _construct_on(self, device: str) -> Any:
        model, self.constants = parameters.construct(self._entry, self.init_inputs, self.seed, device)
        return model

    def example_mismatch(self) -> str:
        """How the outputs for the examples differ from those in the process that packed the live object.

        Empty if they agree or are random.
        """
        if not self.task.outputs or self._shape.example:
            return ""
        content = _load_payload(self.task, self._module)
        model = (
            self._to_device(with_positional_forward(content["module"], self.keyword_only), None)
            if self.task.form == "module"
            else _Function(self._module, self.task.entry, self.keyword_only)
        )
        leaves: list[torch.Tensor] = []
        form = tree.flatten(content["inputs"][0], leaves)

        def call() -> Any:
            return model(*tree.unflatten(form, [leaf.to(self.device, copy=True) for leaf in leaves]))

        with torch.no_grad():
            samples, repeated = (
                examples.sample_outputs(self._reporting_errors(self.task.entry, call)) for _ in range(2)
            )
        is_random = bool(examples.describe_difference(samples, repeated))
        return "" if is_random else examples.describe_difference(examples.loads(self.task.outputs), samples)

    def can_rebuild_from_init_inputs(self) -> bool:
        """Whether the class, constructed with the init inputs, has weights of the same names and shapes."""
        if self.task.form != "module":
            return True
        try:
            rebuilt = type(self._model)(*self.init_inputs).state_dict()
        except Exception:  # a constructor with wrong arguments may raise anything
            return False
        return {name: t.shape for name, t in rebuilt.items()} == {
            name: t.shape for name, t in self._model.state_dict().items()
        }

    @property
    def keyword_only(self) -> tuple[str, ...]:
        """Names of the keyword-only inputs. They come last."""
        return tuple(self._payload.get("keyword_only", ())) if self.task.form != "kernelbench" else ()

    @property
    def own_forward(self) -> Any:
        """The reference's own forward method, which may have keyword-only arguments."""
        cls: Any = type(self._model)
        return (cls.__mro__[1] if self.keyword_only else cls).forward.__get__(self._model)

    def state(self) -> parameters.State:
        """Parameters and buffers by name."""
        return {name: tensor.detach() for name, tensor in self._model.state_dict().items()}

    def state_bytes(self) -> int:
        """Bytes of parameters and buffers."""
        return sum(tensor.nbytes for tensor in self._model.state_dict().values())

    def model(
        self, dtype: torch.dtype | None = None, device: str = "", shared: nn.Module | None = None
    ) -> nn.Module:
        """A fresh copy on the task's device or another; with `dtype`, all floating-point tensors are
        converted.

        `shared`: an earlier copy whose parameters this one uses, where it can be copied.
        """
        if self.task.form == "kernelbench" and _has_closures(self._model):
            return self._to_device(self._build(), dtype, device)
        memo: dict[int, Any] = {}
        if shared is not None:
            own = dict(self._model.named_parameters())
            memo = {id(own[name]): parameter for name, parameter in shared.named_parameters()}
        return self._to_device(copy.deepcopy(self._model, memo), dtype, device)

    def _to_device(self, model: nn.Module, dtype: torch.dtype | None, device: str = "") -> nn.Module:
        def cast(tensor: torch.Tensor) -> torch.Tensor:
            # move first: the device converts faster than the CPU, on which a single `to` would convert
            return tensor.to(device or self.device).to(widened_dtype(tensor.dtype, dtype))

        for part in model.modules():
            for name, value in list(vars(part).items()):
                if isinstance(value, torch.Tensor):
                    setattr(part, name, cast(value))
        return model._apply(cast)  # type: ignore[no-untyped-call, no-any-return]

    def inputs(self, seed: int) -> tuple[tree.TreeSpec, list[torch.Tensor]]:
        """The spec and the tensors of one set of inputs, created on the device from the seed."""
        parameters.seed_everything(seed)
        if self.task.form == "kernelbench":
            with torch.device(self.device):
                values = self._reporting_errors("get_inputs", self._get_inputs_of_shape)
            if not isinstance(values, Iterable) or isinstance(values, (torch.Tensor, str, Mapping)):
                raise BadInput(
                    f"task {self.task.name}: get_inputs returned a {type(values).__name__}; "
                    "return a list of the arguments of forward"
                )
        else:
            given = self._payload["inputs"][self._shape.example]
            values = self._reporting_errors("reading its inputs", lambda: _shuffled(given, self.device))
        leaves: list[torch.Tensor] = []
        form = self._reporting_errors("get_inputs", lambda: tree.flatten(list(values), leaves))
        for index, leaf in enumerate(leaves):
            without_data = leaf.is_meta and torch.device(self.device).type != "meta"
            if leaf.layout is not torch.strided or without_data or leaf.is_quantized or leaf.is_nested:
                raise BadInput(
                    f"task {self.task.name}: input {index} is not a dense tensor with data; "
                    "make such a tensor in forward, from dense inputs"
                )
        return form, [leaf.detach().to(self.device) for leaf in leaves]

    def _get_inputs_of_shape(self) -> Any:
        return call_with_constants(self._module, self._get_inputs, self._shape.constants)

    def dtype(self) -> torch.dtype:
        """The floating-point dtype of the task's parameters, else of its inputs."""
        state: Mapping[str, torch.Tensor] = self._model.state_dict()
        for tensor in state.values():
            if tensor.is_floating_point():
                return tensor.dtype
        return self._input_dtype

    @functools.cached_property
    def _input_dtype(self) -> torch.dtype:
        dtypes = [tensor.dtype for tensor in self.inputs(0)[1] if tensor.is_floating_point()]
        return dtypes[0] if dtypes else torch.float32

    def precision(self) -> Precision:
        """The precision that candidates may use; see `Task.precision`."""
        if self.task.precision:
            return self.task.precision
        if self.dtype() != torch.float32:
            return "native"
        return "tf32" if self.device == "cuda" else "fp32"


class _NoRandomNumbers(TorchFunctionMode):
    """Tensors on `meta` have no values to draw. Drawing normal numbers there would import torch's compiler,
    in two to seven seconds."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.Tensor.normal_, nn.init.normal_):
            return args[0] if args else kwargs["tensor"]
        if function is torch.randn:
            kwargs.pop("generator", None)
            return torch.empty(*args, **kwargs)
        return function(*args, **kwargs)


def _parameter_bytes(entry: Any, init_inputs: list[Any]) -> int:
    """Bytes of the parameters that a class creates, found by constructing it on `meta`; 0 if that fails."""
    try:
        with torch.device("meta"), _NoRandomNumbers():
            model = entry(*init_inputs)
        return sum(tensor.nbytes for tensor in model.parameters())
    except Exception:  # the constructor computes with values
        return 0


def _has_closures(model: nn.Module) -> bool:
    """Whether an attribute is a closure: a deep copy would share the parts of the model that it refers to."""
    values = (value for part in model.modules() for value in vars(part).values())
    return any(isinstance(value, FunctionType) and value.__closure__ for value in values)


class _Function(nn.Module):
    """A plain function as a module without parameters. Its last arguments become keyword arguments."""

    def __init__(self, module: ModuleType, name: str, keyword_only: Sequence[str] = ()):
        super().__init__()
        self._function = getattr(module, name)
        self._keyword_only = tuple(keyword_only)

    def __deepcopy__(self, memo: Any) -> _Function:
        return self

    def forward(self, *arguments: Any) -> Any:
        positional, named = split_keywords(arguments, self._keyword_only)
        return self._function(*positional, **named)


def split_keywords(
    arguments: tuple[Any, ...], keyword_only: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Split the arguments of a call into positional ones and, by name, the last ones."""
    count = len(arguments) - len(keyword_only)
    return arguments[:count], dict(zip(keyword_only, arguments[count:], strict=True))


def with_positional_forward(model: nn.Module, keyword_only: Sequence[str]) -> nn.Module:
    """Make the module take positional arguments only, and pass the last ones to its forward as keywords."""
    if not keyword_only:
        return model
    base: Any = type(model)

    def forward(self: Any, *arguments: Any) -> Any:
        positional, named = split_keywords(arguments, keyword_only)
        return base.forward(self, *positional, **named)

    content = {"forward": forward, "__module__": base.__module__}
    model.__class__ = type(base.__name__, (base,), content)
    return model


def call_with_constants(module: ModuleType, function: Any, constants: Mapping[str, Any]) -> Any:
    """Call a function with a shape's constants.

    Constants that are parameters of the function are passed to it. The others replace constants of its file
    during the call.
    """
    parameters = inspect.signature(function).parameters
    replaced = {name: value for name, value in constants.items() if name not in parameters}
    if missing := [name for name in replaced if name not in vars(module)]:
        raise BadInput(
            f"shape: {missing[0]} is neither a parameter of {function.__name__} nor a constant of the file"
        )
    before = {name: vars(module)[name] for name in replaced}
    vars(module).update(replaced)
    try:
        return function(**{name: value for name, value in constants.items() if name in parameters})
    finally:
        vars(module).update(before)


def load_source(task: Task) -> ModuleType:
    """Import the task's source as a module, from a real file that `inspect` and compilers can read."""
    name = f"kernelpro_task_{task.id}"
    if name in sys.modules:
        return sys.modules[name]
    folder = tempfile.TemporaryDirectory(prefix="kernelpro-task-")
    path = Path(folder.name) / f"{name}.py"
    path.write_text(task.source, encoding="utf-8")
    if task.files:
        _add_files(Path(folder.name) / "files", task.files)
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


def _add_files(folder: Path, files: dict[str, str]) -> None:
    """Make the modules that come with the task importable. Installed modules take precedence."""
    for name, text in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise BadInput(f"a file of a task lies outside of its folder: {name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    sys.path.append(str(folder))
    importlib.invalidate_caches()


def unload(task: Task) -> None:
    """Remove the task's module and its file; existing objects keep their classes."""
    if module := sys.modules.pop(f"kernelpro_task_{task.id}", None):
        folder = module.__dict__["__kernelpro_folder__"]
        sys.path[:] = [path for path in sys.path if not path.startswith(f"{folder.name}/")]
        folder.cleanup()


# --- tasks from live Python objects ----------------------------------------------------------------------


class _Unpickler(pickle.Unpickler):
    """Looks up classes of the task's file in the module that was loaded from that file."""

    def __init__(self, data: bytes, home: ModuleType):
        super().__init__(io.BytesIO(data))
        self._home = home

    def find_class(self, module: str, name: str) -> Any:
        value: Any = self._home
        try:
            for part in name.split("."):
                value = getattr(value, part)
        except AttributeError:
            return super().find_class(module, name)
        return (
            value
            if getattr(value, "__module__", None) == self._home.__name__
            else super().find_class(module, name)
        )


def _load_payload(task: Task, module: ModuleType) -> dict[str, Any]:
    try:
        content = _Unpickler(base64.b64decode(task.payload), module).load()
    except Exception as error:
        raise BadInput(
            f"task {task.name}: its payload cannot be loaded ({type(error).__name__}: {error})"
        ) from error
    if not all(isinstance(inputs, list) for inputs in content["inputs"]):  # stored before tasks had shapes
        content["inputs"] = [list(content["inputs"])]
    return dict(content)


def _shuffled(examples: list[Any], device: str) -> Any:
    """Fresh values with the examples' distribution: the elements of each tensor in random order."""

    def shuffle(leaf: torch.Tensor) -> torch.Tensor:
        flat = leaf.detach().to(device).flatten()
        return flat[torch.randperm(flat.numel(), device=device)].reshape(leaf.shape)

    leaves: list[torch.Tensor] = []
    form = tree.flatten(list(examples), leaves)
    return tree.unflatten(form, [shuffle(leaf) for leaf in leaves])
