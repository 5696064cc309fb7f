"""Steering: the user's requests to a run, and what they allow the search to choose.

Requests are events in the store (records/events.py). Any process may add them; only the engine applies them:

1. Between two steps the engine reads the new requests and applies them in order. For each it stores a
   `SteeringApplied` with the number of the step that is chosen next.
2. A resumed run replays all applied requests, and applies the pending ones before its first choice. So a
   choice depends on the tree, the seed, the step and the requests applied before it, never on timing.
3. A request to stop is meant for the process that works on the run when the request arrives. It takes effect
   at once, not between steps.

A pinned node and closed branches restrict the tree that the policy sees. The first step after a pin starts at
the pinned node itself. Then the policy searches the node's branch as if the node were the reference. The
policy does not see closed branches.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kernelpro.engine.store import RunStore
from kernelpro.records import Action, Limits
from kernelpro.records.events import (
    AnswerGiven,
    BranchClosed,
    BranchOpened,
    BudgetAdded,
    HintGiven,
    HintWithdrawn,
    KernelPasted,
    NodePinned,
    ProfileRequested,
    ResumeRequested,
    SteeringApplied,
    SteeringEvent,
    StopRequested,
)
from kernelpro.search.choice import Choice, Policy, expand
from kernelpro.search.tree import Tree


@dataclass(frozen=True)
class Hint:
    """A hint, and the steps that see it."""

    id: int
    """Id of the event that gave the hint."""
    text: str
    first_step: int
    last_step: int | None = None
    """None: all later steps see it."""


@dataclass
class Steering:
    """The requests of a run: the state that the applied ones led to, and the pending ones."""

    store: RunStore
    pending: dict[int, SteeringEvent] = field(default_factory=dict)
    """Pending requests by the id of their event, in order."""
    pinned: int = 0
    """Search only in the branch of this step; 0: in the whole tree."""
    closed: set[int] = field(default_factory=set)
    """The first steps of closed branches."""
    hints: list[Hint] = field(default_factory=list)
    profiles: list[int] = field(default_factory=list)
    """Steps whose profile was requested."""
    finish: bool = False
    """Whether the user asked to end the search."""
    applied_at: set[int] = field(default_factory=set)
    """The steps that were chosen right after a request took effect."""
    _pinned_at: int = 0
    """The step that was chosen right after the last pin."""
    _last: int = 0
    """Id of the last event that was read."""

    def poll(self) -> None:
        """Read new events from the store, and replay the requests that were applied."""
        last = self.store.last_event  # later polls skip all events up to here
        for id, event in self.store.steering_after(self._last):
            last = max(last, id)
            if isinstance(event, SteeringApplied):
                request = self.pending.pop(event.request, None)
                if request and not event.refused:
                    self._replay(event.request, request, event.step)
            elif not isinstance(event, AnswerGiven):  # the run gets answers through the inbox
                self.pending[id] = event
        self._last = last

    @property
    def stops_now(self) -> bool:
        """Whether this process should stop at once."""
        stop = False
        for id, event in self.pending.items():
            if isinstance(event, ResumeRequested):
                stop = False
            elif isinstance(event, StopRequested) and not event.finish:
                stop = id > self.store.locked_after
        return stop

    def apply_stops(self, step: int) -> None:
        """Mark all requests to stop as applied: the process stops now."""
        for id, event in list(self.pending.items()):
            if isinstance(event, StopRequested) and not event.finish:
                self.apply(id, step)

    def apply(self, id: int, step: int, refused: str = "") -> None:
        """Apply a pending request before the step with this number is chosen, or refuse it."""
        request = self.pending.pop(id)
        if not refused:
            self._replay(id, request, step)
        self.store.add_event(SteeringApplied(id, step, refused))

    def _replay(self, id: int, request: SteeringEvent, step: int) -> None:
        self.applied_at.add(step)
        match request:
            case NodePinned(pinned):
                self.pinned, self._pinned_at = pinned, step
            case BranchClosed(branch):
                self.closed.add(branch)
            case BranchOpened(branch):
                self.closed.discard(branch)
            case HintGiven(text):
                self.hints.append(Hint(id, text, step))
            case HintWithdrawn(hint):
                self.hints = [
                    replace(item, last_step=step - 1) if item.id == hint else item for item in self.hints
                ]
            case ProfileRequested(number):
                self.profiles.append(number)
            case StopRequested(finish=True):
                self.finish = True
            case ResumeRequested() | BudgetAdded() | KernelPasted():
                self.finish = False

    def hints_for(self, step: int) -> tuple[str, ...]:
        """The hints that the author of this step sees."""
        return tuple(
            hint.text
            for hint in self.hints
            if hint.first_step <= step and (hint.last_step is None or step <= hint.last_step)
        )

    # --- what may be chosen ----------------------------------------------------------------------------

    def forbidden(self, tree: Tree) -> set[int]:
        """Nodes that may not be expanded: those in closed branches or outside of the pinned branch."""
        if not self.pinned and not self.closed:
            return set()
        allowed = set(self._allowed(tree))
        return {node.id for node in tree.nodes} - allowed

    def _allowed(self, tree: Tree) -> Iterator[int]:
        """The nodes of the tree that the policy sees, parents before children."""
        seen = {self.pinned}
        yield self.pinned
        for node in tree.nodes[self.pinned + 1 :]:
            if node.parent in seen and node.id not in self.closed:
                seen.add(node.id)
                yield node.id

    def choose(self, policy: Policy, tree: Tree, rng: random.Random) -> Choice:
        """The policy's choice in the part of the tree that the user allows."""
        if not self.pinned and not self.closed:
            return policy.choose(tree, rng)
        pinned = tree.nodes[self.pinned]
        if pinned.id and not any(child >= self._pinned_at for child in pinned.children):
            return expand(pinned)
        ids = list(self._allowed(tree))
        choice = policy.choose(_restricted(tree, ids), rng)
        if choice.parent == 0:
            return expand(pinned)
        parent = tree.nodes[ids[choice.parent]]
        donor = tree.nodes[ids[choice.donor]] if choice.donor is not None else None
        if donor and donor.seed == parent.seed:  # branches of the pinned node have the same seed
            return expand(parent)
        return Choice(parent.id, choice.action, donor.id if donor else None)


