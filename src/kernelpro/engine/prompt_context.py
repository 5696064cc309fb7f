"""What an author sees of a run: the node, its relatives, the best candidates, and the diagnosis."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kernelpro.authors.author import Assignment, KnownCandidate
from kernelpro.engine import objective
from kernelpro.engine.store import RunStore
from kernelpro.records import NoVerdict, RunConfig, Step, TaskFacts
from kernelpro.search.tree import Tree

_MAX_RELATIVES = 4
_LEADERS = 3


@dataclass(frozen=True)
class PromptContext:
    """Builds assignments from the state of a run."""

    config: RunConfig
    facts: TaskFacts
    tree: Tree
    steps: dict[int, Step]
    store: RunStore

    def assignment(self, step: Step) -> Assignment:
        """The assignment of a step, without memory and knowledge."""
        parent = self.steps.get(step.parent)
        children = self.tree.nodes[step.parent].children if step.parent else []
        grandparent = parent.parent if parent else 0
        siblings = [n for n in self.tree.nodes[grandparent].children if n != step.parent] if parent else []
        cousins = [child for sibling in siblings for child in self.tree.nodes[sibling].children]
        leaders = [node.id for node in self.tree.ranked() if node.id > len(self.facts.seeds)][:_LEADERS]
        return Assignment(
            step=step.number,
            action=step.action,
            task=self.config.task,
            target=self.config.target,
            precision=self.facts.precision,
            floor_ms=self.facts.floor_ms,
            baselines=self.facts.baselines,
            tolerance=self.facts.tolerance.get("as given", 0.0),
            objective=objective.describe(self.config),
            turn=sum(not other.pasted for number, other in self.steps.items() if number < step.number),
            attempt=self._attempt(step),
            graph=self.facts.graph,
            graph_error=self.facts.graph_error,
            other_graphs=self.facts.other_graphs,
            shapes=self.facts.shapes,
            hardware=self.facts.hardware,
            languages=self.config.languages,
            parent=self._candidate(parent) if parent else None,
            donor=self._candidate(self.steps[step.donor]) if step.donor else None,
            children=self._settled(n for n in children if n != step.number),
            siblings=self._settled(siblings),
            cousins=self._settled(cousins),
            leaders=tuple(self._candidate(self.steps[n]) for n in leaders if n != step.parent),
            concurrent=tuple(
                self._candidate(self.steps[n])
                for n in children
                if n < step.number and self.steps[n].stage != "settled"
            ),
            known_fingerprints=frozenset(
                other.details.fingerprint for other in self.steps.values() if other.details.fingerprint
            ),
            guidance=parent.details.guidance if parent else "",
            findings=parent.diagnosis.findings if parent and parent.diagnosis else (),
            evidence=parent.details.evidence if parent else "",
        )

    def _attempt(self, step: Step) -> int:
        """The number of earlier steps with the same parent and action, without pasted ones."""
        earlier = (self.steps[n] for n in self.tree.nodes[step.parent].children if n < step.number)
        return sum(other.action == step.action and not other.pasted for other in earlier)

    def _settled(self, numbers: Iterable[int]) -> tuple[KnownCandidate, ...]:
        """The candidates of these steps that are settled and have a source: the latest few, latest first."""
        settled = [
            self.steps[n]
            for n in numbers
            if n in self.steps
            and self.steps[n].stage == "settled"
            and self.steps[n].source
            and self.steps[n].no_verdict is not NoVerdict.INTERNAL_ERROR
        ]
        latest = sorted(settled, key=lambda step: -step.number)[:_MAX_RELATIVES]
        return tuple(self._candidate(step) for step in latest)

    def _candidate(self, step: Step) -> KnownCandidate:
        source = self.store.source(step.final_source) if step.final_source else ""
        return KnownCandidate(step.number, source, step.plan, step.verdict)
