"""Formatted texts: HTML, MarkdownV2, Markdown, and entities that Telegram finds itself."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import pytest

from stepwell.botapi.errors import Refusal
from stepwell.botapi.formatting.texts import text_of
from stepwell.botapi.params import Params


def parsed(text: str, mode: str = "") -> tuple[str, list[tuple[Any, ...]]]:
    """Return the plain text, and of each entity its type, its part of the text, and other fields."""
    found = text_of(Params({"text": text, "parse_mode": mode}))
    units = found["text"].encode("utf-16-le")
    spans = []
    for entity in found.get("entities", []):
        entity = dict(entity)
        kind, offset, length = entity.pop("type"), entity.pop("offset"), entity.pop("length")
        spans.append((kind, units[offset * 2 : (offset + length) * 2].decode("utf-16-le"), *entity.values()))
    return found["text"], spans


@pytest.mark.parametrize(
    ("text", "plain", "spans"),
    [
        (">a\n>b", "a\nb", [("blockquote", "a\nb")]),
        (">a\n>b\nc", "a\nb\nc", [("blockquote", "a\nb")]),
        ("a\n>b", "a\nb", [("blockquote", "b")]),
        (">a\n>b||", "a\nb", [("expandable_blockquote", "a\nb")]),
        (">a||\nb", "a\nb", [("expandable_blockquote", "a")]),
        (">a\n**>b\n>c||", "a\nb\nc", [("blockquote", "a"), ("expandable_blockquote", "b\nc")]),
        (">*a*\n>||b||", "a\nb", [("blockquote", "a\nb"), ("bold", "a"), ("spoiler", "b")]),
        (">||a\n>b||", "a\nb", [("blockquote", "a\nb"), ("spoiler", "a\nb")]),
        ("\\>a", ">a", []),
        (">", "", None),
        ("`a\\`b` ```py\nx = '\\\\'```", "a`b x = '\\'", [("code", "a`b"), ("pre", "x = '\\'", "py")]),
        ("```\nx```", "x", [("pre", "x")]),
        ("[a](http://x/\\))", "a", [("text_link", "a", "http://x/)")]),
        ("[example\\.org]", "example.org", [("text_link", "example.org", "example.org")]),
        ("[a]", "a", []),
        ("![👍](tg://emoji?id=53)", "👍", [("custom_emoji", "👍", "53")]),
        ("*a _b __c__ ~d~_*", "a b c d",
         [("bold", "a b c d"), ("italic", "b c d"), ("underline", "c"), ("strikethrough", "d")]),
    ],
)  # fmt: skip
def test_markdown_v2(text: str, plain: str, spans: list[Any] | None) -> None:
    if spans is None:
        with pytest.raises(Refusal, match="message text is empty"):
            parsed(text, "MarkdownV2")
    else:
        assert parsed(text, "MarkdownV2") == (plain, spans)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a>b", "Character '>' is reserved and must be escaped with the preceding '\\'"),
        ("ä*b", "Can't find end of Bold entity at byte offset 2"),
        (">*a\nb*", "Can't find end of Bold entity at byte offset 1"),
        ("`a", "Can't find end of Code entity at byte offset 0"),
        ("```a", "Can't find end of PreCode entity at byte offset 0"),
        ("[a", "Can't find end of TextUrl entity at byte offset 0"),
        ("[a](b", "Can't find end of a URL at byte offset 4"),
        ("![a](http://x)", "Custom emoji entity must contain a tg://emoji URL"),
        ("a|b", "Character '|' is reserved"),
    ],
)
def test_invalid_markdown_v2_is_refused_with_telegrams_description(text: str, why: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parsed(text, "MarkdownV2")
    assert why in refusal.value.description
    assert refusal.value.description.startswith("Bad Request: can't parse entities: ")


@pytest.mark.parametrize(
    ("text", "plain", "spans"),
    [
        ("*a _b_*", "a _b_", [("bold", "a _b_")]),
        ("\\*a\\* b.", "*a* b.", []),
        ("[a](http://x) `b` ```py\nc```", "a b c", [("text_link", "a", "http://x"), ("code", "b"), ("pre", "c", "py")]),
        ("** a", "a", []),
    ],
)
def test_markdown(text: str, plain: str, spans: list[Any]) -> None:
    assert parsed(text, "Markdown") == (plain, spans)


def test_invalid_markdown_is_refused_with_telegrams_description() -> None:
    with pytest.raises(Refusal, match="Can't find end of the entity starting at byte offset 7"):
        parsed("ä some_name", "Markdown")


def test_html_quotes() -> None:
    text = "<blockquote>a</blockquote><blockquote expandable>b</blockquote>"
    assert parsed(text, "HTML") == ("ab", [("blockquote", "a"), ("expandable_blockquote", "b")])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ä<p>x</p>", 'Unsupported start tag "p" at byte offset 2'),
        ("<b>x", 'Can\'t find end tag corresponding to start tag "b"'),
        ("<b>x</i>", 'Unmatched end tag at byte offset 4, expected "</b>", found "</i>"'),
        ("x</b>", "Unexpected end tag at byte offset 1"),
        ("<b>x</b", "Unclosed end tag at byte offset 4"),
        ("a < b", 'Unsupported start tag "" at byte offset 2'),
        ("a <b", "Unclosed start tag at byte offset 2"),
        ('<a href="x', 'Unclosed start tag "a" at byte offset 0'),
        ("<a href=x_y>x</a>", "Unexpected end of name token at byte offset 8"),
        ("<a =x>x</a>", 'Empty attribute name in the tag "a" at byte offset 0'),
        ("<span>x</span>", 'Tag "span" must have class "tg-spoiler" at byte offset 0'),
        ('<tg-emoji emoji-id="x">x</tg-emoji>', "Invalid custom emoji identifier specified"),
    ],
)
def test_invalid_html_is_refused_with_telegrams_description(text: str, why: str) -> None:
    with pytest.raises(Refusal) as refusal:
        parsed(text, "HTML")
    assert refusal.value.description == f"Bad Request: can't parse entities: {why}"


def test_html_is_read_as_telegram_does() -> None:
    assert parsed("&lt;b&gt; &amp;&quot; &#33;&#x21; &copy; &", "HTML") == ('<b> &" !! &copy; &', [])
    code = '<pre><code class="language-py">x</code></pre><pre><code>y</code></pre>'
    assert parsed(code, "HTML")[1] == [("pre", "x", "py"), ("pre", "y")]
    link = "<a href='http://x?a=1&amp;b=2'>x</a> <a>http://y</a> <B>z</b >"
    assert parsed(link, "HTML")[1] == [
        ("text_link", "x", "http://x?a=1&b=2"), ("text_link", "http://y", "http://y"), ("bold", "z")]  # fmt: skip


def test_a_date_is_an_entity_in_html_and_markdown() -> None:
    expected = ("then", [("date_time", "then", 1647531900, "wDT")])
    assert parsed('<tg-time unix="1647531900" format="wDT">then</tg-time>', "HTML") == expected
    assert parsed("![then](tg://time?unix=1647531900&format=wDT)", "MarkdownV2") == expected


@pytest.mark.parametrize(
    ("entity", "why"),
    [
        ({"type": "bold", "offset": 1, "length": 5},
         "entity beginning at UTF-16 offset 1 ends after the end of the text at UTF-16 offset 6"),
        ({"type": "bold", "offset": 9, "length": 1},
         "entity begins after the end of the text at UTF-16 offset 9"),
        ({"type": "bold", "offset": -1, "length": 1}, "receive an entity with incorrect offset -1"),
        ({"type": "bold", "offset": 0, "length": -1}, "receive an entity with incorrect length -1"),
        ({"type": "bold", "offset": 0}, 'can\'t parse MessageEntity: Can\'t find field "length"'),
        ({"type": "loud", "offset": 0, "length": 1}, "can't parse MessageEntity: Unsupported type specified"),
    ],
)  # fmt: skip
def test_a_listed_entity_outside_the_text_is_refused_with_telegrams_description(
    entity: dict[str, Any], why: str
) -> None:
    with pytest.raises(Refusal) as refusal:
        text_of(Params({"text": "a👍b", "entities": [entity]}))
    assert refusal.value.description == f"Bad Request: {why}"


@pytest.mark.parametrize(
    ("name", "edits", "why"),
    [
        ("text", False, "message is too long"),
        ("text", True, "MESSAGE_TOO_LONG"),
        ("caption", False, "message caption is too long"),
        ("caption", True, "MEDIA_CAPTION_TOO_LONG"),
    ],
)
def test_a_text_that_is_too_long_is_counted_in_utf_16_and_named_differently_in_an_edit(
    name: str, why: str, *, edits: bool
) -> None:
    listed, limit = ("entities", 4096) if name == "text" else ("caption_entities", 1024)
    assert text_of(Params({name: "👍" * (limit // 2)}), name, listed, edits=edits)
    with pytest.raises(Refusal) as refusal:
        text_of(Params({name: "👍" * (limit // 2) + "x"}), name, listed, edits=edits)
    assert refusal.value.description == f"Bad Request: {why}"


@pytest.mark.parametrize("text", ["</b> a", "a </b>", "/usr/bin", "a/b", "http/b>"])
def test_a_tag_or_a_path_is_no_command(text: str) -> None:
    assert parsed(text)[1] == []


def test_links_are_found_outside_of_code_only() -> None:
    text = "<code>/a http://x.org</code> <a href='http://x'>/b</a> <b>/c</b>"
    assert parsed(text, "HTML")[1] == [
        ("code", "/a http://x.org"), ("text_link", "/b", "http://x"), ("bold", "/c"),
        ("bot_command", "/c")]  # fmt: skip


def test_spaces_around_a_text_are_removed() -> None:
    assert parsed("\n a <b>b </b>\n", "HTML") == ("a b", [("bold", "b")])
    assert parsed("<b> a</b> ", "HTML") == (" a", [("bold", " a")])
    assert parsed("a<i> </i>", "HTML") == ("a", [])


def test_a_parse_mode_takes_precedence_over_listed_entities() -> None:
    listed = [{"type": "italic", "offset": 0, "length": 1}]
    assert text_of(Params({"text": "<b>a</b>", "parse_mode": "HTML", "entities": listed})) == {
        "text": "a", "entities": [{"type": "bold", "offset": 0, "length": 1}]}  # fmt: skip
    assert text_of(Params({"text": "a", "entities": listed})) == {"text": "a", "entities": listed}


@pytest.mark.parametrize(("name", "limit"), [("text", 4096), ("caption", 1024)])
def test_the_limit_counts_the_parsed_text(name: str, limit: int) -> None:
    fields = {"text": "entities", "caption": "caption_entities"}
    assert (
        len(text_of(Params({name: f"<b>{'x' * limit}</b>", "parse_mode": "HTML"}), name, fields[name])[name]) == limit
    )
    with pytest.raises(Refusal, match="is too long"):
        text_of(Params({name: "x" * (limit + 1)}), name, fields[name])


@pytest.mark.parametrize("unit", ["*_~", "[a]", "**>a\n", "||", "<b>", "a@", "_"])
@pytest.mark.parametrize("mode", ["MarkdownV2", "Markdown", "HTML", ""])
def test_the_work_of_parsing_is_bounded(mode: str, unit: str) -> None:
    began = time.process_time()
    for size in (4096, 60_000):
        with contextlib.suppress(Refusal):
            parsed(unit * (size // len(unit)), mode)
    # Quadratic work takes a minute.
    assert time.process_time() - began < 10
