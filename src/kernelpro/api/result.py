"""The result of a run, and what to do with its winner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernelpro.api.messages import public
from kernelpro.records import (
    BadInput,
    Interval,
    Outcome,
    Verdict,
)
from kernelpro.tasks import Inputs

if TYPE_CHECKING:
    from kernelpro.dropin.patching import Patch
    from kernelpro.engine.export import Winner


@dataclass(frozen=True, repr=False)
class OptimizationResult:
    """How a run ended, and its winner."""

    run: Path
    """The folder of the run. `kernelpro show NAME --runs-dir FOLDER` shows the run."""
    outcome: Outcome
    source: str | None
    """The source of the winner, which defines `ModelNew`; None if no candidate passed."""
    author: str = ""
    """The author of the winner."""
    report: Path | None = None
    """The HTML report; None if it could not be written."""
    reference: Any = field(default=None, compare=False)
    """The module or function that was optimized; None if it was a KernelBench file."""

    def module(self, module: Any = None, *, strict: bool = False) -> Any:
        """The winner as a drop-in `nn.Module`.

        It shares parameters, buffers, attributes and hooks with `module`, by default the module that was
        optimized. Calls for which the kernel was verified run the kernel. Other calls run the reference, the
        first of them with a warning; with `strict` they raise `kernelpro.FallbackError`. `stats` counts both,
        but no calls inside torch.compile.
        """
        from kernelpro.dropin.module import function_class, optimize_module
        from kernelpro.pools import winners

        winner = self._winner()
        tolerance = winner.verdict.tolerance if winner.verdict else None
        specs = winners.describe_winner(winner.task, winner.sources, winner.target, tolerance)
        task = winner.task if winner.task.form == "kernelbench" else None
        factories = tuple(
            winners.winner_factory(spec, source, task)
            for spec, source in zip(specs, winner.sources, strict=True)
        )
        base = module if module is not None else self.reference
        if base is None and task is not None:
            base = winners.build_reference(task)
        if winner.task.form == "function" and module is None:
            base = function_class(self.reference)()
        return optimize_module(base, factories, strict)

    def _winner(self) -> Winner:
        from kernelpro.engine.export import select_winner
        from kernelpro.engine.store import RunStore

        if self.source is None:
            raise BadInput(f"run {self.run.name} has no winner: {self.outcome.reason}")
        store = RunStore.open(self.run.parent, self.run.name)
        try:
            return select_winner(store)
        finally:
            store.close()

    @property
    def verdict(self) -> Verdict | None:
        """The final verdict on the winner."""
        return self.outcome.verdict

    @property
    def speedups(self) -> dict[str, Interval]:
        """The speed-up of the winner over each baseline; empty if there is no winner."""
        return self.verdict.speedup if self.verdict else {}

    @property
    def speedup(self) -> float | None:
        """The speed-up of the winner over the fastest baseline; None if there is no winner."""
        return min((ratio.value for ratio in self.speedups.values()), default=None)

    @property
    def faster(self) -> bool:
        """Whether the winner is certainly faster than every baseline."""
        from kernelpro.report.wording import speed_result

        return self.verdict is not None and speed_result(self.verdict) == "faster"

    def __str__(self) -> str:
        from kernelpro.report import wording

        if self.verdict is None:
            return f"no winner: {self.outcome.reason}"
        lines = [wording.describe_winner(self.verdict, self.outcome.best, self.author)]
        speedups = [f"{name} {wording.format_speedup(ratio)}" for name, ratio in self.speedups.items()]
        lines.append(f"  over each baseline: {', '.join(speedups)}")
        details = (*wording.describe_shapes(self.verdict), wording.describe_unseen(self.verdict, True))
        lines += [f"  {line}" for line in details if line]
        lines += [f"  note: {note}" for note in self.outcome.notes]
        if self.report:
            lines.append(f"  report: {self.report}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from kernelpro.report import notebook

        return notebook.result_html(self.verdict, str(self), self.report)

    def __repr__(self) -> str:
        return f"OptimizationResult({str(self).splitlines()[0]}; run {self.run})"


@public
def patch(
    model: Any,
    replacements: Mapping[str, Any],
    inputs: Inputs | None = None,
    *,
    strict: bool = False,
    tolerance: float = 2e-2,
) -> Patch:
    """Replace submodules of a model in place by optimized ones. `patch.undo()` restores them.

    `replacements` maps names of submodules to optimized modules, such as `{"layers.*.norm": fast}`; `*`
    stands for one part of a name. Each submodule keeps its own parameters, attributes and hooks. With
    `inputs`, the model is run before and after; if a relative error exceeds `tolerance`, the patch is undone
    and BadInput is raised. Without `inputs`, each optimized module compares its first output with that of the
    reference. `strict`: raise `kernelpro.FallbackError` if a kernel cannot serve a call.
    """
    from kernelpro.dropin.patching import PatchError, patch_model

    try:
        return patch_model(model, replacements, inputs, strict, tolerance)
    except PatchError as error:
        raise BadInput(str(error)) from None


@public
def export(
    result: OptimizationResult | str,
    path: str | Path | None = None,
    *,
    package: bool = False,
    step: int | None = None,
    runs_dir: str | Path | None = None,
) -> Path:
    """Write a winner as one Python file that needs only torch and a compiler, as `kernelpro export` does.

    `result` is a result or the name of a run. `path` is the file, by default named after the run. `package`:
    instead of a file, write an installable folder with pyproject.toml, a test and a README. Returns the path.
    """
    from kernelpro.engine import store as stores
    from kernelpro.engine.export import module_file_name, select_winner, write_export
    from kernelpro.engine.store import RunStore

    if isinstance(result, OptimizationResult):
        folder, name = result.run.parent, result.run.name
    else:
        folder, name = stores.runs_dir(runs_dir), result
    store = RunStore.open(folder, name)
    try:
        winner = select_winner(store, step)
    finally:
        store.close()
    file_name = module_file_name(name)
    return write_export(
        winner, Path(path or (file_name.removesuffix(".py") if package else file_name)), package
    )
