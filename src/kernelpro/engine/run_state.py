"""The state of a run in memory: the tree, the steps, the budget, and the user's requests.

No method here waits, so each change is atomic for the engine (loop.py). It changes the state and the store
together, so that a killed run is restored to the same state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace

from kernelpro.authors.author import Author, source_fingerprint
from kernelpro.engine import learning, objective
from kernelpro.engine.author_state import AuthorState
from kernelpro.engine.budget import Budget
from kernelpro.engine.steering import Steering, raised
from kernelpro.engine.store import RunStore
from kernelpro.memory.run_memory import RunMemory
from kernelpro.records import BadInput, ComparableTimes, RunConfig, Step, StepDetails, TaskFacts
from kernelpro.records.events import (
    BranchClosed,
    BudgetAdded,
    KernelPasted,
    NodePinned,
    Note,
    ProfileRequested,
    RunEvent,
    SteeringEvent,
    StepChosen,
)
from kernelpro.search.choice import expand
from kernelpro.search.tree import Tree

OnEvent = Callable[[RunEvent], None]


class RunState(ABC):
    """Base of the engine."""

    facts: TaskFacts | None = None
    """Measurements of the task; None until it is measured."""
    tree: Tree
    """The search tree. Set when the task is measured."""
    times: ComparableTimes
    """The time scale on which steps are compared. Set when the task is measured."""
    _author_state: AuthorState

    def __init__(self, store: RunStore, author: Author, on_event: OnEvent):
        self._store, self._author, self._on_event = store, author, on_event
        self._memory = RunMemory()
        self._config: RunConfig = store.config()
        self.budget = Budget(self._config.limits, store.wall_seconds, sum(store.device_seconds.values()))
        self.steps: dict[int, Step] = {}
        self._first_with: dict[str, int] = {}
        """The first step with each source fingerprint."""
        self._steering = Steering(store)
        self._author_budget_spent = ""
        """Why the author cannot pay for another step; empty if it can."""

    @abstractmethod
    def _start(self, step: Step) -> None:
        """Work on an open step."""

    @abstractmethod
    def _start_profile(self, number: int) -> None:
        """Profile a step."""

    @abstractmethod
    def _is_open(self, step: Step) -> bool:
        """Whether a step is being worked on."""

    def _emit(self, event: RunEvent) -> None:
        """Store an event and pass it to the callback."""
        self._store.add_event(event)
        self._on_event(event)

    # --- steps -----------------------------------------------------------------------------------------

    def _save(self, step: Step) -> Step:
        self._store.save_step(step)
        self._index(step)
        return step

    def _index(self, step: Step) -> None:
        self.steps[step.number] = step
        if fingerprint := step.details.fingerprint:
            self._first_with[fingerprint] = min(step.number, self._first_with.get(fingerprint, step.number))

    def _count(self, step: Step) -> None:
        """Count a new step. Only the author's candidates count against the budget, not pasted ones."""
        if not step.pasted:
            self.budget.begin()
            return
        self._author_state.pasted_designs += step.action == "seed"
        if self._author.improves_own_only:
            self._author_state.exhausted_nodes.add(step.number)

    def _apply(self, step: Step) -> None:
        """Add a settled step to the tree, the budget, the author's state and the memory."""
        cost_ms = objective.cost_ms(self._config, self.times, step)
        self.tree.settle(step.number, cost_ms, void=step.verdict is None)
        self.budget.settle(step)
        self._author_state.record(step)
        if step.number > self._author_state.seeds:  # the author learns nothing from the compiler's code
            for event in learning.events(step, self.steps.get(step.parent), self.times):
                self._memory.add(event)

    def _best_speedup(self, step: Step) -> float:
        """The best candidate's speed-up over the fastest baseline; 0 if there is none. Only steps count that
        were settled when this step was chosen, so that a resumed run gets the same value."""
        settled = range(1, step.number - self._config.concurrency + 1)
        times = [self.times.ms(self.steps.get(number)) for number in settled]
        return max((self.tree.baseline_ms / ms for ms in times if ms), default=0.0)

    def _judged_code(self, step: Step) -> dict[str, int]:
        """Earlier steps by the hash of their machine code. Only steps count that were settled when this step
        was chosen, so that a resumed run gets the same value."""
        by_code: dict[str, int] = {}
        for number in range(1, step.number - self._config.concurrency + 1):
            verdict = self.steps[number].verdict
            if verdict and (code := verdict.measurement.machine_code):
                by_code.setdefault(code, number)
        return by_code

    # --- choosing -------------------------------------------------------------------------------------

    def _stop_reason(self) -> str:
        assert self.facts
        if len(self.tree) <= len(self.facts.race) and not self._steering.finish:
            return ""  # every design that raced becomes a step
        best = self.tree.best()
        ms = best.ms if best.id and self._config.objective == "speed" else None
        return (
            ("the user ended the search" if self._steering.finish else "")
            or self._author_state.stop_reason(self.tree, self._steering.forbidden(self.tree))
            or self.budget.exhausted()
            or self.budget.floor_reached(ms, self.facts.floor_ms)
        )

    # --- requests of the user --------------------------------------------------------------------------

    def _apply_requests(self) -> bool:
        """Apply the user's pending requests. Returns whether a pasted kernel became the next step."""
        self._steering.poll()
        number = len(self.tree)
        if self._steering.pinned and self._author_state.is_exhausted(
            self.tree, self._steering.forbidden(self.tree)
        ):
            pinned = self._steering.pinned
            self._emit(Note(f"the author has no idea left below step {pinned}: its pin is released"))
            self._store.add_event(NodePinned(0))
            self._steering.poll()
        for id, request in list(self._steering.pending.items()):
            if isinstance(request, KernelPasted):
                if self._start_pasted(id, request):
                    return True
                continue
            refused = self._carry_out(request, number)
            with self._store.transaction():
                if isinstance(request, BudgetAdded):
                    self._store.save_config(self._config)
                self._steering.apply(id, number, refused)
            self._author_state.forget_streaks()
        return False

    def _carry_out(self, request: SteeringEvent, number: int) -> str:
        """Make the changes of a request outside of `Steering`. Returns why it is refused, else an empty
        text."""
        match request:
            case BudgetAdded():
                self._config = replace(self._config, limits=raised(self._config.limits, request))
                self.budget.limits, self.tree.budget = self._config.limits, self._config.limits.candidates
                self._author.set_limits(self._config.limits)
                self._author_budget_spent = ""
                for step in self.steps.values():
                    if step.stage == "chosen" and not self._is_open(step):
                        self._start(step)  # the author's budget had not sufficed for it
            case NodePinned(step) | BranchClosed(step) if step >= number:
                return f"there is no step {step}"
            case NodePinned(step) if step and self.tree.nodes[step].state == "pending":
                return f"step {step} is not finished"
            case ProfileRequested(step):
                if step not in self.steps or self.steps[step].ms is None:
                    return f"step {step} did not pass"
                self._start_profile(step)
        return ""

    def _start_pasted(self, id: int, request: KernelPasted) -> bool:
        """Make a pasted kernel the next step, unless its parent is still open. Returns whether it is."""
        number = len(self.tree)
        try:
            fingerprint = source_fingerprint(self._store.source(request.source))
        except BadInput as error:
            self._steering.apply(id, number, str(error))
            return False
        if request.parent >= number:
            self._steering.apply(id, number, f"there is no step {request.parent}")
            return False
        parent = self.tree.nodes[request.parent]
        if parent.state == "pending":
            return False
        step = Step(
            number,
            parent.id,
            expand(parent).action,
            "drafted",
            request.source,
            request.source,
            request.note or "a kernel of the user",
            author="user",
            details=StepDetails(fingerprint),
            pasted=True,
        )
        self.tree.add(step.parent, step.action)
        with self._store.transaction():
            self._save(step)
            self._steering.apply(id, number)
        self._count(step)
        self._author_state.forget_streaks()
        self._emit(StepChosen(number, step.parent, step.action))
        self._start(step)
        return True
