"""The check before each call of a kernel, as cheap as Python allows: one generated expression.

The expression compares inputs with the judged signature by value, and everything else with what was seen when
the kernel was bound: state by identity, address, layout and version, settings by identity or equality,
submodules by identity, hooks by their absence. A call that fails the check takes the slow path, which finds
the reason, or binds the kernel again.

What makes it cheap: torch.compile's own guard compares all tensors in C++, and sees autocast, tracing and
dispatch modes too; the parameters of a submodule are compared as one dictionary. Most of the remaining cost
is reading the address and the version of each parameter one by one. (torch with CUDA has a function that
compares addresses; it is slower.)
"""

from __future__ import annotations

import copy
import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from kernelpro.dropin import native_guards
from kernelpro.dropin.reads import ABSENT, Reads
from kernelpro.dropin.spec import KernelSpec

Check = Callable[..., bool]
_IMMUTABLE = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.memory_format,
)
_ALIGNMENT = 64
"""Alignment of the inputs in judged calls, in bytes."""


def call_context_problem(target: str) -> str:
    """Why no kernel can run here, whatever the inputs are; empty if one can."""
    if torch._C._get_tracing_state() is not None:  # type: ignore[attr-defined]
        return "torch.jit.trace is active"
    if torch._C._functorch.maybe_current_level() is not None:
        return "a torch.func transform such as vmap is active"
    if torch._C._is_any_autocast_enabled():
        return "autocast is enabled"
    if torch._C._len_torch_dispatch_stack():
        return "a TorchDispatchMode is active"
    return ""


def input_problem(expected: Any, value: Any, device_type: str, what: str = "inputs") -> str:
    """How a value differs from a judged signature; empty if it does not."""
    from kernelpro.dropin.spec import describe

    kind, *rest = expected
    if kind == "tensor":
        return _tensor_problem(rest, value, device_type, what)
    if kind in ("list", "tuple"):
        fits = isinstance(value, (tuple, list)) and (isinstance(value, tuple) == (kind == "tuple"))
        if not fits or len(value) != len(rest[0]):
            return f"{what} is not a {kind} of {len(rest[0])}"
        problems = (
            input_problem(e, v, device_type, f"{what}[{i}]")
            for i, (e, v) in enumerate(zip(rest[0], value, strict=True))
        )
        return next(filter(None, problems), "")
    if kind == "dict":
        if type(value) is not dict or list(value) != [key for key, _ in rest[0]]:
            return f"{what} has other keys than those judged"
        problems = (input_problem(e, value[key], device_type, f"{what}[{key!r}]") for key, e in rest[0])
        return next(filter(None, problems), "")
    now = describe(value)
    return "" if now == rest[0] else f"{what} is {now[:80]}, judged with {rest[0][:80]}"


def _tensor_problem(expected: list[Any], value: Any, device_type: str, what: str) -> str:
    shape, dtype, strides = expected
    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        return f"{what} is a {type(value).__name__}, not a plain tensor"
    if tuple(value.shape) != shape:
        return f"{what} has shape {tuple(value.shape)}, judged with {shape}"
    if str(value.dtype) != f"torch.{dtype}":
        return f"{what} has dtype {str(value.dtype).removeprefix('torch.')}, judged with {dtype}"
    if (tuple(value.stride()) if value.layout is torch.strided else None) != strides:
        return f"{what} has other strides or another layout than those judged"
    if value.device.type != device_type:
        return f"{what} is on {value.device.type}, the kernel is for {device_type}"
    if value.is_conj() or value.is_neg() or (strides is not None and value.data_ptr() % _ALIGNMENT):
        return f"{what} is not aligned to {_ALIGNMENT} bytes, or is a lazy conjugate or negative"
    return ""