def _restricted(tree: Tree, ids: list[int]) -> Tree:
    """A tree of only these nodes, numbered by their position in the list. The first one is its root."""
    root = tree.nodes[ids[0]]
    numbers = {id: number for number, id in enumerate(ids)}
    seeds = sum(id <= tree.compiler_seeds for id in ids) - 1 if not root.id else 0
    budget = tree.budget if not root.id else 1  # one child of a pinned node, then the branch grows deeper
    view = Tree(root.ms or tree.baseline_ms, tree.floor_ms, max(0, seeds), budget)
    for id in ids[1:]:
        node = tree.nodes[id]
        assert node.parent is not None
        parent, donor = numbers[node.parent], numbers.get(node.donor or -1)
        action: Action = "seed" if not parent else "debug" if node.action == "debug" else "improve"
        apart = donor and view.nodes[donor].seed != view.nodes[parent].seed
        if node.action == "combine" and parent and apart:
            view.add(parent, "combine", donor)
        else:
            view.add(parent, action)
        if node.state != "pending":
            view.settle(numbers[id], node.ms, void=node.state == "void")
    return view


def raised(limits: Limits, added: BudgetAdded) -> Limits:
    """The limits with more budget. A limit of 0 means no limit, and stays."""
    amounts = {
        name: getattr(limits, name) + amount
        for name, amount in added.to_json().items()
        if getattr(limits, name)
    }
    return replace(limits, **amounts)


def has_requests(store: RunStore) -> bool:
    """Whether there are requests that no process has applied yet."""
    steering = Steering(store)
    steering.poll()
    return bool(steering.pending)


def apply_budget(store: RunStore) -> bool:
    """Apply pending requests for more budget to the configuration of a run that this process has locked.
    Returns whether the user requested other work: a pasted kernel or a profile."""
    steering = Steering(store)
    steering.poll()
    next_step = len(store.steps()) + 1
    for id, event in list(steering.pending.items()):
        if isinstance(event, BudgetAdded):
            with store.transaction():
                config = store.config()
                store.save_config(replace(config, limits=raised(config.limits, event)))
                steering.apply(id, next_step)
    return any(isinstance(event, (KernelPasted, ProfileRequested)) for event in steering.pending.values())
