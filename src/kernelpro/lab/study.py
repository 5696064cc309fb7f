"""Studies a task before candidates are written: its operator graph, and its baselines as candidates.

The graph is traced in this process, which also runs the reference. The code of a compiled baseline was
captured when the baseline was compiled; if not, a child process compiles it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kernelpro.lab.measure.bench import Bench
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.seeds import MODES, NoSeed, reference_seed
from kernelpro.lab.tasks.graph import operator_graph
from kernelpro.records import BadInput, BaselineSeed, Graph, StudyData

_WRITER_NAMES = {"compile": "torch.compile", "max_autotune": "torch.compile max-autotune"}
"""Who wrote the seed of a compiled baseline. PyTorch wrote the others."""


def study_task(
    benches: Sequence[Bench],
    baselines: tuple[str, ...],
    report: Callable[[str], None],
    captured: Mapping[str, str],
) -> StudyData:
    """The operator graph and the baselines as candidates, or the reason why one of them is missing.

    `benches`: one for each shape of the task. `captured`: sources that were captured when the baselines were
    compiled. Compiled code handles one shape only, so a task with several shapes has no compiled seeds.
    """
    report("reading the operator graph")
    bench, graph, graph_error, other_graphs = benches[0], None, "", tuple[Graph, ...]()
    try:
        graph = operator_graph(bench.reference, bench.new_seed())
        other_graphs = _other_graphs(benches)
    except BadInput as error:
        graph_error = str(error)
    data = StudyData(graph, graph_error, other_graphs=other_graphs, precision=bench.precision)
    if len(benches) > 1:
        baselines = tuple(name for name in baselines if name not in MODES)
    if not baselines:
        return data
    report("capturing the baselines' code")
    seeds, errors = _seeds(bench, baselines, captured)
    return replace(data, seeds=seeds, seed_errors=errors)


def _other_graphs(benches: Sequence[Bench]) -> tuple[Graph, ...]:
    """The graphs of all shapes but the first. With only one shape: its graph at another batch size."""
    if len(benches) > 1:
        return tuple(operator_graph(bench.reference, bench.new_seed()) for bench in benches[1:])
    bench, seed = benches[0], benches[0].new_seed()
    resizing = bench.find_resizing(seed)
    try:
        return (operator_graph(bench.reference, seed, resizing),) if resizing else ()
    except BadInput:  # the graph can be traced only for its own batch size
        return ()


def _seeds(
    bench: Bench, baselines: tuple[str, ...], captured: Mapping[str, str]
) -> tuple[tuple[BaselineSeed, ...], str]:
    sources, errors = (
        {variant: captured[variant] for variant in baselines if variant in captured},
        dict[str, str](),
    )
    for variant in (name for name in baselines if name not in MODES):
        try:
            sources[variant] = reference_seed(bench.reference)
        except NoSeed as reason:
            errors[_writer_name(variant)] = str(reason)
    if uncaptured := [name for name in baselines if name in MODES and not sources.get(name)]:
        captured_now, failures = _capture_in_child(bench, uncaptured)
        sources, errors = sources | captured_now, errors | failures
    seeds = tuple(
        BaselineSeed(name, _writer_name(name), sources[name]) for name in baselines if sources.get(name)
    )
    return seeds, "; ".join(f"{name}: {reason}" for name, reason in errors.items())


def _capture_in_child(bench: Bench, baselines: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Compile baselines in a child process. Returns their sources, and for those without, the reasons."""
    seconds = bench.options.build_timeout
    sources: dict[str, str] = {}
    errors: dict[str, str] = {}
    child = bench.start_reference(baselines, buffer_sets=0)
    try:
        child.request(bench.start_request(), seconds)
        request, tail = bench.loader.reference_request()
        child.request(request, seconds, tail)
        for variant in baselines:
            answer = child.request({"op": "compiled_source", "variant": variant}, seconds)
            if answer["source"]:
                sources[variant] = answer["source"]
            else:
                errors[_writer_name(variant)] = answer["reason"]
    except CandidateRejected as error:
        errors["compilers"] = error.reason
    finally:
        child.close()
    return sources, errors


def _writer_name(variant: str) -> str:
    return _WRITER_NAMES.get(variant, "PyTorch")
