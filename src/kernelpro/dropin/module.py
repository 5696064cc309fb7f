"""`OptimizedModule`: a module that runs a kernel where it was verified, and its own forward pass elsewhere.

An optimized module is an instance of a class derived from the reference's class. It shares the whole
`__dict__` of the module that it was made from, so parameters, buffers, submodules, hooks, attributes and
modes are not copies: they are the same. Only the forward pass differs:

1. The guards (`guards.py`) check the call. If they hold, the kernel runs.
2. Otherwise the slow path looks for the reason. If it finds one, the reference runs, the first time with a
   warning.
3. Otherwise the kernel is bound: the reference runs once on these inputs, recorded (`reads.py`). Its settings
   are
   compared with those that were judged, the kernel is created with the module's parameters, its output is
   compared with the reference's, and new guards are generated.
"""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from kernelpro.dropin import calls, guards, reads
from kernelpro.dropin.kernel import KernelFactory, KernelUnavailable
from kernelpro.dropin.spec import describe, named_state, relative_error, state_signature, tensors_of

_is_dynamo_compiling = torch.compiler.is_dynamo_compiling
_MAX_BINDS, _MIN_CALLS_PER_BIND = 16, 4
"""After `_MAX_BINDS` binds the kernel is given up, unless it has served `_MIN_CALLS_PER_BIND` calls for each
bind: a bind costs milliseconds."""


Factories = tuple[KernelFactory, ...]
"""One for each shape of inputs that was judged."""


class FallbackWarning(UserWarning):
    """A call was served by the reference instead of the kernel."""


class FallbackError(RuntimeError):
    """Raised by a strict module where others warn and run the reference."""


class Stats:
    """Calls of an optimized module: how many the kernel served, and how many the reference.

    Calls inside torch.compile and of exported programs are not counted: they run the operator of the kernel
    without the module's code. Each compilation that has to use the reference counts as one call of it.
    """

    def __init__(self) -> None:
        self.kernel = 0
        """Calls that the kernel served."""
        self.reasons: Counter[str] = Counter()
        """Calls that the reference served, by reason."""

    @property
    def fallback(self) -> int:
        """Calls that the reference served."""
        return self.reasons.total()

    def __repr__(self) -> str:
        why = "; ".join(f"{count}x {reason}" for reason, count in self.reasons.most_common())
        return f"Stats(kernel={self.kernel}, fallback={self.fallback}{f': {why}' if why else ''})"


class _Binding:
    """A kernel that is bound to a module, for one shape of inputs."""

    def __init__(self, factory: KernelFactory):
        self.factory = factory
        self.check: Callable[[tuple[Any, ...]], bool] = _never
        self.settings_hold: Callable[[], bool] = lambda: False
        self.call: Any = None
        self.failure = ""
        """Why the kernel will not be tried again."""
        self.failed_state: Any = None
        """The state's versions for which the kernel failed, and the reason; with others it may work."""
        self.mismatch: tuple[Callable[[], bool], str] | None = None
        """Set while settings differ from the judged ones: a check whether they still do, and the reason."""
        self.binds = 0

    def input_problem(self, args: tuple[Any, ...]) -> str:
        """How the inputs of a call differ from those that were judged; empty if they do not."""
        spec = self.factory.spec
        names = spec.parameter_names
        if len(args) != len(spec.inputs[1]):
            return f"{len(args)} inputs, judged with {len(spec.inputs[1])}"
        for number, (expected, value) in enumerate(zip(spec.inputs[1], args, strict=True)):
            what = names[number] if number < len(names) else f"input {number}"
            if reason := guards.input_problem(expected, value, spec.target, what):
                return reason
        return ""


class _Dispatcher:
    """The state of one optimized module beside its `__dict__`: a binding for each shape that was judged."""

    def __init__(self, factories: Factories, strict: bool):
        self.factories, self.strict, self.stats = factories, strict, Stats()
        self.bindings = [_Binding(factory) for factory in factories]
        self.has_warned = False

    @property
    def noun(self) -> str:
        """What messages call the winner: `kernel`, or `torch.compile's code`."""
        return self.factories[0].spec.noun

    def find(self, args: tuple[Any, ...]) -> tuple[_Binding, str]:
        """The binding for these inputs; if there is none, the first one and the reason."""
        reasons = []
        for binding in self.bindings:
            reasons.append(binding.input_problem(args))
            if not reasons[-1]:
                return binding, ""
        # For a judged shape, the wrong dtype, device or layout says more than the other shapes would.
        reason = next((text for text in reasons if " has shape " not in text), "")
        others = len(reasons) - 1
        more = f" and {others} other shape{'s' if others > 1 else ''}" if others else ""
        return self.bindings[0], reason or f"{reasons[0]}{more}"


def _never(args: tuple[Any, ...]) -> bool:
    return False


