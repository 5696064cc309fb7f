"""Command-line options that several commands share, each declared once.

The options of a command are one dataclass that inherits from the groups below. `add_command` turns the fields
of that dataclass into command-line parameters and calls the command with one instance of it.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import typer

from kernelpro.records import Mode, Objective, Options, Precision, RunConfig, Target

T = TypeVar("T")

TASK, MODEL, SEARCH, BUDGET = "Task", "Model", "Search", "Budget"
MEASUREMENT, WHERE, OUTPUT = "Measurement", "Where jobs run", "Output"


def add_command(
    app: typer.Typer, options: type[T], name: str = ""
) -> Callable[[Callable[[T], int]], Callable[[T], int]]:
    """Register a function as a command. The fields of the dataclass `options` become its parameters."""

    def register(function: Callable[[T], int]) -> Callable[[T], int]:
        hints = get_type_hints(options, include_extras=True)

        def run(**values: Any) -> int:
            return function(options(**values))

        run.__doc__, run.__annotations__ = function.__doc__, hints
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [
                inspect.Parameter(
                    item.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    annotation=hints[item.name],
                    default=_default(item),
                )
                for item in dataclasses.fields(options)  # type: ignore[arg-type]
            ]
        )
        app.command(name or function.__name__)(run)
        return function

    return register


def _default(item: dataclasses.Field[Any]) -> Any:
    if item.default_factory is not dataclasses.MISSING:
        return item.default_factory()
    return inspect.Parameter.empty if item.default is dataclasses.MISSING else item.default


class BaselineChoice(StrEnum):
    """Baselines that can be added."""

    eager_fp32 = "eager_fp32"
    eager_tf32 = "eager_tf32"
    compile = "compile"
    max_autotune = "max_autotune"


class LanguageChoice(StrEnum):
    """Languages that kernels can be written in."""

    triton = "triton"
    cuda = "cuda"
    cute = "cute"
    cpp = "cpp"


TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="A task file (see `kernelpro init`), or a module class: package.module:Class or file.py:Class.",
    ),
]
RunArgument = Annotated[
    str, typer.Argument(metavar="RUN", help="Name of the run, as `kernelpro runs` lists it.")
]


def option(text: str, panel: str, *names: str, **more: Any) -> Any:
    """A Typer option with a help text, in a help panel."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **more)


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Device, precision and mode of the task."""

    target: Annotated[Target | None, option("Device to run on; default: the GPU if there is one.", TASK)] = (
        None
    )
    precision: Annotated[
        Precision | None,
        option(
            "Lowest precision that a kernel may use; default: tf32 for float32 tasks on a GPU, else the "
            "task's own.",
            TASK,
        ),
    ] = None
    mode: Annotated[
        Mode | None,
        option("Mode of the module; default: train for task files, else the module's own mode.", TASK),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """Shapes of the inputs."""

    shape: Annotated[
        list[str],
        option(
            "A shape of the inputs: values for parameters of get_inputs or constants of the task file, such "
            "as batch=8. Repeat it for each shape; weight=3 says how often the shape occurs.",
            TASK,
            metavar="NAME=VALUE,...",
        ),
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """Where jobs run."""

    pool: Annotated[
        str,
        option(
            "Where to run jobs: local (this machine), local:N (N workers), spool:DIR (workers that see a "
            "folder), ray:, ray:HOST:PORT or ray://HOST:PORT (a Ray cluster).",
            WHERE,
        ),
    ] = "local"
    gpu_name: Annotated[
        str, option("Use only devices whose name contains this text, such as H200.", WHERE)
    ] = ""
    wait: Annotated[
        bool,
        option(
            "Wait for answers (inbox) and results (spool) instead of exiting with code 3.", WHERE, "--wait"
        ),
    ] = False
    sandbox: Annotated[
        Literal["auto", "namespaces", "landlock", "process"],
        option("How to isolate candidates; auto selects the strongest level that works.", WHERE),
    ] = "auto"


@dataclass(frozen=True, kw_only=True)
class BaselineOptions:
    """What candidates are compared with."""

    baseline: Annotated[
        list[BaselineChoice],
        option(
            "Add a baseline to the defaults (eager_fp32, eager_tf32, compile), such as max_autotune. "
            "Repeatable.",
            MEASUREMENT,
            metavar="NAME",
        ),
    ] = field(default_factory=list)
    no_baseline: Annotated[
        list[BaselineChoice],
        option("Leave a default baseline out. Repeatable.", MEASUREMENT, "--no-baseline", metavar="NAME"),
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class JudgeEffortOptions:
    """How long a candidate is measured."""

    quick: Annotated[
        bool, option("Measure fewer rounds; takes seconds per candidate.", MEASUREMENT, "--quick")
    ] = False
    full: Annotated[
        bool,
        option(
            "Measure more rounds, with all baselines in each, and run compute-sanitizer on a GPU.",
            MEASUREMENT,
            "--full",
        ),
    ] = False
    min_own_share: Annotated[
        float,
        option(
            "Reject candidates whose own kernels take less than this share of the time (0 to 1).",
            MEASUREMENT,
            min=0,
            max=1,
        ),
    ] = 0.0


@dataclass(frozen=True, kw_only=True)
class TimeoutOptions:
    """Time limits of a candidate."""

    timeout: Annotated[
        float,
        option(
            "Seconds that a call, the import or the constructor of a candidate may take.",
            MEASUREMENT,
            min=0.1,
        ),
    ] = Options.call_timeout
    build_timeout: Annotated[
        float,
        option("Seconds that compilers may run, ahead of time or in the first call.", MEASUREMENT, min=0.1),
    ] = Options.build_timeout


@dataclass(frozen=True, kw_only=True)
class AuthorOptions:
    """The author of the kernels."""

    model: Annotated[
        str,
        option(
            "LLM that writes kernels: PROVIDER:MODEL, http://HOST:PORT/v1#MODEL, inbox:DIR (questions as "
            "files) or replay:RUN (recorded answers).",
            MODEL,
            metavar="SPEC",
        ),
    ] = ""
    author: Annotated[
        str | None,
        option("Write kernels without an LLM: playbook, or files:DIR for kernels of your own.", MODEL),
    ] = None
    role: Annotated[
        list[str],
        option(
            "Settings of one role (design, plan, code, debug), such as plan:model=SPEC,effort=high. "
            "Repeatable.",
            MODEL,
            metavar="ROLE:KEY=VALUE,...",
        ),
    ] = field(default_factory=list)
    price: Annotated[
        list[str],
        option(
            "Price of a model in dollars per million tokens. Repeatable.", MODEL, metavar="MODEL=INPUT/OUTPUT"
        ),
    ] = field(default_factory=list)
    no_temperature: Annotated[
        bool, option("Send no temperature (for models that reject it).", MODEL, "--no-temperature")
    ] = False


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How kernels are searched for."""

    policy: Annotated[
        str,
        option(
            "Search policy: mcts, epsilon-greedy, beam, greedy or best-of-n; its constants follow a colon, "
            "as in mcts:seeds=6.",
            SEARCH,
        ),
    ] = RunConfig.policy
    concurrency: Annotated[
        int,
        option("Number of candidates that are written or judged at the same time.", SEARCH, min=1, max=64),
    ] = RunConfig.concurrency
    seed: Annotated[
        int,
        option("Random seed: the same seed and the same answers of models lead to the same choices.", SEARCH),
    ] = RunConfig.seed
    tune_points: Annotated[
        int,
        option("Number of settings to try of a candidate's tunables; 0: do not tune.", SEARCH, min=0),
    ] = RunConfig.tune_points
    race: Annotated[
        int,
        option(
            "Time the playbook's first designs beside each other and judge only this many, the fastest; "
            "0: judge all.",
            SEARCH,
            min=0,
        ),
    ] = RunConfig.race
    finalists: Annotated[
        int,
        option(
            "Number of best candidates to judge again at the end, at full length; 0: keep the verdicts of "
            "the search.",
            SEARCH,
            min=0,
        ),
    ] = RunConfig.finalists
    language: Annotated[
        list[LanguageChoice],
        option(
            "Write kernels only in this language; the code that torch.compile generates still takes part "
            "(--no-compile-seed). Repeatable; default: all.",
            SEARCH,
        ),
    ] = field(default_factory=list)
    objective: Annotated[
        Objective,
        option(
            "What to minimize: time (speed), energy among kernels about as fast as the fastest "
            "(energy-at-speed), or energy times time (edp).",
            SEARCH,
        ),
    ] = RunConfig.objective
    speed_tolerance: Annotated[
        float,
        option(
            "With an energy objective: how many percent slower than the fastest still counts as equally "
            "fast.",
            SEARCH,
            min=0,
            max=50,
        ),
    ] = 100 * RunConfig.speed_tolerance
    no_compile_seed: Annotated[
        bool,
        option("Do not start from the code that torch.compile generates.", SEARCH, "--no-compile-seed"),
    ] = False


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """When a search ends."""

    budget: Annotated[
        list[str],
        option(
            "Limits of the run: quick, normal or max (20, 75, 300 candidates), or candidates=N, dollars=N, "
            "tokens=N, wall=2h, device=30m; 0: no limit. Repeatable.",
            BUDGET,
        ),
    ] = field(default_factory=list)
    stop_at_floor: Annotated[
        float | None,
        option(
            "Stop when floor / time of the best kernel reaches this share; the floor is the shortest time "
            "that the hardware allows. 0: never; default: 0.95.",
            BUDGET,
            min=0,
            max=1,
            metavar="SHARE",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunsDirOptions:
    """Where runs are stored."""

    runs_dir: Annotated[
        str | None,
        option("Folder of runs; default: $KERNELPRO_RUNS_DIR or the user's data folder.", OUTPUT),
    ] = None


@dataclass(frozen=True, kw_only=True)
class JsonOptions:
    """Output for programs."""

    json: Annotated[bool, option("Print one JSON object per line on stdout.", OUTPUT, "--json")] = False


@dataclass(frozen=True, kw_only=True)
class SearchRunOptions(
    PoolOptions, BaselineOptions, BudgetOptions, SearchOptions, AuthorOptions, TaskOptions
):
    """All options of a search."""