@functools.cache
def _tensor_guards() -> Any:
    """torch.compile's guard of tensors; None if it is missing or misses a change that it must detect.

    It compares type, dispatch keys, dtype, device, sizes, strides and whether gradients are required. The
    keys include those that autocast, functorch, tracing and dispatch modes add to a thread.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    try:
        from torch._C._dynamo.guards import TensorGuards

        x = torch.zeros(2, 3)
        check = _make_tensor_check(TensorGuards, [x])
        others = [torch.zeros(3, 2).t(), x.double(), x[:1], torch.nn.Parameter(x), torch._neg_view(x)]
        with torch.enable_grad():
            others.append(torch.zeros(2, 3, requires_grad=True))
            misses = [check(other) for other in others]
        hits = [check(x), check(x + 1)]
        with torch.autocast("cpu"):
            misses.append(check(x))
        with Mode():  # type: ignore[no-untyped-call]
            misses.append(check(x))

        def record(y: torch.Tensor) -> torch.Tensor:
            misses.append(check(x))
            return y + 1

        torch.func.vmap(record)(x)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.trace(record, x, check_trace=False)  # type: ignore[no-untyped-call]
    except Exception:  # another version of torch: compare one by one
        return None
    return TensorGuards if all(hits) and not any(misses) and len(misses) == 10 else None


def _make_tensor_check(guards: Any, examples: list[torch.Tensor]) -> Callable[..., bool]:
    sizes, strides = [list(t.shape) for t in examples], [list(t.stride()) for t in examples]
    return guards(*examples, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check  # type: ignore[no-any-return]


def _equal(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(a == b)


class GuardBuilder:
    """Collects terms of the expression."""

    def __init__(self) -> None:
        self._scope: dict[str, Any] = {
            "equal": _equal,
            "Tensor": torch.Tensor,
            "Parameter": torch.nn.Parameter,
            "is_grad_enabled": torch.is_grad_enabled,
            "level": torch._C._functorch.maybe_current_level,
            "autocast": torch._C._is_any_autocast_enabled,
            "modes": torch._C._len_torch_dispatch_stack,
            "tracing": torch._C._get_tracing_state,  # type: ignore[attr-defined]
        }
        self._terms: list[str] = []
        self._settings: list[str] = []
        self._tensors: list[str] = []
        """Expressions of all tensors, none of which may require gradients while gradients are enabled."""
        self._input_terms: list[str] = []
        self._input_leaves: dict[str, torch.Tensor] = {}
        """Example tensors of the inputs, by their expressions."""
        self._state: list[torch.Tensor] = []
        self._dicts: list[dict[str, Any]] = []
        """Dictionaries of parameters, buffers and submodules whose values are compared by identity."""
        self._extra_terms: list[str] = []
        """Terms that the comparison of tensors in C++ does not cover."""

    def _name(self, value: Any) -> str:
        name = f"v{len(self._scope)}"
        self._scope[name] = value
        return name

    def add_inputs(self, expected: Any, args: tuple[Any, ...], device: torch.device) -> None:
        """Terms for the positional arguments `a0`, `a1`, ..."""
        for number, item in enumerate(expected):
            self._add_input(f"a{number}", item, args[number], device)

    def _add_input(self, text: str, expected: Any, example: Any, device: torch.device) -> None:
        kind, *rest = expected
        if kind == "tensor":
            _, _, strides = rest
            self._tensors.append(text)
            self._input_leaves[text] = example
            self._input_terms += [
                f"({text}.__class__ is Tensor or {text}.__class__ is Parameter)",
                f"{text}.dtype is {self._name(example.dtype)}",
                f"{text}.shape == {self._name(example.shape)}",
                f"{text}.device == {self._name(device)}",
            ]
            if strides is not None:
                self._input_terms.append(f"{text}.stride() == {self._name(strides)}")
                self._extra_terms.append(f"not {text}.data_ptr() & {_ALIGNMENT - 1}")
            if example.is_complex():
                self._input_terms.append(f"not {text}.is_conj()")
        elif kind in ("list", "tuple"):
            self._terms += [f"isinstance({text}, {kind})", f"len({text}) == {len(rest[0])}"]
            for index, item in enumerate(rest[0]):
                self._add_input(f"{text}[{index}]", item, example[index], device)
        elif kind == "dict":
            self._terms += [f"{text}.__class__ is dict", f"len({text}) == {len(rest[0])}"]
            for key, item in rest[0]:
                self._add_input(f"{text}[{self._name(key)}]", item, example[key], device)
        else:
            name = self._name(example)
            self._terms.append(f"({text} is {name} or equal({text}, {name}))")

    def add_state(self, module: torch.nn.Module) -> None:
        """Terms for parameters and buffers, submodules and hooks."""
        hooks: list[Any] = []
        seen: set[int] = set()
        for path, part in module.named_modules():
            for store in (part._parameters, part._buffers):
                self._add_store(store, seen)
            if part._modules:
                self._dicts.append(part._modules)  # modules compare by identity
            if path:
                hooks += [part._forward_hooks, part._forward_pre_hooks]
                self._terms.append(f"'forward' not in {self._name(vars(part))}")
        if hooks:
            everywhere = torch.nn.modules.module
            hooks += [everywhere._global_forward_hooks, everywhere._global_forward_pre_hooks]
            self._terms.append(f"not any({self._name(tuple(hooks))})")
        if self._dicts:
            snapshots = [dict(each) for each in self._dicts]
            self._terms.append(f"{self._name(self._dicts)} == {self._name(snapshots)}")

    def _add_store(self, store: dict[str, Any], seen: set[int]) -> None:
        """Terms for a dictionary of parameters or buffers and the tensors in it."""
        if not store:
            return
        tensors = {name: t for name, t in store.items() if t is not None}
        if all(t.numel() > 1 for t in tensors.values()):
            # Values are compared by identity first. Tensors that are not the same raise in bool() if they
            # have several elements, so that the check fails.
            self._dicts.append(store)
        else:
            owner = self._name(store)
            self._terms.append(f"len({owner}) == {len(store)}")
            self._terms += [f"{owner}[{name!r}] is {self._name(t)}" for name, t in tensors.items()]
        for tensor in tensors.values():
            if id(tensor) not in seen:
                seen.add(id(tensor))
                self._state.append(tensor)

    def _state_terms(self) -> list[str]:
        """Terms for the contents of parameters and buffers: their addresses and versions."""
        terms = []
        addressed = [t for t in self._state if t.layout is torch.strided]
        versions = [t for t in self._state if not t.is_inference()]
        self._name(
            [t.detach() for t in addressed]
        )  # keeps the memory alive: no other tensor gets its address
        if addressed and (library := native_guards.load()) is not None:
            terms.append(f"{self._name(library.unchanged)}({self._name(library.remember(addressed))})")
            versions = [t for t in versions if t.layout is not torch.strided]
        elif addressed:
            addresses = self._name(tuple(t.data_ptr() for t in addressed))
            terms.append(f"({''.join(f'{self._name(t.data_ptr)}(), ' for t in addressed)}) == {addresses}")
        if versions:  # versions only grow: if their sum is equal, all are
            total = sum(t._version for t in versions)
            terms.append(f"{' + '.join(f'{self._name(t)}._version' for t in versions)} == {total}")
        return terms

    def _add_content(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.layout is torch.strided:
            self._settings.append(f"{name}.data_ptr() == {tensor.data_ptr()}")
        if not tensor.is_inference():
            self._settings.append(f"{name}._version == {tensor._version}")

    def add_settings(self, reads: Reads) -> None:
        """Terms for what the forward pass reads beside inputs and state."""
        done: set[int] = set()
        for setting in reads.settings.values():
            owner, value = self._name(setting.owner), setting.value()
            if value is ABSENT:
                term = f"{setting.name!r} not in {owner}"
                self._settings.append(
                    term if setting.is_namespace else f"not hasattr({owner}, {setting.name!r})"
                )
                continue
            text = f"{owner}[{setting.name!r}]" if setting.is_namespace else f"{owner}.{setting.name}"
            self._add_value(text, value, done, 4)

    def _add_value(self, text: str, value: Any, done: set[int], depth: int) -> None:
        name = self._name(value)
        is_flat = isinstance(value, tuple) and all(isinstance(item, _IMMUTABLE) for item in value)
        if isinstance(value, _IMMUTABLE) or is_flat:
            self._settings.append(f"({text} is {name} or equal({text}, {name}))")
            return
        if isinstance(value, (tuple, list, dict, set)):
            snapshot = self._name(copy.copy(value))
            self._settings.append(f"equal({text}, {snapshot})")
        else:
            self._settings.append(f"{text} is {name}")
        if id(value) not in done and depth:
            done.add(id(value))
            self._add_contents(name, value, done, depth)

    def _add_contents(self, name: str, value: Any, done: set[int], depth: int) -> None:
        """Terms for the contents of a mutable object."""
        if isinstance(value, torch.Tensor):
            self._add_content(name, value)
            return
        if isinstance(value, (types.FunctionType, types.ModuleType, type, torch.nn.Module)):
            return
        inner: list[Any] = []
        if isinstance(value, (tuple, list, set)):
            inner = list(value)
        elif isinstance(value, dict):
            inner = list(value.values())
        elif hasattr(value, "__dict__") and len(vars(value)) <= 1000:
            content = self._name(dict(vars(value)))
            self._settings.append(f"vars({name}) == {content}")
            inner = list(vars(value).values())
        for item in inner[:1000]:
            if not isinstance(item, _IMMUTABLE) and id(item) not in done:
                self._add_value(self._name(item), item, done, depth - 1)

    def build_settings_check(self) -> Callable[[], bool]:
        """The check of the settings alone."""
        # A setting that cannot be read is not the one that was judged: fall back.
        text = f"def check():\n    try:\n        return {' and '.join(self._settings) or 'True'}\n"
        exec(f"{text}    except Exception:\n        return False\n", self._scope)
        return self._scope["check"]  # type: ignore[no-any-return]

    def build(self, spec: KernelSpec) -> Check:
        """The check of a call: a function of its arguments."""
        names = [f"a{number}" for number in range(len(spec.inputs[1]))]
        state_terms = self._state_terms()
        self._tensors += [self._name(t) for t in self._state]
        grads = " or ".join(f"{tensor}.requires_grad" for tensor in self._tensors) or "False"
        terms = [
            *self._terms,
            *self._tensor_terms(),
            *self._extra_terms,
            *state_terms,
            f"(not is_grad_enabled() or not ({grads}))",
            *self._settings,
        ]
        # Unpacking raises if the number of arguments differs.
        unpack = f"        {', '.join(names)}, = args\n" if names else "        () = args\n"
        # A call that cannot be checked goes to the reference.
        text = (
            "def check(args):\n"
            "    try:\n"
            f"{unpack}        return {' and '.join(terms)}\n"
            "    except Exception:\n        return False\n"
        )
        exec(compile(text, "<kernelpro guards>", "exec", dont_inherit=True), self._scope)
        return self._scope["check"]  # type: ignore[no-any-return]

    def _tensor_terms(self) -> list[str]:
        """Terms for input tensors, state and context of the call: one check in C++, or else one by one."""
        context = ["level() is None", "not autocast()", "not modes()", "tracing() is None"]
        state = {self._name(t): t for t in self._state if t.layout is torch.strided}
        if native_guards.load() is not None:
            state = {}  # checked with addresses and versions
        one_by_one = [*self._input_terms, *context]
        for name, t in state.items():  # `t.data = ...` can change these, with the same address
            one_by_one += [f"{name}.shape == {self._name(t.shape)}", f"{name}.dtype is {self._name(t.dtype)}"]
            one_by_one.append(f"{name}.stride() == {self._name(t.stride())}")
        examples = list(self._input_leaves.values())
        guards = _tensor_guards() if examples or state else None
        if guards is None or any(t.layout is not torch.strided for t in examples):
            return one_by_one
        try:
            check = _make_tensor_check(guards, [*(t.detach() for t in examples), *state.values()])
        except Exception:  # a tensor that it does not support
            return one_by_one
        fast = f"{self._name(check)}({', '.join([*self._input_leaves, *state])})"
        # The C++ check rejects inference mode and Parameters as inputs, which are allowed.
        return [f"({fast} or ({' and '.join(one_by_one)}))"]


def settings_check(reads: Reads) -> Callable[[], bool]:
    """A function that checks whether the settings still have the values that were read."""
    builder = GuardBuilder()
    builder.add_settings(reads)
    return builder.build_settings_check()
