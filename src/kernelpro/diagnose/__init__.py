"""From a profile to a diagnosis: roofline classification (stage 1), diagnostics (stage 2), guidance.

Input: a Profile. Output: a Diagnosis, and the text that an author or a person reads.
"""

from kernelpro.diagnose.counters import ALL_BOUNDS
from kernelpro.diagnose.diagnostic import Diagnostic, DiagnosticContext, Match, MissingData, percent

__all__ = ["ALL_BOUNDS", "Diagnostic", "DiagnosticContext", "Match", "MissingData", "percent"]
