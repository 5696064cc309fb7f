"""The team as an author.

    seed      one question: a complete, bold design; the direction (language, decomposition) varies from seed to seed
    improve   plan: one transformation with a hypothesis and anchors; then code: the anchors' new text, or a rewrite
    combine   the same, with a second kernel in the plan's window to borrow from
    debug     one question: the cause, and the smallest change that removes it

Each role may have a model of its own. Answers arrive checked against their form; the hypothesis travels with the draft, and is held
against the measurement when the step is settled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from kernelpro.authors.author import (
    LANGUAGES,
    Assignment,
    Draft,
    Exhausted,
    NoIdea,
    OutOfIdeas,
    Unanswered,
    Unheard,
    Waiting,
)
from kernelpro.authors.team import templates, windows
from kernelpro.authors.team.answers import (
    CodeForm,
    DebugForm,
    Designed,
    DesignForm,
    Mended,
    PlanForm,
    Planned,
)
from kernelpro.library import trees
from kernelpro.llm.question import (
    CapReached,
    Form,
    Malformed,
    Model,
    ModelError,
    NotHeard,
    NotRecorded,
    Outstanding,
    Question,
    Reply,
    Tool,
    Unusable,
)
from kernelpro.records import BadInput

T = TypeVar("T")

_GPU_DIRECTIONS = (
    (
        "cuda",
        "Write it in CUDA. Aim at the fewest passes over memory and the hardware's best unit for the work.",
    ),
    ("triton", "Write it in Triton. Aim at the fewest kernels, with tiles that the compiler maps well."),
    (
        "cuda",
        "Write it in CUDA as one persistent kernel where that is possible: no launch gaps, no round trips of intermediates.",
    ),
    (
        "cute",
        "Write it with CuTe and the CUTLASS headers: the matrix work on wgmma, fed by TMA, all else fused around it.",
    ),
    (
        "triton",
        "Write it in Triton with another algorithm or decomposition than the obvious one (online, split, recomputed, reordered).",
    ),
)
_WITHOUT_PRODUCTS = (
    "cuda",
    "Write it in CUDA with another decomposition or order of the work than the obvious one.",
)
"""Instead of CuTe where nothing is multiplied."""
_CPU_DIRECTIONS = (
    ("cpp", "Write it in C++: one pass, vectors, all threads."),
    (
        "cpp",
        "Write it in C++ with another blocking: tiles that stay in the first-level cache, intermediates in registers.",
    ),
    (
        "cpp",
        "Write it in C++ with another algorithm or order of the work than the obvious one (online, split, recomputed, reordered).",
    ),
)
"""Languages and decompositions for fresh designs, in turn: independent starts beat variations of one."""
_FILL = (
    "The file is given with marked spans (`<<<<<<< NAME` to `>>>>>>> NAME`; the marks are not part of the file). Send new text for "
    "every span and nothing else: what lies outside stays as it is."
)
_ANEW = "The plan asks for a file that is written anew: send the whole of it."
_NOTHING_FOUND = ("error:", "nothing matches", "no line matches", "(stopped:")
"""How the library's answers begin that say nothing of any source."""
_OLD_FILE = 3_000
"""Tokens of a file that is to be written anew: enough to borrow from."""


class _Checked(Generic[T]):
    """A form of the team's under the LLM layer's rules: what does not fit is Malformed."""

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
class Models:
    """Who answers for each role."""

    plan: Model
    code: Model
    debug: Model


