"""Swaps submodules of a model for optimized ones, in place, and back."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from kernelpro.dropin.module import FallbackWarning, OptimizedModule, Stats, problem_with
from kernelpro.dropin.spec import relative_error


class PatchError(ValueError):
    """A model cannot be patched; the message says why. Nothing was changed."""


class Patch:
    """Submodules of a model that were replaced. `undo` restores them; so does leaving a `with` block."""

    def __init__(self, model: torch.nn.Module):
        self._model = model
        self._originals: dict[tuple[int, str], tuple[torch.nn.Module, torch.nn.Module]] = {}
        self.modules: dict[str, OptimizedModule] = {}
        """The optimized modules by name."""
        self.skipped: dict[str, str] = {}
        """Modules that match a pattern but that the kernel does not fit, with the reason."""

    @property
    def stats(self) -> dict[str, Stats]:
        """For each optimized module: the calls that the kernel and the reference served."""
        return {name: module._kernelpro.stats for name, module in self.modules.items()}

    def undo(self) -> None:
        """Put the original modules back."""
        for (_, name), (parent, original) in self._originals.items():
            parent._modules[name] = original
        self._originals.clear()

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()

    def __repr__(self) -> str:
        lines = [f"Patch of {type(self._model).__name__}: {len(self.modules)} modules replaced"]
        lines += [f"  {name}: {stats}" for name, stats in self.stats.items()]
        lines += [f"  {name}: not replaced: {reason}" for name, reason in self.skipped.items()]
        return "\n".join(lines)

    def _replace(self, name: str, replacement: OptimizedModule) -> None:
        parent_name, _, last = name.rpartition(".")
        parent = self._model.get_submodule(parent_name)
        original = parent._modules[last]
        assert original is not None
        self._originals[id(parent), last] = parent, original
        parent._modules[last] = replacement
        self.modules[name] = replacement


def patch_model(
    model: torch.nn.Module,
    replacements: Mapping[str, Any],
    inputs: Any = None,
    strict: bool = False,
    tolerance: float = 2e-2,
) -> Patch:
    """See `kernelpro.patch`."""
    patch = Patch(model)
    templates = _matches(model, replacements)
    expected = _run(model, inputs)
    optimized: dict[int, OptimizedModule] = {}
    for name, template in templates.items():
        module = model.get_submodule(name)
        factories = type(template)._kernelpro_factories
        if reason := problem_with(module, factories):
            patch.skipped[name] = reason
            continue
        if id(module) not in optimized:
            optimized[id(module)] = type(template).from_module(module, strict)
        patch._replace(name, optimized[id(module)])
    if not patch.modules:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in patch.skipped.items())
        raise PatchError(f"the kernel fits none of the modules: {reasons}")
    if patch.skipped:
        names = "; ".join(f"{name}: {reason}" for name, reason in patch.skipped.items())
        warnings.warn(f"not replaced: {names}", FallbackWarning, stacklevel=3)
    if inputs is not None:
        _verify(patch, model, inputs, expected, tolerance)
    return patch


def _matches(model: torch.nn.Module, replacements: Mapping[str, Any]) -> dict[str, Any]:
    """The replacement for each module whose name matches a pattern; `*` matches one part of a name."""
    names = [name for name, _ in model.named_modules(remove_duplicate=False) if name]
    found: dict[str, Any] = {}
    if not isinstance(replacements, Mapping):
        raise PatchError('give a dict of names and optimized modules, such as {"layers.*": result.module()}')
    for pattern, template in replacements.items():
        if not hasattr(type(template), "_kernelpro_factories"):  # a file has an OptimizedModule of its own
            raise PatchError(
                f"{pattern}: give an optimized module: result.module(), or an instance of an exported class"
            )
        if not pattern:
            raise PatchError(
                "the pattern is empty: to replace the whole model, use result.module() instead of it"
            )
        parts = pattern.split(".")
        matching = [
            name
            for name in names
            if len(name.split(".")) == len(parts)
            and all(fnmatch.fnmatchcase(own, part) for own, part in zip(name.split("."), parts, strict=True))
        ]
        if not matching:
            listed = ", ".join([*names[:12], *(["..."] if len(names) > 12 else [])])
            raise PatchError(f"{pattern}: no such module; the model has {listed}")
        found |= dict.fromkeys(matching, template)
    return found


def _run(model: torch.nn.Module, inputs: Any) -> Any:
    if inputs is None:
        return None
    with torch.no_grad():
        return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def _verify(patch: Patch, model: torch.nn.Module, inputs: Any, expected: Any, tolerance: float) -> None:
    """Compare the patched model with the original; undo the patch if they differ."""
    try:
        output = _run(model, inputs)
    except BaseException:  # Ctrl-C too: the model is left as it was
        patch.undo()
        raise
    error = relative_error(output, expected)
    if not error <= tolerance:
        patch.undo()
        raise PatchError(
            f"the patched model has a relative error of {error:.1e} (limit {tolerance:.1e}); undone"
        )
