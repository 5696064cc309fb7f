"""What an author can still be asked for: nodes without ideas, missing answers, and when both end the
search."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from kernelpro.records import NoVerdict, Step
from kernelpro.search.choice import SEED, Choice, expand
from kernelpro.search.tree import Tree

_MAX_STREAK = 3
"""Nodes in a row without an idea, questions in a row without an answer, or candidates in a row that a bug of
KernelPro kept from being judged, after which the search ends."""


@dataclass
class AuthorState:
    """Updated with every settled step, in order."""

    seeds: int = 0
    """How many steps are the compiler's code, and cost the author nothing."""
    design_count: int | None = None
    """How many fresh designs the author has, if it knows."""
    pasted_designs: int = 0
    """Fresh designs that the user pasted: the author did not write them."""
    exhausted_nodes: set[int] = field(default_factory=set)
    """Nodes for which the author has no idea."""
    unanswered_nodes: set[int] = field(default_factory=set)
    """Nodes whose question had no answer; the search avoids them until an answer comes."""
    no_idea_streak: int = 0
    no_answer_streak: int = 0
    unreachable_streak: int = 0
    """How many of the missing answers were due to an unreachable model."""
    last_reason: str = ""
    internal_error_streak: int = 0
    last_internal_error: str = ""

    def record(self, step: Step) -> None:
        """Count a settled step."""
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
            self.unanswered_nodes |= {step.parent} - {0}  # every fresh design is another question
        else:
            self.no_idea_streak = self.no_answer_streak = self.unreachable_streak = 0
            self.unanswered_nodes.clear()

    def forget_missing_answers(self) -> None:
        """A resumed run asks again."""
        self.no_answer_streak = self.unreachable_streak = 0

    def forget_streaks(self) -> None:
        """The user stepped in: what failed before may work now."""
        self.forget_missing_answers()
        self.no_idea_streak = self.internal_error_streak = 0

    def redirect(self, choice: Choice, tree: Tree, forbidden: Set[int] = frozenset()) -> Choice:
        """The choice, or another node where the author may have an idea, if it has none for this one.
        `forbidden`: nodes that the user excluded."""
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
        """Why the search cannot go on; empty if it can. `forbidden`: nodes that the user excluded."""
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
        """Nodes at which the author is not asked; the root is one of them once all fresh designs were
        requested."""
        designs = len(tree.nodes[0].children) - self.seeds - self.pasted_designs
        no_design = self.design_count is not None and designs >= self.design_count
        return self.exhausted_nodes | ({0} if no_design else set())


def _alternative(tree: Tree, closed: set[int]) -> Choice | None:
    """The best node that is not closed, else the root, else the last failure that nobody has tried to fix."""
    node = next((node for node in tree.ranked() if node.id not in closed), None)
    if node is None and 0 in closed:
        failed = (node for node in reversed(tree.nodes) if node.state == "failed" and not node.children)
        node = next((node for node in failed if node.id not in closed), None)
        return expand(node) if node else None
    return expand(node) if node else SEED
