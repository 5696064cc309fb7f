"""Operators that torch computes: large products, convolutions and attention. Their library kernels are
already near the limit of the hardware; the playbook writes the operators around them.

The library gets no bias: the kernel after the call adds it, fused with everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from kernelpro.authors.playbook.graph.implicit_gemm import implicit_convolution
from kernelpro.authors.playbook.graph.matmul_and_conv import matmul
from kernelpro.authors.playbook.graph.operator_call import OperatorCall
from kernelpro.authors.playbook.graph.phased_convolution import joint_phases, phased_convolution
from kernelpro.authors.playbook.graph.shapes import permuted, reshaped, swapped
from kernelpro.authors.playbook.graph.value_ops import add, mul
from kernelpro.authors.playbook.graph.values import (
    InputValue,
    LibraryResult,
    Materialized,
    Value,
    View,
)
from kernelpro.authors.playbook.ir.expressions import FLOATING

LibraryForm = Literal[
    "own", "library", "channels_last", "implicit_gemm", "channel_rows", "transposed", "phases", "joint_phases"
]
"""own: the playbook writes everything. library: torch computes products, convolutions and attention.
channels_last: as library, and convolutions read and write tensors with their channels innermost.
implicit_gemm: as library, but the playbook writes convolutions as tiled products.
channel_rows: as implicit_gemm, with all channels of a position in one row of a stage.
transposed: as own, but the right operand of a product is first stored contiguously along the sum.
phases: as own, with convolutions as CPUs compute them (phased_convolution.py).
joint_phases: as own, with all phases of a transposed convolution in one product (phased_convolution.py)."""
_MIN_SIDE = 16
"""A product with a shorter side is a reduction, which the playbook writes itself."""


def call_library(call: OperatorCall, form: LibraryForm) -> Value | None:
    """The operator as a library call; None if the playbook writes it itself."""
    if call.dtype not in FLOATING:
        return None
    if form == "phases":
        return phased_convolution(call) if call.name in _CONVOLUTIONS else None
    if form == "joint_phases":
        return joint_phases(call) if call.name.startswith("conv_transpose") else None
    if form == "transposed":
        return _transposed_product(call) if call.name in ("matmul", "mm", "bmm") else None
    if call.name in _CONVOLUTIONS:
        tiled = form in ("implicit_gemm", "channel_rows")
        if tiled and (result := implicit_convolution(call, form == "channel_rows")):
            return result
        return _convolution(call, form == "channels_last")
    if call.name == "linear":
        return _linear(call)
    if call.name in ("matmul", "mm", "bmm"):
        return _product(call.value(0), call.value(1), call)
    if call.name in ("addmm", "baddbmm"):
        return _addmm(call)
    return _attention(call) if call.name == "scaled_dot_product_attention" else None


def _result(
    op: str, text: str, call_shape: Sequence[int], dtype: str, operands: Sequence[Value]
) -> LibraryResult:
    """A library call; `text` is the expression, with {0}, {1}, ... for the operands."""
    bases, names = [], []
    for position, operand in enumerate(operands):
        base, methods = _base(operand)
        bases.append(base)
        names.append(f"{{{position}}}{methods}")
    return LibraryResult(op, text.format(*names), call_shape, dtype, bases)


def _base(value: Value) -> tuple[Value, str]:
    """A tensor in memory, and the method calls that turn it into the value."""
    methods, base = "", value
    while isinstance(base, View) and base.method:
        methods, base = base.method + methods, base.sources[0]
    if isinstance(base, (InputValue, LibraryResult, Materialized)):
        return base, methods
    return Materialized(value), ""


# --- products ---------------------------------------------------------------------------------------------


def _linear(call: OperatorCall) -> Value | None:
    x, weight, bias = call.value(0), call.value(1), call.optional(2, "bias")
    if min(weight.shape) < _MIN_SIDE or len(x.shape) < 2:
        return None
    text = "torch.nn.functional.linear({0}, {1})"
    product = _result("linear", text, call.shape, call.dtype, [x, weight])
    return add(product, bias) if bias else product


def _product(left: Value, right: Value, call: OperatorCall) -> Value | None:
    if min(len(left.shape), len(right.shape)) < 2 or min(*left.shape[-2:], *right.shape[-2:]) < _MIN_SIDE:
        return None
    return _result("matmul", "torch.matmul({0}, {1})", call.shape, call.dtype, [left, right])


def _transposed_product(call: OperatorCall) -> Value | None:
    """What tensor cores read in TF32: both operands are contiguous along the sum."""
    left, right = call.value(0), call.value(1)
    if len(left.shape) < 2 or len(right.shape) < 2 or call.dtype != "float32":
        return None
    return matmul(left, swapped(Materialized(swapped(right))))


def _addmm(call: OperatorCall) -> Value | None:
    product = _product(call.value(1), call.value(2), call)
    if product is None:
        return None
    addend, alpha, beta = call.value(0), call.node.kwargs.get("alpha", 1), call.node.kwargs.get("beta", 1)
    scaled = product if alpha == 1 else mul(product, alpha)
    return add(scaled, addend if beta == 1 else mul(addend, beta))


def _attention(call: OperatorCall) -> Value | None:
    mask, kwargs = call.optional(3, "attn_mask"), call.node.kwargs
    if call.get(4, "dropout_p", 0.0):
        return None
    operands = [call.value(i) for i in range(3)] + ([mask] if mask else [])
    options = [f"attn_mask={{3}}"] if mask else []  # noqa: F541
    options += [f"is_causal={bool(call.get(5, 'is_causal', False))}"]
    options += [f"{name}={kwargs[name]}" for name in ("scale", "enable_gqa") if kwargs.get(name) is not None]
    text = f"torch.nn.functional.scaled_dot_product_attention({{0}}, {{1}}, {{2}}, {', '.join(options)})"
    return _result("scaled_dot_product_attention", text, call.shape, call.dtype, operands)


# --- convolutions -----------------------------------------------------------------------------------------

_CONVOLUTIONS = {f"{name}{d}d": d for name in ("conv", "conv_transpose") for d in (1, 2, 3)}


def _convolution(call: OperatorCall, channels_last: bool) -> Value | None:
    dims, transposed = _CONVOLUTIONS[call.name], "transpose" in call.name
    x, weight, bias = call.value(0), call.value(1), call.optional(2, "bias")
    groups = call.get(6, "groups", 1)
    if len(x.shape) != dims + 2 or (groups > 1 and weight.shape[1] == 1):
        return None  # depthwise: the playbook's windows are faster than the library
    names = ("stride", "padding", *(("output_padding",) if transposed else ("dilation",)), "groups")
    positions = {
        "stride": 3,
        "padding": 4,
        "output_padding": 5,
        "dilation": 7 if transposed else 5,
        "groups": 6,
    }
    options = [f"{name}={_option(call.get(positions[name], name))}" for name in names]
    options += [f"dilation={_option(call.get(7, 'dilation'))}"] if transposed else []
    given = ", ".join(option for option in options if not option.endswith("=None"))
    text = f"torch.{call.name}({{0}}, {{1}}{', ' + given if given else ''})"
    if channels_last and dims > 1:
        result = _channels_last(call, text, x, weight, dims)
    else:
        result = _result(call.name, text, call.shape, call.dtype, [x, weight])
    return add(result, reshaped(bias, (bias.shape[0], *(1,) * dims))) if bias else result


def _channels_last(call: OperatorCall, text: str, x: Value, weight: Value, dims: int) -> Value:
    """A convolution whose input and result have their channels innermost in memory: in the graph, both are
    permuted views."""
    last, first = (0, *range(2, dims + 2), 1), (0, dims + 1, *range(1, dims + 1))
    inner, outer = permuted(x, last), [call.shape[d] for d in last]
    in_memory = (
        inner if isinstance(_unpermuted(inner), (LibraryResult, Materialized)) else Materialized(inner)
    )
    memory_format = "torch.channels_last" if dims == 2 else "torch.channels_last_3d"
    text = text.replace("{1}", f"{{1}}.contiguous(memory_format={memory_format})")
    operands = [permuted(in_memory, first), weight]
    result = _result(call.name, f"{text}.permute({last})", outer, call.dtype, operands)
    return permuted(result, first)


def _unpermuted(value: Value) -> Value:
    """The tensor in memory if the value's permutations cancel; otherwise a placeholder of the same shape."""
    order = list(range(len(value.shape)))
    while isinstance(value, View) and value.method.startswith(".permute("):
        dims = [int(d) for d in value.method[len(".permute((") : -2].split(",")]
        order = [dims[d] for d in order]
        value = value.sources[0]
    return value if order == sorted(order) else InputValue("", value.shape, value.dtype)


def _option(value: Any) -> str:
    return (
        "None" if value is None or value == [] else repr(tuple(value) if isinstance(value, list) else value)
    )
