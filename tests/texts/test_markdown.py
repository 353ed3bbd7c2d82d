"""The Markdown of language models arrives as formatted text."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from stepwell.botapi import check_call
from stepwell.texts import FormattedText, read_formatting, units

#: Answers as language models write them, by name. Some end in the middle, as they do while they are streamed.
ANSWERS = dict(
    part.split("\n", 1)
    for part in Path(__file__).with_name("model_answers.md").read_text(encoding="utf-8").split("%% ")[1:]
)


def read(text: str) -> FormattedText:
    found = read_formatting(text, "CommonMark")
    assert found is not None
    return found


def covered(read: FormattedText) -> list[tuple[str, str]]:
    encoded = read.text.encode("utf-16-le")
    spans = [(each["type"], 2 * each["offset"], 2 * each["length"]) for each in read.entities]
    return [(kind, encoded[start : start + length].decode("utf-16-le")) for kind, start, length in spans]


def check(found: FormattedText) -> None:
    """Fail unless Telegram takes the text with these entities."""
    for each in found.entities:
        assert 0 <= each["offset"] < each["offset"] + each["length"] <= units(found.text)
    if found.text.strip():
        check_call({"method": "sendMessage", "chat_id": 1, "text": found.text, "entities": found.entities})


@pytest.mark.parametrize("name", ANSWERS)
def test_every_beginning_of_an_answer_is_a_valid_text(name: str) -> None:
    answer = ANSWERS[name]
    for end in range(0, len(answer) + 1, 3):
        check(read(answer[:end]))


@pytest.mark.parametrize("name", ANSWERS)
def test_no_word_of_an_answer_is_lost(name: str) -> None:
    answer = ANSWERS[name].rstrip()
    found = read(answer)
    links = "".join(str(each.get("url", "")) + str(each.get("language", "")) for each in found.entities)
    if "latex" in name:
        # Formulas are written with the characters of Unicode.
        return
    words = re.findall(r"\w{2,}", re.sub(r'"Cat"|<br>|\|[-:|]+\|?', " ", answer))
    assert [word for word in words if word.strip("_") not in found.text + links] == []


def test_headings_lists_and_code_look_like_themselves() -> None:
    found = read(ANSWERS["heading and list"])
    assert found.text.startswith("How to install\n\nFollow these steps:\n\n1. Install Python 3.11 or newer.\n2. ")
    assert "  • On Linux: python3 -m venv .venv" in found.text
    assert ("bold", "How to install") in covered(found)
    assert ("code", "python3 -m venv .venv") in covered(found)


def test_a_fence_keeps_its_language_and_its_characters() -> None:
    found = read(ANSWERS["python fence"])
    fence = next(each for each in found.entities if each["type"] == "pre")
    assert fence["language"] == "python"
    assert ("code", 'greet("World")') in covered(found)
    assert "# <b>not bold</b> & *not italic*" in found.text


def test_a_fence_that_is_not_closed_yet_is_code() -> None:
    assert covered(read(ANSWERS["unbalanced fence while streaming"])) == [
        ("pre", "import asyncio\n\nasync def main():")
    ]


def test_text_after_a_block_of_code_in_a_list_begins_a_line() -> None:
    found = read(ANSWERS["list with paragraphs and code"])
    assert found.text == "1. First, do this:\nrm -rf build\nand wait.\n2. Then that."
    assert covered(found) == [("pre", "rm -rf build"), ("italic", "that")]


def test_a_table_is_aligned_in_a_block_of_code() -> None:
    kind, table = covered(read(ANSWERS["table"]))[0]
    assert kind == "pre"
    assert len({line.index("|") for line in table.splitlines() if "|" in line}) == 1


def test_tags_are_text_and_breaks_are_lines() -> None:
    found = read(ANSWERS["html in the text"])
    assert found.text == "Line one\nline two with <b>html bold</b> and <script>alert(1)</script>."
    assert read("<div>\n\nText\n\n</div>").text.split() == ["<div>", "Text", "</div>"]


def test_quotes_do_not_contain_quotes() -> None:
    found = read(ANSWERS["nested quote"])
    assert [kind for kind, _ in covered(found)] == ["blockquote"]


def test_a_text_that_no_parser_can_read_is_sent_as_it_is() -> None:
    damaged: Any = "half \ud83d **of** an emoji <b>"
    assert read(damaged) == (damaged, [])
