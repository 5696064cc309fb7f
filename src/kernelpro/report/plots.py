"""Charts of a run as SVG documents: `kernelpro plot`."""

from __future__ import annotations

from typing import Literal

from kernelpro.engine.store import RunStore
from kernelpro.records import BadInput
from kernelpro.report import account_plot, progress_plot, roofline_plot, tree_plot
from kernelpro.report.data import collect_report
from kernelpro.report.wording import baseline_name

Chart = Literal["tree", "progress", "roofline", "account"]


def plot(store: RunStore, chart: Chart, step: int | None = None) -> str:
    """A chart as SVG. `step`: the step whose time account is drawn; None: the best kernel's. Raises BadInput
    if the run has no data for the chart."""
    if chart == "account":
        return _account(store, step)
    data = collect_report(store)
    title = f"{data.run.task}: {data.verdict.short_result}"
    if data.verdict.speedup:
        ratio = data.verdict.speedup[data.verdict.hardest_baseline]
        title = f"{data.run.task}: {ratio.value:.2f}x over {baseline_name(data.verdict.hardest_baseline)}"
    if chart == "tree":
        if not data.steps:
            raise BadInput(f"run {store.id} has no steps yet")
        return tree_plot.plot_svg(data.steps, title)
    if chart == "progress":
        if not data.progress:
            raise BadInput(f"run {store.id} has no finished step yet")
        return progress_plot.plot_svg(data.progress, data.baselines, data.floor_ms, title)
    if data.roofline is None:
        raise BadInput(f"run {store.id} has no roofline: the work of the task or the roofs are not known")
    return roofline_plot.plot_path_svg(data.roofline, title)


def _account(store: RunStore, number: int | None) -> str:
    data = collect_report(store)
    number = number if number is not None else data.verdict.step
    step = store.step(number) if number is not None else None
    if step is None:
        missing = "no kernel that passed" if number is None else f"no step {number}"
        raise BadInput(f"run {store.id} has {missing}; it has {len(data.steps)} steps")
    if step.diagnosis is None or not step.diagnosis.account:
        reason = f": {step.details.profile_error or 'it was not profiled'}"
        raise BadInput(f"step {number} of run {store.id} has no time account{reason}")
    title = f"{data.run.task}, step {number}: where the time of a call goes"
    return account_plot.plot_svg(step.diagnosis.account, title)