class _StatsOf:
    """`module.stats`: the statistics, or the reference's own attribute of that name if it has one."""

    def __get__(self, module: Any, owner: Any = None) -> Any:
        if module is None:
            return self
        for store in (module._parameters, module._buffers, module._modules):
            if "stats" in store:
                return store["stats"]
        return module._kernelpro.stats


class OptimizedModule(torch.nn.Module):
    """Base of the classes that `optimized_class` makes."""

    __slots__ = ("_kernelpro",)
    _kernelpro: _Dispatcher
    _kernelpro_factories: Factories
    _kernelpro_base: type[torch.nn.Module]
    _kernelpro_traced: tuple[Callable[..., Any], ...]

    def __init__(self, *args: Any, **named: Any):
        super().__init__(*args, **named)
        _attach(self, type(self)._kernelpro_factories, strict=False)

    @classmethod
    def from_module(cls, module: torch.nn.Module, strict: bool = False) -> Any:
        """An optimized module that shares everything with `module`. `strict`: raise where the kernel cannot
        serve a call."""
        return optimize_module(module, cls._kernelpro_factories, strict)

    stats = _StatsOf()
    """Calls that the kernel served, calls that the reference served, and why (see `Stats`). Calls inside
    torch.compile are not counted."""

    def forward(self, *args: Any, **named: Any) -> Any:
        """The kernel's outputs where it was verified, else the reference's."""
        if _is_dynamo_compiling():
            return self._forward_traced(args, named)
        dispatcher = self._kernelpro
        if not named:
            for binding in dispatcher.bindings:
                if binding.check(args):
                    dispatcher.stats.kernel += 1
                    return binding.call(*args)
        return self._forward_checked(args, named)

    # --- the slow path -----------------------------------------------------------------------------------

    def _forward_checked(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        dispatcher = self._kernelpro
        if torch.compiler.is_compiling():  # torch.export without Dynamo
            return self._forward_traced(args, named)
        positional = calls.as_judged(type(self)._kernelpro_base, dispatcher.factories[0].spec, args, named)
        if positional is None:
            return self._fall_back("keyword arguments that were not judged", args, named)
        for binding in dispatcher.bindings if named else ():
            if binding.check(positional):
                dispatcher.stats.kernel += 1
                return binding.call(*positional)
        reason = guards.call_context_problem(dispatcher.factories[0].spec.target)
        if reason:
            return self._fall_back(reason, args, named)
        binding, reason = dispatcher.find(positional)
        reason = binding.failure or reason or self._problem(binding, positional)
        if reason:
            return self._fall_back(reason, args, named)
        reason, output = self._bind(binding, positional)
        if reason:
            return self._fall_back(reason, args, named, output)
        dispatcher.stats.kernel += 1
        return output

    def _fall_back(
        self, reason: str, args: tuple[Any, ...], named: dict[str, Any], output: Any = None
    ) -> Any:
        """The reference's output, computed here unless it is given. Warns once; raises if strict."""
        dispatcher = self._kernelpro
        text = f"{type(self).__name__} runs the reference instead of the {dispatcher.noun}: {reason}"
        if dispatcher.strict:
            raise FallbackError(text)
        dispatcher.stats.reasons[reason] += 1
        if not dispatcher.has_warned:
            dispatcher.has_warned = True
            warnings.warn(text, FallbackWarning, stacklevel=6)
        return super().forward(*args, **named) if output is None else output

    def _problem(self, binding: _Binding, args: tuple[Any, ...]) -> str:
        """Why the kernel cannot serve this call, as far as can be told without running anything."""
        spec = binding.factory.spec
        state = named_state(self)
        if reason := _state_problem(spec.state, state_signature(self)):
            return reason
        tensors = [*tensors_of(list(args)), *(t for _, t in state)]
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            return "gradients are required: call it under torch.no_grad()"
        if len({t.device for t in tensors}) > 1:
            return "inputs and parameters are on different devices"
        if tensors and tensors[0].is_cuda and torch.cuda.is_current_stream_capturing():
            return (
                "a CUDA graph is captured before the kernel is ready: call the module once before the capture"
            )
        for path, part in self.named_modules():
            if path and (part._forward_hooks or part._forward_pre_hooks):
                return f"{path} has forward hooks, which the kernel would not call"
        if binding.mismatch is not None and binding.mismatch[0]():
            return binding.mismatch[1]
        if binding.failed_state is not None and binding.failed_state[0] == _versions(state):
            return str(binding.failed_state[1])
        return ""

    @torch.no_grad()
    def _bind(self, binding: _Binding, args: tuple[Any, ...]) -> tuple[str, Any]:
        """Create the kernel for the module as it is now and verify it on these inputs.

        Returns an empty string and the kernel's output, or the reason for a failure and the reference's
        output: a forward pass with side effects runs once.
        """
        factory = binding.factory
        binding.binds += 1
        served = self._kernelpro.stats.kernel
        if binding.binds > _MAX_BINDS and served < _MIN_CALLS_PER_BIND * binding.binds:
            binding.failure = (
                "parameters or settings change between calls: each change binds the kernel again"
            )
            return binding.failure, None
        state = named_state(self)
        before = _versions(state), _versions(list(enumerate(tensors_of(list(args)))))
        attributes = [(vars(part), dict(vars(part))) for part in self.modules()]
        with reads.recording(self) as read:
            expected = self._call_reference(args, factory.spec.keyword_only)
        if reason := _settings_problem(factory.spec.settings, read.describe()):
            binding.mismatch = guards.settings_check(read), reason
            return reason, expected
        after = _versions(state), _versions(list(enumerate(tensors_of(list(args)))))
        if after != before or any(_has_changed(now, then) for now, then in attributes):
            binding.failure = (
                "the forward pass changes its inputs or its own state, which the kernel does not"
            )
            return binding.failure, expected
        leaves = tensors_of(list(args))
        device = next(
            (t.device for t in (*leaves, *(t for _, t in state))), torch.device(factory.spec.target)
        )
        try:
            kernel = factory.create(self, device)
            call, output = calls.bind_call(kernel, args, expected, [t for _, t in state], device)
            error = relative_error(output, expected)
        except KernelUnavailable as problem:
            reason = f"the {factory.spec.noun} is not available: {problem}"
            return _fail(binding, reason, state), expected
        except Exception as problem:  # the kernel's own code may raise anything
            return _fail(binding, f"{type(problem).__name__}: {str(problem)[:300]}", state), expected
        if not error <= max(factory.spec.limit, 1e-2):
            size = "another structure" if error == float("inf") else f"a relative error of {error:.1e}"
            reason = f"the first output of the {factory.spec.noun} has {size}"
            return _fail(binding, reason, state), expected
        builder = guards.GuardBuilder()
        builder.add_inputs(factory.spec.inputs[1], args, device)
        builder.add_state(self)
        builder.add_settings(read)
        binding.check, binding.settings_hold = builder.build(factory.spec), guards.settings_check(read)
        binding.call = call
        return "", output

    def _call_reference(self, args: tuple[Any, ...], keyword_only: tuple[str, ...]) -> Any:
        """The reference's output for positional arguments, the last of which are keyword-only."""
        count = len(args) - len(keyword_only)
        return super().forward(*args[:count], **dict(zip(keyword_only, args[count:], strict=True)))

    # --- compilers ---------------------------------------------------------------------------------------

    def _forward_traced(self, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """The forward pass that torch.compile and torch.export see: the operator of the kernel.

        The reference is traced too. Its result is dead code, which compilers remove, but the compiler guards
        everything that it reads, and traces again if any of it changes.
        """
        if torch.compiler.is_exporting() and not named:
            output = self._call_operators(args)
            if output is not None:
                return output  # an exported program has no guards
        expected = super().forward(*args, **named)
        output = None if named else self._call_operators(args)
        return expected if output is None else output

    def _call_operators(self, args: tuple[Any, ...]) -> Any:
        """The output of the operator for these inputs; None if none of them serves the call."""
        for traced in type(self)._kernelpro_traced:
            output = traced(self, args)
            if output is not None:
                return output
        return None

    def _is_traceable(self, number: int) -> bool:
        """Whether the kernel of a shape can serve this module with its present settings. Evaluated while
        compiling."""
        binding = self._kernelpro.bindings[number]
        spec = binding.factory.spec
        if binding.failure or _state_problem(spec.state, state_signature(self)):
            return False
        if binding.call is not None and binding.settings_hold():
            return True
        tensors = [t for _, t in named_state(self)]
        if any(type(t) not in (torch.Tensor, torch.nn.Parameter) for t in tensors):
            self._warn_untraced("call the module once before torch.export")
            return False
        device = tensors[0].device if tensors else torch.device(spec.target)
        if device.type != spec.target:
            return False
        inputs = calls.example_of(spec.inputs, device)
        reason, _ = self._bind(binding, inputs)
        if reason:
            self._warn_untraced(reason)
        return not reason

    _is_traceable._dynamo_marked_constant = True  # type: ignore[attr-defined]

    def _warn_untraced(self, reason: str) -> None:
        text = f"{type(self).__name__} compiles the reference instead of the kernel: {reason}"
        if self._kernelpro.strict:
            raise FallbackError(text)
        self._kernelpro.stats.reasons[reason] += 1
        if not self._kernelpro.has_warned:
            self._kernelpro.has_warned = True
            warnings.warn(text, FallbackWarning, stacklevel=2)

    # --- copies ------------------------------------------------------------------------------------------

    def __getstate__(self) -> Any:
        state = super().__getstate__()  # type: ignore[no-untyped-call]
        is_default = isinstance(state, tuple) and len(state) == 2 and "_kernelpro" in (state[1] or ())
        return dict(vars(self)) if is_default else state

    def __reduce_ex__(self, protocol: Any) -> Any:
        dispatcher, base = self._kernelpro, type(self)._kernelpro_base
        arguments = dispatcher.factories, getattr(base, "_kernelpro_function", base), dispatcher.strict
        return dispatcher.factories[0].recreate or recreate, arguments, self.__getstate__()


def recreate(factories: Factories, base: Any, strict: bool) -> Any:
    """An optimized module without state, for pickle and copy."""
    cls = optimized_class(base if isinstance(base, type) else function_class(base), factories)
    module = cls.__new__(cls)
    _attach(module, factories, strict)
    return module


def optimized_class(base: type[torch.nn.Module], factories: KernelFactory | Factories) -> Any:
    """A subclass of `base` whose instances run the kernel that was judged with the shapes of a call. Its
    constructor is that of `base`."""
    several = (factories,) if isinstance(factories, KernelFactory) else factories
    noun = several[0].spec.noun
    content: dict[str, Any] = {
        "_kernelpro_factories": several,
        "_kernelpro_base": base,
        "_kernelpro_traced": tuple(calls.traced_call(*each) for each in enumerate(several)),
        "__module__": base.__module__,
        "__doc__": f"{base.__name__} with a {noun} in front of it.\n\n{base.__doc__ or ''}",
    }
    if hasattr(base, "stats"):
        content["stats"] = inspect.getattr_static(base, "stats")
    return type(f"Optimized{base.__name__}", (OptimizedModule, base), content)


def function_class(function: Any) -> type[torch.nn.Module]:
    """A class of modules without parameters whose forward pass is a function."""

    def forward(self: Any, *args: Any, **named: Any) -> Any:
        return function(*args, **named)

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    forward.__signature__ = inspect.Signature([own, *parameters])  # type: ignore[attr-defined]
    content = {"forward": forward, "_kernelpro_function": staticmethod(function)}
    return type(function.__name__, (torch.nn.Module,), content | {"__module__": function.__module__})


def optimize_module(
    module: torch.nn.Module, factories: KernelFactory | Factories, strict: bool = False
) -> Any:
    """An optimized module that shares everything with `module`: parameters, buffers, attributes, hooks."""
    base = type(module)
    if isinstance(module, OptimizedModule):
        base = type(module)._kernelpro_base
    if not issubclass(base, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
        raise TypeError(f"a {type(module).__name__} cannot be optimized: give an nn.Module")
    cls = optimized_class(base, factories)
    optimized = cls.__new__(cls)
    optimized.__dict__ = module.__dict__
    _attach(optimized, cls._kernelpro_factories, strict)
    return optimized


def problem_with(module: torch.nn.Module, factories: Factories) -> str:
    """Why a kernel cannot serve a module, as far as its parameters show; empty if it can."""
    return _state_problem(factories[0].spec.state, state_signature(module))


def _attach(module: Any, factories: Factories, strict: bool) -> None:
    object.__setattr__(module, "_kernelpro", _Dispatcher(factories, strict))


def _fail(binding: _Binding, reason: str, state: list[tuple[str, torch.Tensor]]) -> str:
    binding.failed_state = _versions(state), reason
    return reason


def _versions(tensors: list[Any]) -> list[Any]:
    """A value that changes whenever one of the named tensors is written, moved or replaced."""
    return [
        (name, id(t), t.data_ptr() if t.layout is torch.strided else 0, 0 if t.is_inference() else t._version)
        for name, t in tensors
    ]


def _has_changed(now: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether attributes of a module were set to other values."""
    return now.keys() != before.keys() or any(
        now[name] is not value and describe(now[name]) != describe(value) for name, value in before.items()
    )


def _state_problem(judged: dict[str, Any], present: dict[str, Any]) -> str:
    for name in judged.keys() | present.keys():
        if judged.get(name) != present.get(name):
            now, before = (
                f"{s[1]} {list(s[0])}" if s else "absent" for s in (present.get(name), judged.get(name))
            )
            return f"{name} is {now}, judged with {before}"
    return ""


def _settings_problem(judged: dict[str, str], present: dict[str, str]) -> str:
    """The first setting that differs from the judged one; one that was not read when judged differs too."""
    for name in sorted(present):
        before, now = judged.get(name), present[name]
        if before == now:
            continue
        if name.startswith("code of "):
            return f"the {name} is not what was judged"
        judged_with = before[:100] if before else "a forward pass that does not read it"
        return f"{name} is {now[:100]}, judged with {judged_with}"
    return ""
