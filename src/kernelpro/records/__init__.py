"""The nouns that cross a process or are stored: plain dataclasses, JSON both ways.

Standard library only: the lab reads and writes these on hosts where nothing but torch is installed.
"""

from kernelpro.records import folders
from kernelpro.records.base import BadInput, Record, digest
from kernelpro.records.energy import Energy, Objective
from kernelpro.records.graph import Graph, Node
from kernelpro.records.interval import Interval
from kernelpro.records.jobs import Job, Progress, Result
from kernelpro.records.judging import (
    BASELINES,
    Candidate,
    Effort,
    Mode,
    Options,
    Precision,
    Status,
    Target,
    Task,
    Verdict,
    read_source,
)
from kernelpro.records.profiling import (
    Bound,
    Copy,
    Counters,
    Diagnosis,
    Evidence,
    Finding,
    Gain,
    Kernel,
    Level,
    Line,
    Profile,
    Severity,
    Skipped,
    Timeline,
)
from kernelpro.records.running import Action, Cost, Limits, Outcome, Point, Role, RunConfig, Stage, Step
from kernelpro.records.study import BaselineSeed, Hardware, TaskFacts, Work

__all__ = [
    "BASELINES",
    "Action",
    "BadInput",
    "BaselineSeed",
    "Bound",
    "Candidate",
    "Copy",
    "Cost",
    "Counters",
    "Diagnosis",
    "Effort",
    "Energy",
    "Evidence",
    "Finding",
    "Gain",
    "Graph",
    "Hardware",
    "Interval",
    "Job",
    "Kernel",
    "Level",
    "Limits",
    "Line",
    "Mode",
    "Node",
    "Objective",
    "Options",
    "Outcome",
    "Point",
    "Precision",
    "Profile",
    "Progress",
    "Record",
    "Result",
    "Role",
    "RunConfig",
    "Severity",
    "Skipped",
    "Stage",
    "Status",
    "Step",
    "Target",
    "Task",
    "TaskFacts",
    "Timeline",
    "Verdict",
    "Work",
    "digest",
    "folders",
    "read_source",
]
