"""Profiles of kernels on an H200, reduced to what diagnostics read; defects/recorded has the whole corpus."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from kernelpro.records import Profile

PROFILES = Path(__file__).parent / "profiles"


def load(name: str) -> Profile:
    return Profile.from_json(json.loads((PROFILES / f"{name}.json").read_text(encoding="utf-8")))


def bare(profile: Profile) -> Profile:
    """The profile without hardware counters."""
    return replace(
        profile, kernels=tuple(replace(kernel, metrics={}, lines=()) for kernel in profile.kernels)
    )
