"""The agents as one author. For each action of the search, it asks models these questions:

    seed      design: a complete kernel; the direction (language, decomposition) varies from seed to seed
    improve   plan: one transformation with a hypothesis and anchors;
              then code: new text for the anchors, or a complete file for a rewrite
    combine   as improve; the planner also sees a second kernel to borrow from
    debug     debug: the cause of a failure, and the smallest change that removes it

Each role may have its own model. Every answer is checked against its format. The draft keeps the plan's
hypothesis, which the engine compares with the measurement when the step is finished.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from kernelpro.authors.author import (
    LANGUAGES,
    AnswerPending,
    Assignment,
    Author,
    BudgetExhausted,
    Draft,
    ModelUnreachable,
    NoMoreProposals,
    NoProposal,
    NoUsableAnswer,
)
from kernelpro.authors.team import sections, templates
from kernelpro.authors.team.answers import (
    CodeFormat,
    DebugAnswer,
    DebugFormat,
    DesignAnswer,
    DesignFormat,
    PlanAnswer,
    PlanFormat,
)
from kernelpro.code_search import trees
from kernelpro.llm.cap import SpendingCap
from kernelpro.llm.question import (
    AnswerFormat,
    AnswerOutstanding,
    CapReached,
    Malformed,
    Model,
    ModelError,
    NotRecorded,
    Question,
    Reply,
    ServerUnreachable,
    Tool,
    UnusableModel,
)
from kernelpro.records import BadInput, Limits

T = TypeVar("T")

_GPU_DIRECTIONS = (
    (
        "cuda",
        "Write it in CUDA. Minimize passes over memory and use the hardware unit made for this work.",
    ),
    ("triton", "Write it in Triton. Use as few kernels as possible, with tiles that the compiler maps well."),
    (
        "cuda",
        "Write it in CUDA as one persistent kernel if possible: no launch gaps, no intermediates in memory.",
    ),
    (
        "cute",
        "Write it with CuTe and the CUTLASS headers: matrix work on wgmma, fed by TMA, the rest fused.",
    ),
    (
        "triton",
        "Write it in Triton with an algorithm or decomposition other than the obvious one "
        "(online, split, recomputed, reordered).",
    ),
)
_DIRECTION_WITHOUT_MATMUL = (
    "cuda",
    "Write it in CUDA with a decomposition or order of work other than the obvious one.",
)
"""Replaces the CuTe direction for tasks without matrix work."""
_CPU_DIRECTIONS = (
    ("cpp", "Write it in C++: one pass, vectorized, all threads."),
    (
        "cpp",
        "Write it in C++ with another blocking: tiles that fit the L1 cache, intermediates in registers.",
    ),
    (
        "cpp",
        "Write it in C++ with an algorithm or order of work other than the obvious one "
        "(online, split, recomputed, reordered).",
    ),
)
"""Language and instruction of each new design, used in turn: independent starts beat variations of one."""
_EDIT_INSTRUCTIONS = (
    "The file is shown with marked spans (`<<<<<<< NAME` to `>>>>>>> NAME`; the marks are not part of it). "
    "Send new text for every span and nothing else. Everything outside the spans stays unchanged."
)
_REWRITE_INSTRUCTIONS = "The plan asks for a rewrite: send the complete file."
_NOTHING_FOUND = ("error:", "nothing matches", "no line matches", "(stopped:")
"""First words of code-search answers that contain no source."""
_OLD_FILE_TOKENS = 3_000
"""Tokens shown of a file that is to be rewritten: enough to borrow from."""


class _AnswerFormat(Generic[T]):
    """Adapts a format of answers.py to the LLM layer: an answer that does not fit raises Malformed."""

    def __init__(self, form: Any):
        self._form = form

    @property
    def description(self) -> str:
        return str(self._form.description)

    def parse(self, text: str) -> T:
        try:
            value: T = self._form.parse(text)
        except BadInput as error:
            raise Malformed(str(error)) from None
        return value


@dataclass(frozen=True)
class RoleModels:
    """The model for each role."""

    plan: Model
    code: Model
    debug: Model


class Team(Author):
    """Plan, code and debug agents behind the interface of an author."""

    combines = True

    def __init__(
        self,
        models: RoleModels,
        tools: tuple[Tool, ...] = (),
        name: str = "team",
        cap: SpendingCap | None = None,
    ):
        """`tools`: the code search; models get it only if a source tree is installed. `cap`: the models'
        spending limit."""
        self._cap = cap
        self._models, self._tools, self.name = (
            models,
            _with_tree_names(tools, list(trees.known_trees()) if tools else []),
            name,
        )

    async def write(self, assignment: Assignment) -> Draft:
        """Ask the models for one candidate."""
        if assignment.action == "seed" or assignment.parent is None:
            return await self._design(assignment)
        if assignment.action == "debug":
            return await self._debug(assignment)
        return await self._improve(assignment)

    def set_limits(self, limits: Limits) -> None:
        """Apply raised limits to later questions."""
        if self._cap:
            self._cap.set_limits(limits.dollars, limits.tokens)

    # --- roles -------------------------------------------------------------------------------------------

    async def _design(self, a: Assignment) -> Draft:
        directions = _directions(a)
        language, direction = directions[a.turn % len(directions)]
        others = sections.other_directions(
            (text for _, text in directions if text != direction), a.turn // len(directions)
        )
        parts = {
            "task": sections.reference_section(a),
            "ground": sections.device_and_baselines(a),
            "direction": f"{direction}\n{others}".strip(),
            "hints": sections.hints_section(a.hints),
            "leaders": sections.candidate_list("Existing kernels: design another one", a.leaders, a.times),
            "memory": sections.section("What this run has learned", a.memory),
            "knowledge": sections.section("What earlier runs have learned", a.knowledge),
        }
        reply: Reply[DesignAnswer] = await self._ask(
            a, "design", self._models.code, DesignFormat(), parts, language
        )
        answer = reply.value
        return Draft(
            answer.source,
            answer.plan,
            answer.hypothesis,
            self._models.code.name,
            reply.cost,
            facts=_facts(reply),
        )

    async def _improve(self, a: Assignment) -> Draft:
        assert a.parent
        language = a.parent.verdict.language if a.parent.verdict else ""
        faster = sections.faster_than(a.parent, a.leaders, a.times)
        parts = {
            "task": sections.reference_section(a),
            "ground": sections.device_and_baselines(a),
            "step": str(a.parent.number),
            "time": sections.describe_verdict(a.parent.verdict, a.times),
            "parent_plan": a.parent.plan or "none",
            "source": a.parent.source.rstrip(),
            "hints": sections.hints_section(a.hints),
            "guidance": a.guidance or "The kernel was not profiled.",
            "evidence": a.evidence,
            "beside": sections.concurrent_steps(a.concurrent),
            "leaders": sections.candidate_list("Other working kernels of this run", a.leaders, a.times),
            "memory": sections.section("What this run has learned", a.memory),
            "knowledge": sections.section("What earlier runs have learned", a.knowledge),
            "second": sections.donor_section(a.donor, a.times) if a.donor else "",
            "faster": ""
            if a.donor
            else sections.source_of_first("A faster kernel to borrow from", faster, a.times),
        }
        planned: Reply[PlanAnswer] = await self._ask(
            a,
            "plan",
            self._models.plan,
            PlanFormat(a.parent.source, language, a.languages or LANGUAGES[a.target]),
            parts,
            language,
        )
        plan = planned.value
        if plan.source:
            work, shown = (
                _EDIT_INSTRUCTIONS,
                sections.file_section("The file", plan.source.marked_text(sections.MAX_FILE_CHARACTERS)),
            )
        else:
            old = sections.truncate(a.parent.source, _OLD_FILE_TOKENS) if plan.language == language else ""
            work, shown = _REWRITE_INSTRUCTIONS, sections.file_section("The file before the rewrite", old)
        parts = {
            "task": sections.reference_section(a),
            "ground": sections.device_and_baselines(a),
            "plan": plan.instructions,
            "source": shown,
            "children": sections.source_of_first(
                "An earlier change of this file", _working(a.children), a.times
            ),
            "cousins": sections.source_of_first(
                "A working change of a related file", _working(a.cousins), a.times
            ),
            "memory": sections.section("What this run has learned", a.memory),
        }
        form = CodeFormat(plan.source)
        try:
            coded: Reply[str] = await self._ask(
                a, "code", self._models.code, form, parts, plan.language, work=work
            )
        except NoProposal as reason:
            reason.cost += planned.cost
            raise
        return Draft(
            coded.value,
            plan.transformation,
            plan.hypothesis,
            self._models.code.name,
            planned.cost + coded.cost,
            plan.finding,
            expected_speedup=plan.expected_speedup,
            facts=(*_facts(planned), *_facts(coded)),
        )

    async def _debug(self, a: Assignment) -> Draft:
        assert a.parent
        verdict = a.parent.verdict
        language = verdict.language if verdict else ""
        parts = {
            "task": sections.reference_section(a),
            "ground": sections.device_and_baselines(a),
            "plan": a.parent.plan or "none",
            "step": str(a.parent.number),
            "source": a.parent.source.rstrip(),
            "hints": sections.hints_section(a.hints),
            "failure": f"{verdict.status}: {verdict.reason}" if verdict else "not judged",
            "siblings": sections.source_of_first(
                "A working kernel with the same parent", _working(a.siblings), a.times
            ),
            "memory": sections.section("What this run has learned", a.memory),
        }
        reply: Reply[DebugAnswer] = await self._ask(
            a, "debug", self._models.debug, DebugFormat(a.parent.source), parts, language
        )
        answer = reply.value
        plan = f"fix: {answer.diagnosis}"
        return Draft(answer.source, plan, "", self._models.debug.name, reply.cost, facts=_facts(reply))

    async def _ask(
        self,
        a: Assignment,
        role: str,
        model: Model,
        form: Any,
        parts: dict[str, str],
        language: str,
        **words: str,
    ) -> Reply[Any]:
        contract = templates.prompt(
            "contract", precision=a.precision, precision_words=sections.describe_precision(a.precision)
        )
        values = {"contract": contract, "guide": _guide(language, a, pieces=role != "plan")} | words
        system = templates.prompt(f"{role}_system", **values)
        text = templates.prompt(role, **sections.fit_window(parts))
        checked: AnswerFormat[Any] = _AnswerFormat(form)
        try:
            return await model.ask(
                Question(f"step-{a.step}/{role}", role, system, text, checked, self._tools)
            )
        except AnswerOutstanding as waiting:
            raise AnswerPending(str(waiting)) from None
        except CapReached as cap:
            raise BudgetExhausted(str(cap)) from None
        except UnusableModel as error:
            raise BadInput(str(error)) from None
        except NotRecorded as error:
            raise NoMoreProposals(str(error), error.cost) from None
        except ServerUnreachable as error:
            raise ModelUnreachable(str(error), error.cost) from None
        except ModelError as error:
            raise NoUsableAnswer(str(error), error.cost) from None


def _with_tree_names(tools: tuple[Tool, ...], names: list[str]) -> tuple[Tool, ...]:
    """Return the tools with the names of the installed trees in their descriptions; none without a tree."""
    if not names:
        return ()
    hint = "" if "cutlass" in names else " Always name one: the default, cutlass, is not installed."
    trees_line = f" Trees: {', '.join(names)}.{hint}"
    return tuple(replace(tool, description=tool.description + trees_line) for tool in tools)


def _directions(a: Assignment) -> list[tuple[str, str]]:
    """Return the language and the instruction of each new design, in order."""
    directions = list(_CPU_DIRECTIONS if a.target == "cpu" else _GPU_DIRECTIONS)
    if a.languages:
        return [direction for direction in directions if direction[0] in a.languages]
    return [
        direction if direction[0] != "cute" or sections.has_matrix_work(a) else _DIRECTION_WITHOUT_MATMUL
        for direction in directions
    ]


def _guide(language: str, a: Assignment, pieces: bool) -> str:
    """Render the guide to the language, or to all allowed languages if none is chosen yet.

    `pieces`: include the building blocks for Hopper (prompts/hopper.md), which a planner does not need.
    """
    facts = a.hardware.facts
    values = {
        "arch": _architecture(facts.get("capability", "9.0")),
        "triton": facts.get("triton", "3"),
        "threads": facts.get("threads", "all"),
        "vector": facts.get("vector bits", "native"),
    }
    languages = [language] if language in templates.languages() else list(a.languages or LANGUAGES[a.target])
    guides = [templates.guide(name, **values) for name in languages]
    if pieces and "cuda" in languages and values["arch"] == "90a" and sections.has_matrix_work(a):
        guides.append(templates.prompt("hopper"))
    return "\n\n".join(guides)


def _architecture(capability: str) -> str:
    """Return the architecture as nvcc names it, such as `90a`. From Hopper on, the suffix `a` enables
    architecture-specific features."""
    return capability.replace(".", "") + ("a" if float(capability) >= 9 else "")


def _working(relatives: Any) -> list[Any]:
    return [candidate for candidate in relatives if candidate.verdict and candidate.verdict.times]


def _facts(reply: Reply[Any]) -> tuple[str, ...]:
    """Return the first line of each successful code search, so that later steps need not repeat it."""
    facts = []
    for message in reply.messages:
        if message.get("role") == "tool" and not message.get("failed"):
            lines = [
                line
                for line in str(message.get("text", "")).strip().splitlines()
                if not line.startswith("note:")
            ]
            if lines and not lines[0].startswith(_NOTHING_FOUND):
                facts.append(f"{message.get('name', 'search')}: {lines[0][:200]}")
    return tuple(facts)
