"""Tunables: read from comments, set in place, frozen; constraints computed without executing anything."""

from __future__ import annotations

import random

import pytest

from kernelpro.lab.tuning.tunables import apply_point, freeze, parse
from kernelpro.records import BadInput

SOURCE = '''"""A kernel: größer ist besser."""

import torch

ß = "naïve"; WIDTH = 0x80  # unrelated
BLOCK: int = 128   # tune: 256, 64, 128, 0x200  # columns
STAGES = tl.constexpr(3)  # tune: 2, 3, 4
SCALE = (-1.5)  # tune: -1.5, 0, 2.5
LAYOUT = 'row'  # tune: "row", "column, padded"
FUSED = True  # tune: False, True
# tune-if: BLOCK * STAGES <= 1024 and (LAYOUT == "row" or BLOCK > 64)
#tune-if: not FUSED or min(BLOCK, 256) % 128 == 0

TEXT = """
BLOCK = 7  # tune: 7
// tune: nothing
"""


def scale(x):
    BLOCK = 1
    return x
'''


def test_declarations_are_read() -> None:
    space = parse(SOURCE)
    assert space.names == ("BLOCK", "STAGES", "SCALE", "LAYOUT", "FUSED")
    assert space.values["BLOCK"] == (64, 128, 256, 512) and space.values["LAYOUT"] == (
        "row",
        "column, padded",
    )
    assert space.values["SCALE"] == (-1.5, 0, 2.5) and space.values["FUSED"] == (False, True)
    assert space.default == {"BLOCK": 128, "STAGES": 3, "SCALE": -1.5, "LAYOUT": "row", "FUSED": True}
    assert [constraint.text for constraint in space.constraints] == [
        'BLOCK * STAGES <= 1024 and (LAYOUT == "row" or BLOCK > 64)',
        "not FUSED or min(BLOCK, 256) % 128 == 0",
    ]


def test_a_source_without_declarations_declares_nothing() -> None:
    space = parse("BLOCK = 128  # the tuned one; tune it again: never\n")
    assert space.names == () and list(space.points()) == [{}]


def test_a_point_is_set_and_nothing_else_is_touched() -> None:
    point = {"BLOCK": 512, "STAGES": 2, "SCALE": 2.5, "LAYOUT": "column, padded", "FUSED": False}
    expected = (
        SOURCE.replace("int = 128 ", "int = 0x200 ")
        .replace("constexpr(3)", "constexpr(2)")
        .replace("(-1.5)", "(2.5)")
    )
    expected = expected.replace("LAYOUT = 'row'", 'LAYOUT = "column, padded"').replace(
        "FUSED = True", "FUSED = False"
    )
    assert apply_point(SOURCE, point) == expected
    assert parse(expected).default == point
    assert apply_point(SOURCE, parse(SOURCE).default) == SOURCE
    assert apply_point(expected, {"BLOCK": 128}) == expected.replace("0x200 ", "128 ", 1)


@pytest.mark.parametrize("end", ["\r\n", "\n", "\r"])
def test_line_ends_are_kept(end: str) -> None:
    source = end.join(['"""A."""', "BLOCK = 64  # tune: 64, 128", "X = 1", ""])
    assert apply_point(source, {"BLOCK": 128}) == source.replace("= 64", "= 128")


def test_a_frozen_source_declares_nothing_and_says_what_was_searched() -> None:
    text = freeze(SOURCE, parse(SOURCE).default | {"BLOCK": 256})
    assert parse(text).names == () and parse(text).constraints == ()
    assert "BLOCK: int = 256   # tuned over 256, 64, 128, 0x200\n" in text
    assert "STAGES = tl.constexpr(3)  # tuned over 2, 3, 4\n" in text
    assert "# tuned where not FUSED or min(BLOCK, 256) % 128 == 0\n" in text
    assert "// tune: nothing\n" in text


def test_points_satisfy_the_constraints() -> None:
    source = "A = 2  # tune: 0, 1, 2\nB = 4  # tune: 2, 4\n# tune-if: B % A == 0 and B // A < 4\n"
    points = list(parse(source).points())
    assert points == [{"A": 1, "B": 2}, {"A": 2, "B": 2}, {"A": 2, "B": 4}]
    assert parse(source).size == 6


