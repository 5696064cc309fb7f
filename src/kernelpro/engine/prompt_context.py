"""What an author is shown of a run: the node, its family, the leaders, and what was learnt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kernelpro.authors.author import Assignment, KnownCandidate
from kernelpro.engine import objective
from kernelpro.engine.store import RunStore
from kernelpro.records import Graph, RunConfig, Step
from kernelpro.search.tree import Tree

_MOST_RELATIVES = 4
_LEADERS = 3


@dataclass(frozen=True)
class PromptContext:
    config: RunConfig
    ground: dict[str, Any]
    tree: Tree
    steps: dict[int, Step]
    store: RunStore

    def assignment(self, step: Step) -> Assignment:
        parent = self.steps.get(step.parent)
        family = self.tree.nodes[step.parent].children if step.parent else []
        grandparent = parent.parent if parent else 0
        siblings = [n for n in self.tree.nodes[grandparent].children if n != step.parent] if parent else []
        cousins = [child for sibling in siblings for child in self.tree.nodes[sibling].children]
        given = len(self.ground.get("seeds", ()))
        leaders = [node.id for node in self.tree.ranked() if node.id > given][:_LEADERS]
        return Assignment(
            step=step.number,
            action=step.action,
            task=self.config.task,
            target=self.config.target,
            precision=self.ground["precision"],
            floor_ms=self.ground["floor_ms"],
            baselines=self.ground["baselines"],
            tolerance=self.ground.get("tolerance", {}).get("as given", 0.0),
            objective=objective.words(self.config),
            turn=step.number - 1,
            attempt=self._attempt(step),
            graph=Graph.from_json(drawn) if (drawn := self.ground.get("graph")) else None,
            graph_error=self.ground.get("no_graph", ""),
            hardware=self.ground.get("hardware", {}),
            languages=self.config.languages,
            parent=self._known(parent) if parent else None,
            donor=self._known(self.steps[step.second]) if step.second else None,
            children=self._many(n for n in family if n != step.number),
            siblings=self._many(siblings),
            cousins=self._many(cousins),
            leaders=tuple(self._known(self.steps[n]) for n in leaders if n != step.parent),
            concurrent=tuple(
                self._known(self.steps[n])
                for n in family
                if n < step.number and self.steps[n].stage != "settled"
            ),
            known_fingerprints=frozenset(s.details["code"] for s in self.steps.values() if "code" in s.details),
            guidance=str(parent.details.get("guidance", "")) if parent else "",
            findings=parent.diagnosis.findings if parent and parent.diagnosis else (),
            evidence=str(parent.details.get("evidence", "")) if parent else "",
        )

    def _attempt(self, step: Step) -> int:
        family = (self.steps[n] for n in self.tree.nodes[step.parent].children if n < step.number)
        return sum(relative.action == step.action for relative in family)

    def _many(self, numbers: Any) -> tuple[KnownCandidate, ...]:
        """Settled relatives, the latest first."""
        settled = [
            self.steps[n]
            for n in numbers
            if n in self.steps and self.steps[n].stage == "settled" and self.steps[n].source
        ]
        return tuple(self._known(step) for step in sorted(settled, key=lambda s: -s.number)[:_MOST_RELATIVES])

    def _known(self, step: Step) -> KnownCandidate:
        source = self.store.source(step.final_source) if step.final_source else ""
        return KnownCandidate(step.number, source, step.plan, step.verdict)
