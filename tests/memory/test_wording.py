"""Which error messages and which methods count as equal; summaries of plans."""

from __future__ import annotations

import pytest

from kernelpro.memory.wording import error_signature, method_key, summarize


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            '/tmp/tmpab12/kernel.cu(12): error: identifier "tile" is undefined',
            '/scratch/x9/kernel.cu(340): error: identifier "tile" is undefined',
        ),
        ("CUDA error at 0x7f3a10: misaligned address", "CUDA error at 0x99: misaligned address"),
        (
            "out of memory: tried to allocate 20.00 MiB of 79 GiB",
            "out of memory: tried to allocate 1.5 MiB of 8 GiB",
        ),
        ("TypeError: tmp3 has no attribute 'T'", "TypeError: tmp17 has no attribute 'T'"),
        ("RuntimeError: buf12 is not contiguous", "RuntimeError: buf3 is not contiguous"),
        (
            "error in module 9f8e7d6c5b4a3210: no kernel image",
            "error in module 00aa11bb22cc33dd: no kernel image",
        ),
        (
            'Traceback (most recent call last):\n  File "a.py", line 3\nValueError: 3 is odd',
            'Traceback\n  File "b.py"\nValueError: 5 is odd',
        ),
        (
            "note: here\nk.cu(3): error: expected a ;\n1 error detected",
            "k.cu(9): error: expected a ;\nk.cu(10): error: bad",
        ),
    ],
)
def test_the_same_error_has_one_signature(one: str, other: str) -> None:
    assert error_signature(one) == error_signature(other) != ""


def test_different_errors_differ_and_names_stay() -> None:
    first, second = (
        error_signature('k.cu(3): error: "float4" is undefined'),
        error_signature('k.cu(3): error: "tile" is undefined'),
    )
    assert first == 'k.cu(N): error: "float4" is undefined' and first != second
    assert error_signature("") == "" and len(error_signature("error " + "x" * 9999)) == 200


def test_the_same_method_has_one_key() -> None:
    key = method_key("Stage tiles of 128 rows in shared memory")
    assert (
        key
        == method_key("use shared-memory tiles, 64 rows each: staged")
        == method_key("staging a tile of 32 rows in the shared memory")
    )
    assert key != method_key("Stage tiles of 128 columns in shared memory")
    assert method_key("wrapped") == method_key("wrapping") == method_key("wraps")


def test_a_long_plan_is_told_by_its_first_clauses() -> None:
    assert summarize("unroll  by\n8.") == "unroll by 8"
    long = (
        "one native kernel for a row (one thread, scalar, 4 MB of indices), rows shared by both threads; "
        + "then more " * 20
    )
    assert summarize(long) == "one native kernel for a row, rows shared by both threads"
    part_of_the_sentence = (
        "a warp per (bag, half of the columns) with the halves outermost, " + "and so on " * 20
    )
    assert (
        summarize(part_of_the_sentence) == "a warp per (bag, half of the columns) with the halves outermost"
    )
    cut_inside = (
        "give reads and writes unequal priority in the second cache (loads evict_first, "
        + "stores last " * 10
        + ")"
    )
    assert summarize(cut_inside) == "give reads and writes unequal priority in the second cache"
    assert summarize("word " * 100) == "word " * 31 + "..."
