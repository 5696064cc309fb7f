"""What is known of a machine without asking torch."""

from __future__ import annotations

from pathlib import Path

from kernelpro.lab import machine


def cache(root: Path, index: int, level: int, kind: str, size: str, users: str) -> None:
    place = root / f"index{index}"
    place.mkdir()
    told = {"level": level, "type": kind, "size": size, "coherency_line_size": 64, "shared_cpu_list": users}
    for name, value in told.items():
        (place / name).write_text(f"{value}\n")


def test_caches_are_told_by_level_and_by_who_shares_them(tmp_path: Path) -> None:
    cache(tmp_path, 0, 1, "Data", "48K", "0")
    cache(tmp_path, 1, 1, "Instruction", "32K", "0")
    cache(tmp_path, 2, 2, "Unified", "2048K", "0,32")
    cache(tmp_path, 3, 3, "Unified", "32768K", "0-7,32-39")
    assert (
        machine.caches(tmp_path)
        == "L1 48 KiB a core, L2 2 MiB shared by 2, L3 32 MiB shared by 16; lines of 64 bytes"
    )
    assert machine.caches(tmp_path / "nothing") == ""


def test_vector_extensions_go_by_the_names_of_their_intrinsics() -> None:
    assert machine.vector_extensions({"features": "fp asimd asimddp sve"}) == "NEON dotprod SVE"
    assert machine.vector_extensions({"flags": "fpu sse avx avx2 fma avx512f"}) == "AVX AVX2 FMA AVX-512F"
    assert machine.vector_extensions({}) == "unknown"


def test_a_clock_is_the_highest_one_that_is_told(tmp_path: Path) -> None:
    assert (
        machine.clock_mhz({}, tmp_path) is None
        and machine.clock_mhz({"cpu mhz": "2499.998"}, tmp_path) == 2500
    )
    (tmp_path / "cpufreq").mkdir()
    (tmp_path / "cpufreq/cpuinfo_max_freq").write_text("3400000\n")
    assert machine.clock_mhz({"cpu mhz": "2499.998"}, tmp_path) == 3400


def test_a_processor_of_arm_is_named_by_its_part() -> None:
    assert machine.cpu_model_name(
        {"processor": "0", "cpu implementer": "0x41", "cpu part": "0xd0c"}
    ).startswith("Neoverse-N1 (")
    assert machine.cpu_model_name(
        {"processor": "0", "cpu implementer": "0x61", "cpu part": "0xd0c"}
    ).endswith(" cores")
    assert machine.cpu_model_name({"model name": "AMD EPYC 9654"}) == "AMD EPYC 9654"
