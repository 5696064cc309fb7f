"""The commands. They import what they need when they run, so that --help is instant."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from kernelpro.cli.misuse import check, clearly, misuse
from kernelpro.cli.spool_commands import spool_app

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="GPU kernels, judged honestly.",
)
app.add_typer(spool_app, name="spool")


def _version(asked: bool) -> None:
    if asked:
        from kernelpro import __version__

        print(f"kernelpro {__version__}")
        raise typer.Exit()


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which this is.")
    ] = False,
) -> None:
    """GPU kernels, judged honestly."""


# options that `optimize` has, and `bench` with --author
_OBJECTIVES = ("speed", "energy-at-speed", "edp")
_Objective = Annotated[
    str,
    typer.Option(
        help="speed, energy-at-speed (least energy among the about equally fast) or edp (energy x delay)."
    ),
]
_Tolerance = Annotated[
    float,
    typer.Option(
        min=0, max=50, help="energy-at-speed: so many percent slower than the fastest counts as equal."
    ),
]


@app.command()
def judge(
    task: Annotated[str, typer.Argument(help="A KernelBench file: Model, get_inputs, get_init_inputs.")],
    candidates: Annotated[list[str], typer.Argument(help="Python files, each with class ModelNew.")],
    target: Annotated[str | None, typer.Option(help="cuda or cpu; default: the GPU if there is one.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 or native; default: tf32 for float32 tasks on a GPU.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="The module's mode: train (as KernelBench runs it) or eval.")
    ] = "train",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds: seconds a candidate.")] = False,
    full: Annotated[bool, typer.Option("--full", help="More rounds, all baselines in each.")] = False,
    json_lines: Annotated[
        bool, typer.Option("--json", help="One JSON object a line, nothing else, on stdout.")
    ] = False,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="eager_fp32, eager_tf32, compile, max_autotune; default: the first three. Repeatable."
        ),
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="Switch a tripwire off by its name, or `all`. Repeatable.")
    ] = None,
    min_authored: Annotated[
        float, typer.Option(min=0, max=1, help="Least share of time in the candidate's own kernels.")
    ] = 0.0,
    sandbox: Annotated[str, typer.Option(help="auto, namespaces, landlock or process.")] = "auto",
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds one call may take.")] = 60.0,
    build_timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds a build, and the first call, may take.")
    ] = 300.0,
    memory: Annotated[
        float, typer.Option(min=0, help="GiB of host memory a candidate may hold; 0: three quarters.")
    ] = 0.0,
    energy: Annotated[
        bool,
        typer.Option("--energy", help="Also joules a call, beside the fastest baseline: half a minute more."),
    ] = False,
    pool: Annotated[
        str, typer.Option(help="Where jobs are done: local, local:N, spool:DIR, ray: or ray://HOST:PORT.")
    ] = "local",
    match: Annotated[str, typer.Option(help="Only hardware whose name contains this: H200.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="spool: wait for results instead of stopping.")
    ] = False,
) -> None:
    """Is this kernel right, and is its speed-up real? Exit code 0: all passed; 1: not all; 2: misuse; 3: results outstanding."""
    from kernelpro.cli import judging
    from kernelpro.cli.place import Place

    check("--target", target, ("cuda", "cpu"))
    check("--precision", precision, ("fp32", "tf32", "native"))
    check("--mode", mode, ("train", "eval"))
    check("--sandbox", sandbox, ("auto", "namespaces", "landlock", "process"))
    if quick and full:
        misuse("--quick and --full exclude each other: give one")
    effort = "quick" if quick else "full" if full else "normal"
    settings: dict[str, Any] = {
        "effort": effort,
        "allow": tuple(allow or ()),
        "min_authored": min_authored,
        "sandbox": sandbox,
    }
    place = Place(pool, match, wait)
    settings |= {
        "call_timeout": timeout,
        "build_timeout": build_timeout,
        "memory_gib": memory,
        "energy": energy,
    }
    raise typer.Exit(
        clearly(judging.run, task, candidates, target, precision, mode, settings, baseline, place, json_lines)
    )


@app.command()
def profile(
    task: Annotated[str, typer.Argument(help="A KernelBench file: Model, get_inputs, get_init_inputs.")],
    candidate: Annotated[str, typer.Argument(help="A Python file with class ModelNew.")],
    target: Annotated[str | None, typer.Option(help="cuda or cpu; default: the GPU if there is one.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 or native; default: tf32 for float32 tasks on a GPU.")
    ] = None,
    mode: Annotated[str, typer.Option(help="The module's mode: train or eval.")] = "train",
    raw: Annotated[
        bool, typer.Option("--raw", help="The evidence as well: times, kernels, stalls, worst lines.")
    ] = False,
    json_lines: Annotated[
        bool, typer.Option("--json", help="One JSON object on stdout, nothing else.")
    ] = False,
    plot: Annotated[str | None, typer.Option(help="Write the roofline to this file (SVG).")] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Profile a baseline beside it: eager_fp32, eager_tf32, compile.")
    ] = None,
    tool: Annotated[
        list[str] | None, typer.Option(help="A Python file with a tool of your own. Repeatable.")
    ] = None,
    tracer: Annotated[
        str, typer.Option(help="Where the timeline comes from: auto (CUPTI), cupti or nsys.")
    ] = "auto",
    everything: Annotated[
        bool, typer.Option("--all-counters", help="Collect for all tools, whatever the class.")
    ] = False,
    energy: Annotated[
        bool, typer.Option("--energy", help="Also what wastes energy without costing time.")
    ] = False,
    sandbox: Annotated[str, typer.Option(help="auto, namespaces, landlock or process.")] = "auto",
    pool: Annotated[
        str, typer.Option(help="Where jobs are done: local, local:N, spool:DIR, ray: or ray://HOST:PORT.")
    ] = "local",
    match: Annotated[str, typer.Option(help="Only hardware whose name contains this: H200.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="spool: wait for results instead of stopping.")
    ] = False,
) -> None:
    """What limits this kernel, and what to do about it: in words, with numbers, without an LLM."""
    from kernelpro.cli import profiling
    from kernelpro.cli.place import Place

    check("--target", target, ("cuda", "cpu"))
    check("--precision", precision, ("fp32", "tf32", "native"))
    check("--mode", mode, ("train", "eval"))
    check("--tracer", tracer, ("auto", "cupti", "nsys"))
    check("--sandbox", sandbox, ("auto", "namespaces", "landlock", "process"))
    for name in compare or ():
        check("--compare", name, ("eager_fp32", "eager_tf32", "compile", "max_autotune"))
    wanted = profiling.Wanted(
        raw, json_lines, plot, tuple(compare or ()), tuple(tool or ()), tracer, everything, energy, sandbox
    )
    place = Place(pool, match, wait)
    raise typer.Exit(clearly(profiling.run, task, candidate, target, precision, mode, wanted, place))


@app.command()
def optimize(
    task: Annotated[str, typer.Argument(help="A KernelBench file: Model, get_inputs, get_init_inputs.")],
    author: Annotated[
        str | None,
        typer.Option(
            help="team (an LLM), playbook (none), or files:DIR; default: an LLM if one is configured, else the playbook."
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="The LLM: PROVIDER:MODEL, http://HOST:PORT/v1#MODEL, inbox:DIR, replay:RUN.")
    ] = "",
    plan_model: Annotated[str, typer.Option(help="Another model for plans.")] = "",
    debug_model: Annotated[str, typer.Option(help="Another model for fixes.")] = "",
    role: Annotated[
        list[str] | None,
        typer.Option(
            help="Ask a role in another way: plan:effort=high,temperature=0.7. Repeatable (docs/models.md)."
        ),
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(help="MODEL=IN/OUT, dollars per million tokens. Repeatable.")
    ] = None,
    cool: Annotated[
        bool, typer.Option("--no-temperature", help="For models that accept no temperature.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="inbox, spool: wait for answers and results instead of stopping.")
    ] = False,
    policy: Annotated[
        str,
        typer.Option(
            help="mcts, epsilon-greedy, beam, greedy or best-of-n; constants after a colon: mcts:seeds=6."
        ),
    ] = "mcts",
    budget: Annotated[
        list[str] | None,
        typer.Option(
            help="candidates=75, dollars=5, tokens=1e6, wall=2h, device=30m or floor=0.95. Repeatable; 0: no limit."
        ),
    ] = None,
    effort: Annotated[str, typer.Option(help="quick (20 candidates), normal (75) or max (300).")] = "normal",
    target: Annotated[str | None, typer.Option(help="cuda or cpu; default: the GPU if there is one.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 or native; default: tf32 for float32 tasks on a GPU.")
    ] = None,
    mode: Annotated[str, typer.Option(help="The module's mode: train or eval.")] = "train",
    in_flight: Annotated[
        int, typer.Option(min=1, max=64, help="Candidates being written or judged at the same time.")
    ] = 2,
    seed: Annotated[int, typer.Option(help="The same seed and the same answers make the same choices.")] = 0,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="eager_fp32, eager_tf32, compile, max_autotune; default: the first three. Repeatable."
        ),
    ] = None,
    objective: _Objective = "speed",
    tolerance: _Tolerance = 2.0,
    tune: Annotated[
        int, typer.Option(min=0, help="Points of a candidate's tunables that are tried; 0: none.")
    ] = 12,
    language: Annotated[
        list[str] | None,
        typer.Option(
            help="Only kernels in this language: triton, cuda, cute or cpp. Repeatable; default: all."
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--no-compiler", help="Do not begin with torch.compile's own code.")
    ] = False,
    alone: Annotated[
        bool, typer.Option("--no-knowledge", help="Neither read nor add to what earlier runs learnt.")
    ] = False,
    name: Annotated[str | None, typer.Option(help="Name of the run; default: the task's.")] = None,
    home: Annotated[
        str | None,
        typer.Option(help="Where runs are kept; default: $KERNELPRO_RUNS or the user's data folder."),
    ] = None,
    sandbox: Annotated[str, typer.Option(help="auto, namespaces, landlock or process.")] = "auto",
    pool: Annotated[
        str, typer.Option(help="Where jobs are done: local, local:N, spool:DIR, ray: or ray://HOST:PORT.")
    ] = "local",
    match: Annotated[str, typer.Option(help="Only hardware whose name contains this: H200.")] = "",
    json_lines: Annotated[bool, typer.Option("--json", help="Events as JSON lines on stdout.")] = False,
) -> None:
    """Search for a faster kernel; TASK is all it needs. Ctrl-C stops cleanly; `kernelpro resume RUN` goes on."""
    from kernelpro.cli import running
    from kernelpro.cli.place import Place

    check("--target", target, ("cuda", "cpu"))
    check("--precision", precision, ("fp32", "tf32", "native"))
    check("--mode", mode, ("train", "eval"))
    check("--effort", effort, ("quick", "normal", "max"))
    check("--objective", objective, _OBJECTIVES)
    check("--sandbox", sandbox, ("auto", "namespaces", "landlock", "process"))
    for known in baseline or ():
        check("--baseline", known, ("eager_fp32", "eager_tf32", "compile", "max_autotune"))
    for known in language or ():
        check("--language", known, ("triton", "cuda", "cute", "cpp"))
    models = {
        role: name for role, name in (("code", model), ("plan", plan_model), ("debug", debug_model)) if name
    }
    wanted = running.Wanted(
        author,
        policy,
        tuple(budget or ()),
        effort,
        in_flight,
        seed,
        sandbox,
        not alone,
        models,
        tuple(baseline or ()),
        not cool,
        not plain,
        Place(pool, match, wait),
        objective,
        tolerance / 100,
        tune,
        tuple(language or ()),
        tuple(role or ()),
        tuple(price or ()),
    )
    raise typer.Exit(clearly(running.optimize, task, target, precision, mode, wanted, name, home, json_lines))


@app.command()
def bench(
    suite: Annotated[str, typer.Argument(help="own, a KernelBench checkout, or a folder of task files.")],
    listed: Annotated[bool, typer.Option("--list", help="Name the problems, and do nothing.")] = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Which problems can be scored, which not, and why.")
    ] = False,
    kernels: Annotated[
        str | None, typer.Option(help="Judge kernels: one of KernelBench's runs, or files named like tasks.")
    ] = None,
    author: Annotated[
        str | None, typer.Option(help="Search for kernels, problem by problem: an author as for optimize.")
    ] = None,
    model: Annotated[str, typer.Option(help="With --author: who answers, as for optimize.")] = "",
    role: Annotated[
        list[str] | None, typer.Option(help="With --author: as for optimize. Repeatable.")
    ] = None,
    price: Annotated[
        list[str] | None, typer.Option(help="With --author: as for optimize. Repeatable.")
    ] = None,
    budget: Annotated[
        list[str] | None, typer.Option(help="With --author: limits for each problem. Repeatable.")
    ] = None,
    objective: _Objective = "speed",
    tolerance: _Tolerance = 2.0,
    parallel: Annotated[
        int, typer.Option(min=1, help="With --author: problems worked on at the same time.")
    ] = 1,
    in_flight: Annotated[
        int, typer.Option(min=1, max=64, help="With --author: candidates of a problem at the same time.")
    ] = 2,
    plain: Annotated[
        bool, typer.Option("--no-compiler", help="With --author: without torch.compile's own code.")
    ] = False,
    tune: Annotated[
        int,
        typer.Option(min=0, help="With --author: points of a candidate's tunables that are tried; 0: none."),
    ] = 12,
    level: Annotated[
        list[int] | None, typer.Option(help="Only this level. Repeatable; default: all.")
    ] = None,
    ids: Annotated[
        str, typer.Option(help="Only these problems: 1-20,33 of each level, or 1/1-20,2/33.")
    ] = "",
    sample: Annotated[
        int | None, typer.Option(help="With --kernels: only this sample; default: the best of all.")
    ] = None,
    energy: Annotated[
        bool, typer.Option("--energy", help="With --kernels: also joules a call, as for judge.")
    ] = False,
    target: Annotated[str | None, typer.Option(help="cuda or cpu; default: the GPU if there is one.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="fp32, tf32 or native; default: tf32 for float32 tasks on a GPU.")
    ] = None,
    mode: Annotated[
        str, typer.Option(help="The modules' mode: train (as KernelBench runs them) or eval.")
    ] = "train",
    quick: Annotated[bool, typer.Option("--quick", help="Fewer rounds: seconds a candidate.")] = False,
    full: Annotated[bool, typer.Option("--full", help="More rounds, all baselines in each.")] = False,
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            help="eager_fp32, eager_tf32, compile, max_autotune; default: the first three. Repeatable. With --probe also none."
        ),
    ] = None,
    min_authored: Annotated[
        float, typer.Option(min=0, max=1, help="Least share of time in the candidate's own kernels.")
    ] = 0.0,
    sandbox: Annotated[str, typer.Option(help="auto, namespaces, landlock or process.")] = "auto",
    pool: Annotated[
        str, typer.Option(help="Where jobs are done: local, local:N, spool:DIR, ray: or ray://HOST:PORT.")
    ] = "local",
    match: Annotated[str, typer.Option(help="Only hardware whose name contains this: H200.")] = "",
    wait: Annotated[
        bool, typer.Option("--wait", help="inbox, spool: wait for answers and results instead of stopping.")
    ] = False,
    out: Annotated[
        str | None, typer.Option(help="Folder of this bench; the same one goes on where it stopped.")
    ] = None,
    retry: Annotated[
        bool, typer.Option("--retry", help="Ask again what could not be run or judged.")
    ] = False,
    form: Annotated[str, typer.Option("--format", help="table, md or json.")] = "table",
) -> None:
    """A whole suite: fast_p, geomeans and costs against each baseline. Killed at any time, the same command goes on.

    Exit code 0: all is answered; 1: nothing could be run; 2: misuse; 3: answers or results are outstanding."""
    from kernelpro.cli import benching
    from kernelpro.cli.place import Place
    from kernelpro.records import Options

    check("--target", target, ("cuda", "cpu"))
    check("--precision", precision, ("fp32", "tf32", "native"))
    check("--mode", mode, ("train", "eval"))
    check("--objective", objective, _OBJECTIVES)
    check("--format", form, ("table", "md", "json"))
    check("--sandbox", sandbox, ("auto", "namespaces", "landlock", "process"))
    if baseline == ["none"] and not probe:
        misuse("--baseline none goes with --probe: what is timed is timed against something")
    for name in baseline if baseline and baseline != ["none"] else ():
        check("--baseline", name, ("eager_fp32", "eager_tf32", "compile", "max_autotune"))
    if quick and full:
        misuse("--quick and --full exclude each other: give one")
    effort = "quick" if quick else "full" if full else "normal"
    settings: dict[str, Any] = {
        "effort": effort,
        "min_authored": min_authored,
        "sandbox": sandbox,
        "energy": energy,
    }
    asked = () if baseline == ["none"] else tuple(baseline or ())
    options = Options(**settings | ({"baselines": asked} if baseline else {}))
    what = (
        suite,
        listed,
        probe,
        kernels,
        author,
        model,
        tuple(budget or ()),
        objective,
        tolerance / 100,
        parallel,
        not plain,
    )
    wanted = benching.Wanted(
        *what, tuple(level or ()), ids, sample, target, precision, mode, options, out, retry, form
    )
    wanted = replace(
        wanted, roles=tuple(role or ()), prices=tuple(price or ()), in_flight=in_flight, tune=tune
    )
    raise typer.Exit(clearly(benching.run, wanted, Place(pool, match, wait)))


@app.command()
def resume(
    run: Annotated[str, typer.Argument(help="A run, as `kernelpro runs` lists them.")],
    budget: Annotated[list[str] | None, typer.Option(help="New limits, as for optimize. Repeatable.")] = None,
    price: Annotated[
        list[str] | None, typer.Option(help="Prices of models, as for optimize. Repeatable.")
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Another pool than so far, as for optimize.")] = None,
    home: Annotated[str | None, typer.Option(help="Where runs are kept.")] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="Events as JSON lines on stdout.")] = False,
) -> None:
    """Go on with a run that was stopped or killed, or that has budget left."""
    from kernelpro.cli import running

    raise typer.Exit(
        clearly(running.resume, run, tuple(budget or ()), tuple(price or ()), pool, home, json_lines)
    )


@app.command()
def runs(
    delete: Annotated[
        list[str] | None, typer.Option(metavar="RUN", help="Delete this run instead. Repeatable.")
    ] = None,
    home: Annotated[str | None, typer.Option(help="Where runs are kept.")] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """All runs: how far they are (running, waiting, finished, failed, stopped), and what they found."""
    from kernelpro.cli import history

    raise typer.Exit(
        clearly(history.delete, delete, home) if delete else clearly(history.runs, home, json_lines)
    )


@app.command()
def show(
    run: Annotated[str, typer.Argument(help="A run.")],
    step: Annotated[
        int | None,
        typer.Argument(
            help="One step of it: verdict, findings, prompts and answers, difference to its parent, source."
        ),
    ] = None,
    plot: Annotated[str | None, typer.Option(help="Write speed against energy to this file (SVG).")] = None,
    home: Annotated[str | None, typer.Option(help="Where runs are kept.")] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """The tree of a run, or one step of it."""
    from kernelpro.cli import history

    raise typer.Exit(clearly(history.show, run, step, plot, home, json_lines))


@app.command()
def export(
    run: Annotated[str, typer.Argument(help="A run.")],
    step: Annotated[int | None, typer.Option(help="A step; default: the winner.")] = None,
    out: Annotated[str | None, typer.Option("--out", "-o", help="File to write; default: RUN.py.")] = None,
    home: Annotated[str | None, typer.Option(help="Where runs are kept.")] = None,
) -> None:
    """The winner as one Python file that needs torch and a compiler only, guarded by the reference, with a self-test."""
    from kernelpro.cli import history

    raise typer.Exit(clearly(history.export, run, step, out, home))


@app.command()
def report(
    run: Annotated[str, typer.Argument(help="A run, finished or not.")],
    form: Annotated[str, typer.Option("--format", help="html (one file, no network), md or json.")] = "html",
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="File to write, - for stdout; default: in the run.")
    ] = None,
    home: Annotated[str | None, typer.Option(help="Where runs are kept.")] = None,
) -> None:
    """What a run found, and how: verdict, search tree, roofline, every step, the winner's source, how to reproduce it."""
    from kernelpro.cli import history

    check("--format", form, ("html", "md", "json"))
    raise typer.Exit(clearly(history.report, run, form, out, home))


