"""Texts with escaped values, and links with payloads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.errors import InvalidOption
from stepwell.fsm import decode_payload, encode_payload, html, md, start_link
from stepwell.texts import read_formatting

#: Texts that Telegram leaves as they are: it drops spaces at the ends.
plain = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=40)


@given(plain)
def test_an_escaped_value_is_shown_as_it_is(value: str) -> None:
    for text, mode in ((html("<b>{value}</b>", value=value), "HTML"), (md("*{value}*", value=value), "MarkdownV2")):
        read = read_formatting(text, mode)
        assert read is not None
        assert (read[0], [each["type"] for each in read[1]]) == (value, ["bold"])


def test_fields_have_formats_and_safe_parts_are_not_escaped() -> None:
    link = html('<a href="{url}">{name}</a>', url='https://example.org/?a=1&b="2"', name="<Ann>")
    assert html("{price:.2f} {link:safe}", price=1.5, link=link) == (
        '1.50 <a href="https://example.org/?a=1&amp;b=&quot;2&quot;">&lt;Ann&gt;</a>'
    )


def test_a_template_string_is_taken_as_well() -> None:
    class Template(list[Any]):
        interpolations = ()

    name = SimpleNamespace(value="<Ann>", conversion=None, format_spec="")
    assert html(Template(["<b>", name, "</b>"])) == "<b>&lt;Ann&gt;</b>"


def test_a_missing_value_is_named() -> None:
    with pytest.raises(InvalidOption, match="the field 'name', which is not passed; write name="):
        html("{name}")
    with pytest.raises(InvalidOption, match="pass a text with fields"):
        html(3)


@given(st.text(max_size=48))
def test_any_text_is_a_payload_when_it_is_encoded(text: str) -> None:
    payload = encode_payload(text)
    assert (decode_payload(payload) or "") == text
    if len(payload) <= 64:
        assert start_link("@my_bot", payload).startswith("https://t.me/my_bot")


@given(st.text(max_size=80))
def test_what_others_wrote_is_decoded_to_nothing_or_a_text(payload: str) -> None:
    assert isinstance(decode_payload(payload), str | None)


def test_links_and_what_they_refuse() -> None:
    assert start_link("my_bot") == "https://t.me/my_bot"
    assert start_link("my_bot", "a-1", to="startgroup") == "https://t.me/my_bot?startgroup=a-1"
    assert start_link("my_bot", to="startapp") == "https://t.me/my_bot?startapp="
    with pytest.raises(InvalidOption, match=r"other characters than .* pass encode_payload"):
        start_link("my_bot", "a b")
    with pytest.raises(InvalidOption, match="has 65 characters, and Telegram accepts 64"):
        start_link("my_bot", "a" * 65)
    with pytest.raises(InvalidOption, match="pass the username of the bot"):
        start_link("my bot")
    with pytest.raises(InvalidOption, match="to= is 'start'"):
        start_link("my_bot", to="stop")  # type: ignore[arg-type]
