"""Loads a candidate into its process and gives it the reference's parameters.

The process constructs the candidate with the reference's seed, so that most parameters already have the right
values. Only those that differ are sent.
"""

from __future__ import annotations

import io
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.measure.participant import Participant
from kernelpro.lab.sandbox.builds import Builds
from kernelpro.lab.sandbox.outputs import CandidateRejected
from kernelpro.lab.tasks.parameters import Source, StateEntry, describe_state
from kernelpro.lab.tasks.reference import Reference
from kernelpro.records import Candidate, Options, Status


@dataclass(frozen=True)
class LoadedParameters:
    """Where the parameters of a loaded candidate come from."""

    source: Source
    overwritten: tuple[str, ...] = ()
    """Parameters whose values from the candidate's constructor were replaced by the reference's."""


class CandidateLoader:
    """Loads the candidates of one task, and its reference."""

    def __init__(self, reference: Reference, builds: Builds):
        self._reference, self._builds = reference, builds

    def request(self, candidate: Candidate, options: Options) -> tuple[dict[str, Any], bytes]:
        """The request that loads a candidate, and its binary tail. Builds the candidate if necessary."""
        reference = self._reference
        leaves: list[torch.Tensor] = []
        form = tree.flatten(reference.init_inputs, leaves)
        bundle = {
            "artifacts": self._builds.get(candidate, reference.device, options, reference.task),
            "init_form": form,
            "init_leaves": leaves,
            "entries": self._entries,
            "constants": reference.constants,
        }
        request = {
            "op": "load",
            "source": candidate.source,
            "seed": reference.seed,
            "mode": reference.task.mode,
            "init_device": reference.init_device,
        }
        return request, _saved(bundle)

    def reference_request(self) -> tuple[dict[str, Any], bytes]:
        """The request that loads the reference into the baselines' process, and its binary tail."""
        reference = self._reference
        request = {"op": "load", "seed": reference.seed, "init_device": reference.init_device}
        return request, _saved({"task": reference.task})

    @cached_property
    def _entries(self) -> dict[str, StateEntry]:
        return describe_state(self._reference.state())

    def saved_state(self, names: Collection[str] | None = None) -> bytes:
        """The reference's parameters and buffers for `set_state`: all, or those in `names`."""
        state = self._reference.state()
        return _saved({name: state[name].cpu() for name in (state if names is None else names)})

    def load(
        self, participant: Participant, candidate: Candidate, options: Options, keep_own_values: bool = False
    ) -> LoadedParameters:
        """Load the candidate and set its parameters to the reference's values.

        `keep_own_values`: parameters keep the values that the candidate's constructor gave them.
        """
        request, tail = self.request(candidate, options)
        with participant.may_compile(options.build_timeout):
            loaded = self._parse_reply(participant.request(request, options.call_timeout, tail))
            if loaded.source == "by seed":
                self._reject_seeded_module()
            if keep_own_values:
                loaded = LoadedParameters("by seed")
            state = self.saved_state(loaded.overwritten) if loaded.overwritten else b""
            participant.request({"op": "set_state"}, options.call_timeout, state)
        return loaded

    def _parse_reply(self, reply: dict[str, Any]) -> LoadedParameters:
        source, different = reply.get("parameters"), reply.get("different")
        if (
            source not in ("by name", "by seed", "none")
            or not isinstance(different, list)
            or not all(isinstance(name, str) and name in self._entries for name in different)
        ):
            raise CandidateRejected(Status.CHEATING, "the reply to 'load' was forged")
        return LoadedParameters(source, tuple(dict.fromkeys(different)))

    def _reject_seeded_module(self) -> None:
        """Reject a candidate with parameters by seed if the task is a live module, whose weights no seed
        reproduces."""
        weights = [f"{name} {list(entry.shape)}" for name, entry in self._entries.items() if entry.required]
        if self._reference.task.form == "module" and weights:
            raise CandidateRejected(
                Status.WRONG,
                "the kernel needs parameters with the names and shapes of the module's own, but some differ: "
                f"the module has {', '.join(weights)[:500]}",
            )


def _saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()
