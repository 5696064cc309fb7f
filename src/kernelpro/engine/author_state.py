"""Which nodes the author can still work on: nodes without ideas, missing answers, and when these end the
search."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from kernelpro.records import NoVerdict, Step
from kernelpro.search.choice import SEED, Choice, expand
from kernelpro.search.tree import Tree

_MAX_STREAK = 3
"""The search ends after this many nodes in a row without an idea, questions in a row without an answer, or
candidates in a row that could not be judged because of a bug of KernelPro."""


@dataclass
class AuthorState:
    """What is known about the author's remaining ideas. Updated with every settled step, in order."""

    seeds: int = 0
    """Number of steps with the compiler's code, which the author does not write."""
    design_count: int | None = None
    """Number of new designs that the author has; None if it does not know."""
    pasted_designs: int = 0
    """Number of new designs that the user pasted and the author did not write."""
    exhausted_nodes: set[int] = field(default_factory=set)
    """Nodes for which the author has no idea."""
    unanswered_nodes: set[int] = field(default_factory=set)
    """Nodes whose question got no answer. The search avoids them until any question gets an answer."""
    no_idea_streak: int = 0
    """Nodes in a row without an idea."""
    no_answer_streak: int = 0
    """Questions in a row without an answer."""
    unreachable_streak: int = 0
    """Number of these missing answers that are due to an unreachable model."""
    last_reason: str = ""
    """Why the last idea or answer is missing."""
    internal_error_streak: int = 0
    """Candidates in a row that a bug of KernelPro kept from being judged."""
    last_internal_error: str = ""
    """The message of the last such bug."""

    def record(self, step: Step) -> None:
        """Update the state with a settled step."""
        reason = step.no_verdict
        if reason is NoVerdict.INTERNAL_ERROR:
            self.internal_error_streak += 1
            self.last_internal_error = step.note
            return
        if step.verdict:
            self.internal_error_streak = 0
        if reason and reason.means_no_idea:
            self.last_reason = step.note
            out_of_ideas = reason is NoVerdict.OUT_OF_IDEAS
            self.no_idea_streak += _MAX_STREAK if out_of_ideas else step.parent not in self.exhausted_nodes
            self.exhausted_nodes.add(step.parent)
        elif reason and reason.means_no_answer:
            self.last_reason = step.note
            self.no_answer_streak += 1
            self.unreachable_streak += reason is NoVerdict.UNREACHABLE
            self.unanswered_nodes |= {step.parent} - {0}  # each new design is another question
        else:
            self.no_idea_streak = self.no_answer_streak = self.unreachable_streak = 0
            self.unanswered_nodes.clear()

    def forget_missing_answers(self) -> None:
        """Reset the streak of missing answers: a resumed run asks again."""
        self.no_answer_streak = self.unreachable_streak = 0

    def forget_streaks(self) -> None:
        """Reset all streaks after a request of the user: what failed before may work now."""
        self.forget_missing_answers()
        self.no_idea_streak = self.internal_error_streak = 0

    def redirect(self, choice: Choice, tree: Tree, forbidden: Set[int] = frozenset()) -> Choice:
        """The choice; if the author has no idea for its node, a choice with another node. `forbidden`: nodes
        that the user excluded."""
        closed = self._closed_nodes(tree) | forbidden
        avoided = closed | self.unanswered_nodes
        if choice.parent not in avoided:
            return choice
        return _alternative(tree, avoided) or _alternative(tree, closed) or choice

    def is_exhausted(self, tree: Tree, forbidden: Set[int]) -> bool:
        """Whether the author has no idea for any node that the user allows."""
        closed = self._closed_nodes(tree) | forbidden
        return self.no_idea_streak >= _MAX_STREAK or (bool(closed) and _alternative(tree, closed) is None)

    def stop_reason(self, tree: Tree, forbidden: Set[int] = frozenset()) -> str:
        """Why the search cannot continue; empty if it can. `forbidden`: nodes that the user excluded."""
        if self.internal_error_streak >= _MAX_STREAK:
            return f"{self.internal_error_streak} candidates in a row: {self.last_internal_error}"
        if self.is_exhausted(tree, forbidden):
            if forbidden and not self.is_exhausted(tree, frozenset()):
                return "the author has no further idea for the branches that are open"
            reason = self.last_reason or f"all of its {self.design_count} initial designs have been written"
            return f"the author has no further idea ({reason})"
        return self.missing_answers_reason

    @property
    def missing_answers_reason(self) -> str:
        """Why missing answers end the search; empty if they do not."""
        if self.no_answer_streak < _MAX_STREAK:
            return ""
        return (
            f"no usable answer for {self.no_answer_streak} steps in a row; the last error: {self.last_reason}"
        )

    @property
    def is_unreachable(self) -> bool:
        """Whether all missing answers are due to unreachable models."""
        return self.unreachable_streak == self.no_answer_streak > 0

    def _closed_nodes(self, tree: Tree) -> set[int]:
        """Nodes for which the author is not asked. The root is one of them after all new designs were
        requested."""
        designs = len(tree.nodes[0].children) - self.seeds - self.pasted_designs
        no_design = self.design_count is not None and designs >= self.design_count
        return self.exhausted_nodes | ({0} if no_design else set())


def _alternative(tree: Tree, closed: set[int]) -> Choice | None:
    """A choice with the best node that is not closed, else with the root, else with the last failed node that
    has no children. None if all are closed."""
    node = next((node for node in tree.ranked() if node.id not in closed), None)
    if node is None and 0 in closed:
        failed = (node for node in reversed(tree.nodes) if node.state == "failed" and not node.children)
        node = next((node for node in failed if node.id not in closed), None)
        return expand(node) if node else None
    return expand(node) if node else SEED
