"""The child that holds the reference in several variants.

It serves the requests of a candidate's child, so that the protocol costs both sides of a timing the same.
Additional requests:

    compile_variants   variants   -> the variants that failed, with reasons, and the code of the others. If a
                                     compiler has to measure on the device, a notice comes first: the compiler
                                     waits for `tune`, which arrives when the device is quiet
    tune               nothing    -> ok
    compiled_source    variant    -> the compiler's code as a candidate, or why there is none
    prepare            variant    -> ok; selects the variant first
"""

from __future__ import annotations

import gc
import io
import time
from typing import Any

import torch

from kernelpro.lab import tree
from kernelpro.lab.sandbox.candidate_server import CandidateServer
from kernelpro.lab.sandbox.child import Reply, Request
from kernelpro.lab.sandbox.stages import describe_exception
from kernelpro.lab.seeds import MODES, NoSeed, call_before_benchmarks, seed_from_first_call, seed_source
from kernelpro.lab.tasks import paths
from kernelpro.lab.tasks.reference import Reference

_POLL_SECONDS = 0.002


class BaselineServer(CandidateServer):
    """Holds the reference, eager and compiled."""

    _may_tune = False
    """Whether compilers may measure on the device."""

    def load(self, request: Request, tail: bytes) -> Reply:
        """Load the reference of the task in `tail`."""
        bundle = torch.load(io.BytesIO(tail), weights_only=False)
        paths.extend_sys_path()
        self._reference = Reference(
            bundle["task"], self._device.name, request["seed"], request["init_device"]
        )
        self._models: dict[str, Any] = {"eager": self._reference.model()}
        return {"parameters": "by name"}, b""

    def compile_variants(self, request: Request, tail: bytes) -> Reply:
        """Call every variant once on its own inputs, which compiles it."""
        failed, seeds = {}, {}
        if self._device.name == "cuda" and MODES.keys() & set(request["variants"]):
            call_before_benchmarks(self._await_quiet_device)
        for variant in request["variants"]:
            try:
                self._select_variant(variant)
                with torch.no_grad():
                    # inputs of its own: a variant may modify them
                    source = self._run_variant(variant, tree.unflatten(*self._reference.inputs(0)))
            except Exception as error:  # a variant whose compiler fails is reported and left out
                failed[variant] = describe_exception(error)
            else:
                if source:
                    seeds[variant] = source
            gc.collect()  # reference cycles of compilers keep inputs and outputs alive
            self._device.release_memory()
        return {"failed": failed, "seeds": seeds}, b""

    def _await_quiet_device(self) -> None:
        """Wait for the next request: until then the judge itself uses the device. A configuration that a
        compiler chose on a busy device was 10 % slower than the best one (element-wise, 13 GB)."""
        if not self._may_tune:
            self.send_early({"ok": True, "tuning": True})
            while not self.has_next_request():
                time.sleep(_POLL_SECONDS)
            self._may_tune = True

    def tune(self, request: Request, tail: bytes) -> Reply:
        """Do nothing: the arrival of this request has let a compiler measure."""
        return {}, b""

    def _run_variant(self, variant: str, values: list[Any]) -> str:
        """Call a variant; returns the code that its compiler wrote, or ""."""
        if variant in MODES:
            return seed_from_first_call(self._reference, variant, self._model, values)
        self._model(*values)
        return ""

    def compiled_source(self, request: Request, tail: bytes) -> Reply:
        """The compiler's code for a variant as a candidate."""
        self._select_variant(request["variant"])
        try:
            return {"source": seed_source(self._reference, request["variant"]), "reason": ""}, b""
        except NoSeed as reason:
            return {"source": "", "reason": str(reason)}, b""

    def prepare(self, request: Request, tail: bytes) -> Reply:
        """Select a variant, then prepare as a candidate's child does."""
        self._select_variant(request["variant"])
        return super().prepare(request, tail)

    def _select_variant(self, variant: str) -> None:
        compiled = variant in MODES
        tf32 = self._allow_tf32 if compiled else variant == "eager_tf32"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        if compiled and variant not in self._models:
            model = self._reference.model(shared=self._models["eager"])
            self._models[variant] = torch.compile(model, mode=MODES[variant])
        self._model = self._models.get(variant, self._models["eager"])
