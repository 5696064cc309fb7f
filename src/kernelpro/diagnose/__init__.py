"""From counters to words: the roofline's class (stage 1), micro-profiling tools (stage 2), guidance.

Comes in: a Profile. Goes out: a Diagnosis, and the text that an author or a person reads.
"""

from kernelpro.diagnose.tool import EVERY, Found, Missing, Scene, Tool

__all__ = ["EVERY", "Found", "Missing", "Scene", "Tool"]
