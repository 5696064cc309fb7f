"""From counters to words: the roofline's class (stage 1), micro-profiling tools (stage 2), guidance.

Comes in: a Profile. Goes out: a Diagnosis, and the text that an author or a person reads.
"""

from kernelpro.diagnose.diagnostic import ALL_BOUNDS, Diagnostic, DiagnosticContext, Match, MissingData

__all__ = ["ALL_BOUNDS", "Match", "MissingData", "DiagnosticContext", "Diagnostic"]