class Team:
    combines = True

    def __init__(self, models: Models, tools: tuple[Tool, ...] = (), name: str = "team"):
        """`tools`: code search, offered where there is a tree to search in."""
        self._models, self._tools, self.name = (
            models,
            _over(tools, list(trees.known()) if tools else []),
            name,
        )

    async def write(self, assignment: Assignment) -> Draft:
        if assignment.action == "seed" or assignment.parent is None:
            return await self._design(assignment)
        if assignment.action == "debug":
            return await self._debug(assignment)
        return await self._improve(assignment)

    # --- roles -------------------------------------------------------------------------------------------

    async def _design(self, a: Assignment) -> Draft:
        turns = _directions(a)
        language, direction = turns[a.turn % len(turns)]
        others = windows.other_directions(
            (text for _, text in turns if text != direction), a.turn // len(turns)
        )
        sections = {
            "task": windows.task(a),
            "ground": windows.ground(a),
            "direction": f"{direction}\n{others}".strip(),
            "leaders": windows.summaries("What there is already: do something else", a.leaders, a.baselines),
            "memory": windows.titled("What this run has learnt", a.memory),
            "knowledge": windows.titled("What earlier runs have learnt", a.knowledge),
        }
        reply: Reply[Designed] = await self._ask(
            a, "design", self._models.code, DesignForm(), sections, language
        )
        made = reply.value
        return Draft(
            made.source, made.plan, made.hypothesis, self._models.code.name, reply.cost, facts=_facts(reply)
        )

    async def _improve(self, a: Assignment) -> Draft:
        assert a.parent
        language = a.parent.verdict.language if a.parent.verdict else ""
        faster = windows.faster(a.parent, a.leaders)
        sections = {
            "task": windows.task(a),
            "ground": windows.ground(a),
            "step": str(a.parent.number),
            "time": windows.outcome(a.parent.verdict, a.baselines),
            "parent_plan": a.parent.plan or "none",
            "source": a.parent.source.rstrip(),
            "guidance": a.guidance or "It was not profiled.",
            "evidence": a.evidence,
            "beside": windows.beside(a.beside),
            "leaders": windows.summaries("Other kernels of this run that work", a.leaders, a.baselines),
            "memory": windows.titled("What this run has learnt", a.memory),
            "knowledge": windows.titled("What earlier runs have learnt", a.knowledge),
            "second": windows.second(a.second, a.baselines) if a.second else "",
            "faster": "" if a.second else windows.first("A faster one, to borrow from", faster, a.baselines),
        }
        planned: Reply[Planned] = await self._ask(
            a,
            "plan",
            self._models.plan,
            PlanForm(a.parent.source, language, a.languages or LANGUAGES[a.target]),
            sections,
            language,
        )
        plan = planned.value
        if plan.anchored:
            work, shown = _FILL, windows.file("The file", plan.anchored.shown(windows.FILE))
        else:
            old = windows.cut(a.parent.source, _OLD_FILE) if plan.language == language else ""
            work, shown = _ANEW, windows.file("The file as it was", old)
        sections = {
            "task": windows.task(a),
            "ground": windows.ground(a),
            "plan": plan.instructions,
            "source": shown,
            "children": windows.first("What others made of this file", _working(a.children), a.baselines),
            "cousins": windows.first("Working patches near by", _working(a.cousins), a.baselines),
            "memory": windows.titled("What this run has learnt", a.memory),
        }
        form = CodeForm(plan.anchored)
        try:
            coded: Reply[str] = await self._ask(
                a, "code", self._models.code, form, sections, plan.language, work=work
            )
        except NoIdea as reason:
            reason.cost += planned.cost
            raise
        return Draft(
            coded.value,
            plan.transformation,
            plan.hypothesis,
            self._models.code.name,
            planned.cost + coded.cost,
            plan.finding,
            promised=plan.promised,
            facts=(*_facts(planned), *_facts(coded)),
        )

    async def _debug(self, a: Assignment) -> Draft:
        assert a.parent
        verdict = a.parent.verdict
        language = verdict.language if verdict else ""
        sections = {
            "task": windows.task(a),
            "ground": windows.ground(a),
            "plan": a.parent.plan or "none",
            "step": str(a.parent.number),
            "source": a.parent.source.rstrip(),
            "failure": f"{verdict.status}: {verdict.reason}" if verdict else "it was not judged",
            "siblings": windows.first("Siblings that work", _working(a.siblings), a.baselines),
            "memory": windows.titled("What this run has learnt", a.memory),
        }
        reply: Reply[Mended] = await self._ask(
            a, "debug", self._models.debug, DebugForm(a.parent.source), sections, language
        )
        made = reply.value
        plan = f"fix: {made.diagnosis}"
        return Draft(made.source, plan, "", self._models.debug.name, reply.cost, facts=_facts(reply))

    async def _ask(
        self,
        a: Assignment,
        role: str,
        model: Model,
        form: Any,
        sections: dict[str, str],
        language: str,
        **words: str,
    ) -> Reply[Any]:
        contract = templates.prompt(
            "contract", precision=a.precision, precision_words=windows.precision_words(a.precision)
        )
        values = {"contract": contract, "guide": _guide(language, a, pieces=role != "plan")} | words
        system = templates.prompt(f"{role}_system", **values)
        text = templates.prompt(role, **windows.fit(sections))
        checked: Form[Any] = _Checked(form)
        try:
            return await model.ask(
                Question(f"step-{a.step}/{role}", role, system, text, checked, self._tools)
            )
        except Outstanding as waiting:
            raise Waiting(str(waiting)) from None
        except CapReached as cap:
            raise Exhausted(str(cap)) from None
        except Unusable as error:
            raise BadInput(str(error)) from None
        except NotRecorded as error:
            raise OutOfIdeas(str(error), error.cost) from None
        except NotHeard as error:
            raise Unheard(str(error), error.cost) from None
        except ModelError as error:
            raise Unanswered(str(error), error.cost) from None