@app.command()
def search(
    query: Annotated[str | None, typer.Argument(help="Words or identifiers: `tma load sm90`.")] = None,
    where: Annotated[
        str, typer.Option("--in", help="cutlass, a name given with --add, or a folder.")
    ] = "cutlass",
    outline: Annotated[str | None, typer.Option(help="What a file defines.")] = None,
    read: Annotated[str | None, typer.Option(help="Lines of a file: PATH:10-60.")] = None,
    definition: Annotated[str | None, typer.Option("--def", help="Where a symbol is defined.")] = None,
    uses: Annotated[str | None, typer.Option(help="Where a symbol is used.")] = None,
    regex: Annotated[bool, typer.Option("--regex", help="The query is a regular expression.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="The query is a text to be found as it is.")] = False,
    glob: Annotated[str, typer.Option(help="Only files like this, with --regex or --exact.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Most results.")] = 10,
    add: Annotated[str | None, typer.Option(help="Give a folder a name: NAME=PATH.")] = None,
    remove: Annotated[str | None, typer.Option(help="Forget a name.")] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """Search the CUTLASS tree, or any other, as the agents do. Exit code 0: found; 1: nothing found."""
    from kernelpro.cli import searching

    wanted = searching.Wanted(query, outline, read, definition, uses, add, remove)
    raise typer.Exit(clearly(searching.run, wanted, where, regex, exact, glob, limit, json_lines))


@app.command()
def knowledge(
    export: Annotated[str | None, typer.Option(help="Write all of it to this JSON file.")] = None,
    imported: Annotated[
        str | None, typer.Option("--import", help="Add what another machine exported.")
    ] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Delete all of it.")] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """What runs have learnt: which method gave what, on which bottleneck and hardware."""
    from kernelpro.cli import history

    raise typer.Exit(clearly(history.knowledge, export, imported, forget, json_lines))


@app.command()
def tools(
    tool: Annotated[
        list[str] | None, typer.Option(help="A Python file with a tool of your own. Repeatable.")
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="The reference page in Markdown: trigger, advice, gain of each.")
    ] = False,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object a line.")] = False,
) -> None:
    """The micro-profiling tools: what each looks at, when it speaks, and what it needs."""
    from kernelpro.cli import toolbox

    raise typer.Exit(clearly(toolbox.run, tool or [], page, json_lines))


@app.command()
def worker(
    spool: Annotated[
        str | None,
        typer.Argument(help="A spool's folder, or a file with its jobs; without, jobs come on stdin."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="End when there is nothing more to do.")] = False,
    seconds: Annotated[
        float, typer.Option(min=0, help="End in time, with nothing half done, after so many; 0: never.")
    ] = 0.0,
    lease: Annotated[
        float, typer.Option(min=1, help="Seconds without a sign of life after which others take our jobs.")
    ] = 120.0,
    match: Annotated[str, typer.Option(help="Only devices whose name contains this.")] = "",
    pack: Annotated[
        str | None, typer.Option(help="Write the worker as one file that needs Python and torch alone.")
    ] = None,
    sandbox: Annotated[str, typer.Option(help="auto, namespaces, landlock or process.")] = "auto",
) -> None:
    """Do jobs: those of a spool, or JSON lines from stdin."""
    from kernelpro.cli import spooling

    check("--sandbox", sandbox, ("auto", "namespaces", "landlock", "process"))
    raise typer.Exit(clearly(spooling.worker, spool, once, seconds, lease, match, pack, sandbox))


@app.command()
def energy(
    target: Annotated[str | None, typer.Option(help="cuda or cpu; default: the GPU if there is one.")] = None,
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """What this machine's counter of joules can do: its step, its latency, how well it repeats. Exit code 1: there is none."""
    from kernelpro.cli import joules

    check("--target", target, ("cuda", "cpu"))
    raise typer.Exit(clearly(joules.calibrate, target, json_lines))


@app.command()
def doctor(
    json_lines: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """What this machine can and cannot do, and what to do about what it lacks."""
    from kernelpro.cli import checkup

    raise typer.Exit(clearly(checkup.run, json_lines))