def test_neighbours_are_one_step_away_in_one_tunable() -> None:
    source = 'A = 2  # tune: 1, 2, 4, 8\nL = "x"  # tune: "x", "y", "z"\n# tune-if: A * A < 60\n'
    space = parse(source)
    assert list(space.neighbours({"A": 4, "L": "x"})) == [
        {"A": 2, "L": "x"},
        {"A": 4, "L": "y"},
        {"A": 4, "L": "z"},
    ]
    assert list(space.neighbours({"A": 4, "L": "x"}, tunables=2)) == [
        {"A": 2, "L": "y"},
        {"A": 2, "L": "z"},
    ]
    assert space.distance({"A": 1, "L": "x"}, {"A": 4, "L": "z"}) == 3
    assert all(set(space.sample(random.Random(seed))) == {"A", "L"} for seed in range(5))


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("X = 1\n# tune: 1, 2\n", 2, "must follow one module-level constant"),
        ("def f():\n    A = 1  # tune: 1, 2\n    return A\n", 2, "must follow one module-level constant"),
        ("A = B = 1  # tune: 1, 2\n", 1, "must follow one module-level constant"),
        ("A = 1; B = 2  # tune: 1, 2\n", 1, "must follow one module-level constant"),
        ("A = 1 + 1  # tune: 1, 2\n", 1, "must follow one module-level constant"),
        ("A = f(1)  # tune: 1, 2\n", 1, "must follow one module-level constant"),
        ("A = -True  # tune: 1, 2\n", 1, "must follow one module-level constant"),
        ("A = 1  # tune:\n", 1, "lists no values"),
        ("A = 1  # tune: 1, 2 to 9\n", 1, "not a list of literals"),
        ("A = 1  # tune: 1], [2\n", 1, "not a list of literals"),
        ("A = 1  # tune: 1, open('x')\n", 1, "open('x') is not an int"),
        ("A = 1  # tune: 1, None\n", 1, "None is not an int"),
        ("A = 1  # tune: 1, 2, 1\n", 1, "lists 1 twice"),
        ("A = 1  # tune: 1, 'x'\n", 1, "number and string"),
        ("A = 1  # tune: True, False\n", 1, "boolean and number"),
        ("A = 3  # tune: 1, 2\n", 1, "not among its listed values"),
        ("A = 1  # tune: 1, 2\nif A:\n    A = 2\n", 3, "assigned again"),
        ("A = 1  # tune: 1, 2\nA += 1\n", 2, "assigned again"),
        ("A = 1  # tune: 1, 2\n# tune-if: B > 1\n", 2, "uses B, which is not a tunable"),
        ("A = 1  # tune: 1, 2\n# tune-if: A >\n", 2, "is not a valid Python expression"),
        ("A = 1  # tune: 1, 2\n# tune-if: A > 1\n", 2, "does not hold"),
        ("A = 1  # tune: 1, 2\n# tune-if: 1 / (A - 1) > 0\n", 2, "cannot be evaluated"),
        ("A = 'x'  # tune: 'x', 'y'\n# tune-if: A * 1000000 != A\n", 2, "cannot be evaluated"),
        ("A = 'x'  # tune: 'x', 'y'\n# tune-if: A > 1\n", 2, "cannot be evaluated"),
        ("A = 1  # tune: 1, 2\n# tune-if: __import__('os').system('true') == 0\n", 2, "uses __import__"),
        ("A = 1  # tune: 1, 2\n# tune-if: A.real == 1\n", 2, "uses A.real"),
        ("A = 1  # tune: 1, 2\n# tune-if: 9 ** 9 ** 9 > A\n", 2, "uses 9 ** 9 ** 9"),
        ("A = 1  # tune: 1, 2\n# tune-if: max(A) > 0\n", 2, "uses max(A)"),
        ("A = 1  # tune: 1, 2\n# tune-if: [A] == [1]\n", 2, "uses [A]"),
        ("A = 1  # tune: 1, 2\n# tune-if: A" + " + A" * 5000 + " > 0\n", 2, "more than 500 characters"),
        ("A = (1  # tune: 1, 2\n", 1, "syntax error"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_line(source: str, line: int, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        parse(source)
    message = str(caught.value)
    assert message.startswith(f"line {line}: ") and words in message and "\n" not in message


def test_unknown_names_and_values_are_refused() -> None:
    source = "A = 1  # tune: 1, 2\n"
    with pytest.raises(BadInput, match="B is not declared"):
        apply_point(source, {"B": 1})
    with pytest.raises(BadInput, match="3 is not among"):
        freeze(source, {"A": 3})
