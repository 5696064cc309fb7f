"""Describes a winner for the drop-in module: what was judged, found by running the task's own reference."""

from __future__ import annotations

import base64
import copy
import hashlib
import inspect
import pickle
import zlib
from collections.abc import Sequence
from typing import Any

import torch

from kernelpro.dropin import reads
from kernelpro.dropin.exported import value_range
from kernelpro.dropin.kernel import KernelFactory, load_source
from kernelpro.dropin.spec import KernelSpec, named_state, signature, state_signature
from kernelpro.lab import tree
from kernelpro.lab.tasks import reference as references
from kernelpro.records import BadInput, Task

_MAX_TENSOR_BYTES = 4096
"""Largest tensor outside of the state, such as a small table, that stays in a skeleton."""


def noun_of(source: str) -> str:
    """What a winner is, for texts: a kernel, torch.compile's code, or PyTorch's own code."""
    first = source.lstrip().partition("\n")[0]
    if first.startswith("# Written by torch.compile"):
        return "torch.compile's code"
    return "PyTorch's own code" if first.startswith("# The reference as it is") else "kernel"


def describe_winner(
    task: Task, sources: Sequence[str], target: str, tolerance: float | None
) -> list[KernelSpec]:
    """A description of what was judged for each shape of the task. Runs the task's own code once for each
    shape, never the candidate's.

    A task for a GPU runs on the meta device if possible, because it may be too large for the CPU. That takes
    seconds, because torch imports its compiler for it. A task for the CPU runs there, in milliseconds.
    """
    return [
        _describe_shape(task.at(number), source, target, tolerance) for number, source in enumerate(sources)
    ]


def _describe_shape(task: Task, source: str, target: str, tolerance: float | None) -> KernelSpec:
    try:
        observed = (_observe_on_meta(task) if target != "cpu" else None) or _observe(task, "cpu")
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(
            f"task {task.name} cannot be run here: {type(error).__name__}: {str(error)[:300]}"
        ) from error
    digest = hashlib.sha256(f"{task.id} {source} {target}".encode()).hexdigest()[:8]
    # looser than the judge: the reference's rounding error counts twice, and three seeds find less
    limit = 10 * tolerance if tolerance else 1e-2
    return KernelSpec(
        task.entry if task.form != "kernelbench" else task.name,
        digest,
        target,
        task.mode == "train",
        limit=limit,
        noun=noun_of(source),
        constants=dict(task.shapes[0].constants),
        ranges=_ranges(task) if task.form != "kernelbench" else {},
        **observed,
    )


def _observe_on_meta(task: Task) -> dict[str, Any] | None:
    try:
        return _observe(task, "meta")
    except Exception:  # the task may need real values in many ways; a real error occurs again on the CPU
        return None


def _observe(task: Task, device: str) -> dict[str, Any]:
    loaded = references.Reference(task, device, 0)
    model = loaded.model()
    form, leaves = loaded.inputs(0)
    inputs = tuple(tree.unflatten(form, leaves))
    if form != tree.flatten(list(inputs), []):
        raise BadInput(f"task {task.name}: its inputs cannot be described")
    with torch.no_grad(), reads.recording(model) as read:
        outputs = model(*inputs)
    own = ("_function", "_keyword_only")
    settings = {name: text for name, text in read.describe().items() if name not in own}
    settings.pop("code of _Function.forward", None)
    return {
        "inputs": signature(inputs),
        "outputs": signature(outputs),
        "state": state_signature(model),
        "settings": settings,
        "init": tuple(loaded.init_inputs),
        "parameter_names": _parameter_names(loaded),
        "keyword_only": loaded.keyword_only,
    }


def _parameter_names(loaded: references.Reference) -> tuple[str, ...]:
    function = getattr(loaded.model(), "_function", None) or loaded.own_forward
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return (*(p.name for p in parameters if p.kind in positional), *loaded.keyword_only)


def _ranges(task: Task) -> dict[str, Any]:
    """Value ranges of the example inputs by their number, and of the state by name."""
    loaded = references.Reference(task, "cpu", 0)
    inputs = {str(number): value_range(leaf) for number, leaf in enumerate(loaded.inputs(0)[1])}
    return inputs | {name: value_range(tensor) for name, tensor in named_state(loaded.model())}


def skeleton_of(task: Task) -> str:
    """The pickled module of a task without its weights, as base64; empty if its constructor rebuilds it."""
    loaded = references.Reference(task, "cpu", 0)
    if task.form != "module" or loaded.can_rebuild_from_init_inputs():
        return ""
    model = copy.deepcopy(loaded.model())
    for part in model.modules():
        for name, value in list(vars(part).items()):
            if isinstance(value, torch.Tensor) and value.nbytes > _MAX_TENSOR_BYTES:
                setattr(part, name, value.to("meta"))
    return base64.b64encode(zlib.compress(pickle.dumps(model.to("meta")), 9)).decode()


def build_reference(task: Task) -> torch.nn.Module:
    """A new instance of a KernelBench task's reference, with random weights from its constructor."""
    module: Any = references.load_source(task)
    init: Any = getattr(module, "get_init_inputs", list)()
    model: torch.nn.Module = getattr(module, task.entry)(*init)
    return model.train(task.mode == "train")


def winner_factory(spec: KernelSpec, source: str, task: Task | None) -> KernelFactory:
    """The winner as a kernel factory. `task`: its KernelBench task, if it has one, whose parameters may have
    other names than the kernel's."""

    def load_kernel() -> Any:
        module: Any = load_source(source, f"kernelpro_kernel_{spec.digest}")
        return module.ModelNew

    def reference() -> torch.nn.Module:
        assert task is not None
        return build_reference(task)

    return KernelFactory(
        spec, load_kernel, reference if task else None, recipe=(winner_factory, (spec, source, task))
    )
