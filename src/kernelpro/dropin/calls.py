"""How a kernel is called: eagerly by the module that it was bound to, and in traces of a compiler."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from kernelpro.dropin.kernel import KernelFactory, KernelUnavailable
from kernelpro.dropin.operator import SCOPE, fit_strides, leaf_signatures, operator_of, rebuild
from kernelpro.dropin.spec import KernelSpec, map_tensors, tensors_of


def _memory(tensors: list[torch.Tensor]) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tensors if t.layout is torch.strided and t.numel()}


def bind_call(
    kernel: Any, args: tuple[Any, ...], expected: Any, state: list[torch.Tensor], device: torch.device
) -> tuple[Any, Any]:
    """A function that calls the kernel, and its output for `args`.

    An output is copied if its strides differ from the reference's, or if it shares memory with an input or
    a parameter. Raises KernelUnavailable if the reference's own outputs are views of inputs or parameters.
    """
    inputs = tensors_of(list(args))
    if _memory(tensors_of(expected)) & _memory([*inputs, *state]):
        raise KernelUnavailable("outputs of the reference are views of its inputs or parameters")
    has_hooks = kernel._forward_hooks or kernel._forward_pre_hooks or "forward" in vars(kernel)
    call = _on_device(kernel if has_hooks else kernel.forward, device)
    output = call(*args)
    strides = [t.stride() for t in tensors_of(expected)]
    is_apart = not _memory(tensors_of(output)) & _memory([*inputs, *state])
    if is_apart and [t.stride() for t in tensors_of(output)] == strides:
        return call, output
    state_memory = _memory(state)

    def fitting_call(*args: Any) -> Any:
        order, memory = iter(strides), state_memory | _memory(tensors_of(list(args)))

        def fit(t: torch.Tensor) -> torch.Tensor:
            result = fit_strides(t, next(order))
            return result.clone() if result.untyped_storage().data_ptr() in memory else result

        return map_tensors(call(*args), fit)

    return fitting_call, fitting_call(*args)


def as_judged(
    base: type[torch.nn.Module], spec: KernelSpec, args: tuple[Any, ...], named: dict[str, Any]
) -> tuple[Any, ...] | None:
    """The call as it was judged, with positional arguments only; None if that is not possible."""
    keywords = spec.keyword_only
    count = len(spec.inputs[1]) - len(keywords)
    if not named and not keywords and len(args) == count:
        return args
    signature = inspect.signature(base.forward)
    try:
        bound = signature.bind(None, *args, **named)
    except (TypeError, ValueError):
        return args if not named else None
    given, named_only = bound.args[1:], bound.kwargs
    if named_only.keys() - set(keywords):
        return None
    parameters = [p for p in list(signature.parameters.values())[1:] if p.kind is not p.KEYWORD_ONLY]
    while (
        len(given) > count
        and len(given) <= len(parameters)
        and given[-1] is parameters[len(given) - 1].default
    ):
        given = given[:-1]
    while (
        len(given) < count
        and len(given) < len(parameters)
        and parameters[len(given)].default is not inspect.Parameter.empty
    ):
        given = (*given, parameters[len(given)].default)
    defaults = {name: signature.parameters[name].default for name in keywords}
    return (*given, *((defaults | named_only)[name] for name in keywords))


def _on_device(call: Any, device: torch.device) -> Any:
    """The call, with `device` made the current device if there are several."""
    if device.type != "cuda" or torch.cuda.device_count() < 2:
        return call

    def on_device(*args: Any) -> Any:
        if torch.cuda.current_device() == device.index:
            return call(*args)
        with torch.cuda.device(device):
            return call(*args)

    return on_device


def example_of(expected: Any, device: torch.device) -> Any:
    """Inputs of a signature: normal floating-point values, zeros of other types."""
    leaves = []
    for _, shape, dtype, strides in leaf_signatures(expected):
        kind = getattr(torch, dtype)
        values = (
            torch.randn(shape, device=device) if kind.is_floating_point else torch.zeros(shape, device=device)
        )
        leaf = torch.empty_strided(
            shape, strides or torch.empty(shape, device="meta").stride(), dtype=kind, device=device
        )
        leaves.append(leaf.copy_(values))
    names = [f"leaves[{number}]" for number in range(len(leaves))]
    return eval(rebuild(expected, names), SCOPE | {"leaves": leaves})


def traced_call(number: int, factory: KernelFactory) -> Any:
    """A function `(module, args) -> output` that compilers trace as a call of the operator for one shape. It
    returns None if the kernel cannot serve the call."""
    spec = factory.spec
    conditions: list[str] = []
    leaves: list[str] = []

    def visit(text: str, expected: Any) -> None:
        kind, *rest = expected
        if kind == "tensor":
            shape, dtype, strides = rest
            conditions.extend((f"{text}.dtype == torch.{dtype}", f"tuple({text}.shape) == {shape}"))
            conditions.append(f"{text}.device.type == {spec.target!r}")
            if strides is not None:
                conditions.append(f"tuple({text}.stride()) == {strides}")
            leaves.append(text)
        elif kind in ("list", "tuple"):
            conditions.append(f"len({text}) == {len(rest[0])}")
            for index, item in enumerate(rest[0]):
                visit(f"{text}[{index}]", item)
        elif kind == "dict":
            conditions.append(f"list({text}) == {[key for key, _ in rest[0]]!r}")
            for key, item in rest[0]:
                visit(f"{text}[{key!r}]", item)
        else:
            conditions.append(f"{text} == {rest[0]}")

    visit("args", spec.inputs)
    state = []
    for name in spec.state:
        text = "module"
        for part in name.split("."):
            text = f"getattr({text}, {part!r})"
        state.append(text)
    outputs = [f"outputs[{number}]" for number in range(len(leaf_signatures(spec.outputs)))]
    source = (
        "def traced(module, args):\n"
        f"    if torch.is_autocast_enabled({spec.target!r}) or not ({' and '.join(conditions)}):\n"
        "        return None\n"
        f"    inputs, state = [{', '.join(leaves)}], [{', '.join(state)}]\n"
        "    if torch.is_grad_enabled() and any([t.requires_grad for t in inputs + state]):\n"
        "        return None\n"
        f"    if not module._is_traceable({number}):\n        return None\n"
        "    outputs = operator(inputs, state)\n"
        f"    return {rebuild(spec.outputs, outputs)}\n"
    )
    scope: dict[str, Any] = dict(SCOPE)
    exec(compile(source, f"<kernelpro {spec.name}>", "exec", dont_inherit=True), scope)
    scope["operator"] = operator_of(factory)
    return scope["traced"]
