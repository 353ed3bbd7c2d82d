"""Long texts are split into pieces that Telegram takes and that say the same."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.botapi import check_call
from stepwell.texts import MAX_TEXT, split, units

WORDS = st.sampled_from(
    ["a", "word", "ünïcödé", "🙂", "👨‍👩‍👧", "x" * 70, "👍🏽", "\n", "\n\n", " ", "\n  \n", "e\u0301", "\U0010ffff" * 9]
)
KINDS = ("bold", "pre", "text_link", "custom_emoji", "mention", "blockquote")


@st.composite
def formatted(draw: st.DrawFn) -> tuple[str, list[dict[str, Any]]]:
    text = "".join(draw(st.lists(WORDS, max_size=120)))
    starts = [units(text[:at]) for at in range(len(text) + 1)]
    entities = []
    for _ in range(draw(st.integers(0, 6))):
        first, last = sorted((draw(st.integers(0, len(text))), draw(st.integers(0, len(text)))))
        if first < last:
            kind = draw(st.sampled_from(KINDS))
            entities.append({"type": kind, "offset": starts[first], "length": starts[last] - starts[first]})
    return text, entities


@given(formatted(), st.integers(16, 120), st.integers(16, 60))
@settings(max_examples=300, deadline=None)
def test_the_pieces_joined_are_the_text_and_each_is_within_its_limit(
    given_text: tuple[str, list[dict[str, Any]]], limit: int, first: int
) -> None:
    text, entities = given_text
    pieces = split(text, entities, limit=limit, first=first)
    assert "".join(piece for piece, _ in pieces) == text
    for number, (piece, _) in enumerate(pieces):
        assert units(piece) <= (limit if number else first)
        assert piece or len(pieces) == 1
        # A half of a surrogate pair has no UTF-8.
        piece.encode()


@given(formatted(), st.integers(16, 120))
@settings(max_examples=300, deadline=None)
def test_entities_of_pieces_cover_what_they_covered_in_the_text(
    given_text: tuple[str, list[dict[str, Any]]], limit: int
) -> None:
    text, entities = given_text
    covered: dict[str, set[int]] = {kind: set() for kind in KINDS}
    start = 0
    for piece, here in split(text, entities, limit=limit):
        size = units(piece)
        for each in here:
            assert 0 <= each["offset"] < each["offset"] + each["length"] <= size
            # An entity begins and ends between characters.
            encoded = piece.encode("utf-16-le")
            encoded[2 * each["offset"] : 2 * (each["offset"] + each["length"])].decode("utf-16-le")
            covered[each["type"]].update(range(start + each["offset"], start + each["offset"] + each["length"]))
        start += size
    for kind in ("bold", "pre", "text_link", "blockquote"):
        spans = [(each["offset"], each["length"]) for each in entities if each["type"] == kind]
        wanted = {at for offset, length in spans for at in range(offset, offset + length)}
        assert covered[kind] == wanted


def test_a_text_is_cut_after_a_paragraph_before_it_is_cut_after_a_line_or_a_word() -> None:
    text = "one two\nthree four\n\nfive six\nseven eight nine ten"
    pieces = [piece for piece, _ in split(text, limit=32)]
    assert pieces == ["one two\nthree four\n\n", "five six\nseven eight nine ten"]
    pieces = [piece for piece, _ in split(text[:18] + " five six", limit=16)]
    assert pieces == ["one two\n", "three four five ", "six"]


def test_a_block_of_code_is_kept_whole_if_it_fits_and_opened_again_if_it_does_not() -> None:
    code = "".join(f"line {number}\n" for number in range(8))
    entity = {"type": "pre", "offset": 34, "length": len(code), "language": "python"}
    text = "x" * 33 + "\n" + code + "after"
    first, second = split(text, [entity], limit=64)
    assert first == ("x" * 33 + "\n", [])
    assert second[1] == [{**entity, "offset": 0}]
    pieces = split(text, [entity], limit=34)
    assert [each[1] for each in pieces][1:3] == [
        [{"type": "pre", "offset": 0, "length": 28, "language": "python"}],
        [{"type": "pre", "offset": 0, "length": 28, "language": "python"}],
    ]
    assert all(piece.endswith("\n") for piece, _ in pieces[:-1])


def test_an_emoji_of_several_characters_is_not_cut() -> None:
    family = "👨‍👩‍👧"
    for before in range(20):
        for piece, _ in split("x" * before + family * 12, limit=32):
            assert not piece.startswith("\u200d") and not piece.endswith("\u200d")


def test_a_mention_is_not_cut() -> None:
    entity = {"type": "mention", "offset": 12, "length": 10}
    assert split("x" * 12 + "@longername" + "y" * 5, [entity], limit=16)[0] == ("x" * 12, [])


def test_ten_thousand_pieces_take_time_that_grows_with_the_text() -> None:
    pieces = split("word " * 200_000)
    assert max(units(piece) for piece, _ in pieces) <= MAX_TEXT
    check_call({"method": "sendMessage", "chat_id": 1, "text": pieces[0][0]})