def _over(tools: tuple[Tool, ...], known: list[str]) -> tuple[Tool, ...]:
    """The tools with the names of the trees that there are; none where there is no tree."""
    if not known:
        return ()
    told = f" Trees: {', '.join(known)}." + (
        "" if "cutlass" in known else " Always name one: the default, cutlass, is not here."
    )
    return tuple(replace(tool, description=tool.description + told) for tool in tools)


def _directions(a: Assignment) -> list[tuple[str, str]]:
    turns = list(_CPU_DIRECTIONS if a.target == "cpu" else _GPU_DIRECTIONS)
    if a.languages:
        return [turn for turn in turns if turn[0] in a.languages]
    return [turn if turn[0] != "cute" or windows.multiplies(a) else _WITHOUT_PRODUCTS for turn in turns]


def _guide(language: str, a: Assignment, pieces: bool) -> str:
    """The language's guide, filled with what this machine has; all guides of the target where the language is open.

    `pieces`: with code to build on, which a planner does not need.
    """
    facts = dict(fact.partition(": ")[::2] for fact in a.hardware.get("facts", ()))
    values = {
        "arch": _architecture(facts.get("capability", "9.0")),
        "triton": facts.get("triton", "3"),
        "threads": facts.get("threads", "all"),
        "vector": facts.get("vector bits", "native"),
    }
    known = templates.languages()
    wanted = [language] if language in known else list(a.languages or LANGUAGES[a.target])
    guides = [templates.guide(name, **values) for name in wanted]
    if pieces and "cuda" in wanted and values["arch"] == "90a" and windows.multiplies(a):
        guides.append(templates.prompt("hopper"))
    return "\n\n".join(guides)


def _architecture(capability: str) -> str:
    """As nvcc is asked for it: from Hopper on with all that this very architecture has."""
    return capability.replace(".", "") + ("a" if float(capability) >= 9 else "")


def _working(relatives: Any) -> list[Any]:
    return [known for known in relatives if known.verdict and known.verdict.times]


def _facts(reply: Reply[Any]) -> tuple[str, ...]:
    """What was found on the way, so that it need not be looked up again; not what was looked for in vain."""
    found = []
    for message in reply.messages:
        if message.get("role") == "tool" and not message.get("failed"):
            lines = [
                line
                for line in str(message.get("text", "")).strip().splitlines()
                if not line.startswith("note:")
            ]
            if lines and not lines[0].startswith(_NOTHING_FOUND):
                found.append(f"{message.get('name', 'search')}: {lines[0][:200]}")
    return tuple(found)
