"""Only what lies between anchors can change, and a machine says so."""

from __future__ import annotations

import random

import pytest

from kernelpro.authors.anchors import Quote, locate_anchors
from kernelpro.records import BadInput

SOURCE = """import torch

BLOCK = 128


def kernel(x):
    y = x * 2
    z = y + 1
    return z


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return kernel(x)
"""
BODY = Quote("body", "y = x * 2", "z = y + 1")
SIZE = Quote("size", "BLOCK = 128")


def test_anchors_are_found_by_their_first_and_last_line() -> None:
    anchored = locate_anchors(SOURCE, [BODY, SIZE])
    assert [(span.name, anchored.text(span)) for span in anchored.spans] == [
        ("size", "BLOCK = 128\n"),
        ("body", "    y = x * 2\n    z = y + 1\n"),
    ]
    assert "<<<<<<< size\nBLOCK = 128\n>>>>>>> size\n" in anchored.marked_text()


def test_a_long_file_is_cut_away_from_its_anchors_never_in_them() -> None:
    lines = [f"line_{number} = {number}" for number in range(4000)]
    lines[3000:3003] = ["first = 1", "middle = 2", "last = 3"]
    anchored = locate_anchors(
        "\n".join(lines) + "\n", [Quote("a", "first = 1", "last = 3"), Quote("b", "line_3500 = 3500")]
    )
    shown = anchored.marked_text(2000)
    assert (
        "<<<<<<< a\nfirst = 1\nmiddle = 2\nlast = 3\n>>>>>>> a\n" in shown
        and "<<<<<<< b\nline_3500 = 3500\n>>>>>>> b\n" in shown
    )
    assert "line_2999 = 2999\n<<<<<<< a" in shown and ">>>>>>> b\nline_3501 = 3501\n" in shown
    assert shown.startswith("line_0 = 0\nline_1 = 1\n") and shown.count("lines left out]") == 3
    assert len(shown) < 2200 and anchored.marked_text(10**6) == anchored.marked_text()


def test_filling_changes_the_anchors_and_nothing_else() -> None:
    made = locate_anchors(SOURCE, [BODY, SIZE]).fill({"size": "BLOCK = 256", "body": "    z = 2 * x + 1\n"})
    assert made == SOURCE.replace("BLOCK = 128", "BLOCK = 256").replace(
        "    y = x * 2\n    z = y + 1\n", "    z = 2 * x + 1\n"
    )


@pytest.mark.parametrize(
    ("quotes", "complaint"),
    [
        ([Quote("a", "no such line")], "anchor a: no line equals 'no such line'"),
        (
            [Quote("a", "BLOCK = 128", "no such end")],
            "anchor a: no line after its first line equals 'no such end'",
        ),
        ([Quote("a", "y = x * 2", "return z"), Quote("b", "z = y + 1")], "anchors a and b overlap at line 8"),
        ([Quote("a", "BLOCK = 128"), Quote("a", "return z")], "same name, a"),
    ],
)
def test_a_quote_that_does_not_fit_is_explained(quotes: list[Quote], complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint.replace("*", r"\*").replace("+", r"\+")):
        locate_anchors(SOURCE, quotes)


def test_an_ambiguous_quote_names_the_lines() -> None:
    with pytest.raises(BadInput, match="occurs in lines 1, 3"):
        locate_anchors("a\nb\na\n", [Quote("x", "a")])


def test_missing_and_unknown_answers_are_named() -> None:
    anchored = locate_anchors(SOURCE, [BODY, SIZE])
    with pytest.raises(BadInput, match="no text for anchor body"):
        anchored.fill({"size": "BLOCK = 1"})
    with pytest.raises(BadInput, match="unknown anchor other"):
        anchored.fill({"size": "", "body": "", "other": ""})


def test_a_change_outside_is_refused_with_its_place() -> None:
    anchored = locate_anchors(SOURCE, [BODY])
    with pytest.raises(BadInput, match="line 3 is outside the anchors and became 'BLOCK = 64'"):
        anchored.check(SOURCE.replace("BLOCK = 128", "BLOCK = 64"))
    with pytest.raises(BadInput, match="return z"):
        anchored.check(SOURCE.replace("    return z\n", "    return z + 0\n"))
    with pytest.raises(BadInput):
        anchored.check(SOURCE + "print('more')\n")


def test_any_filled_file_passes_its_own_check_and_any_change_outside_fails() -> None:
    """Over random files, random anchors and random new texts."""
    dice = random.Random(7)
    for _ in range(300):
        lines = [f"line {i} {dice.random():.6f}" for i in range(dice.randint(4, 30))]
        source = "\n".join(lines) + "\n"
        starts = sorted(dice.sample(range(len(lines)), 2))
        quotes = [
            Quote("one", lines[starts[0]], lines[dice.randint(starts[0], starts[1] - 1)]),
            Quote("two", lines[starts[1]]),
        ]
        anchored = locate_anchors(source, quotes)
        texts = {
            name: "".join(f"new {dice.random():.6f}\n" for _ in range(dice.randint(0, 4)))
            for name in ("one", "two")
        }
        made = anchored.fill(texts)
        assert anchored.fill(anchored.check(made)) == made
        inside = {i for span in anchored.spans for i in range(span.start, span.end)}
        outside = [i for i in range(len(lines)) if i not in inside]
        if outside:
            victim = lines[dice.choice(outside)]
            with pytest.raises(BadInput):
                anchored.check(made.replace(victim, victim + " changed"))
            with pytest.raises(BadInput):
                anchored.check(made.replace(victim + "\n", ""))
