"""The formatting of HTML, parsed as Telegram does."""

from __future__ import annotations

from html.parser import HTMLParser

from stepwell.botapi.formatting.entities import Entity, unreadable, utf16_length

__all__ = ["parse_html"]

_TAGS = {
    "b": "bold", "strong": "bold", "i": "italic", "em": "italic", "u": "underline", "ins": "underline",
    "s": "strikethrough", "strike": "strikethrough", "del": "strikethrough", "tg-spoiler": "spoiler",
    "span": "spoiler", "code": "code", "pre": "pre", "a": "text_link", "blockquote": "blockquote",
    "tg-emoji": "custom_emoji",
}  # fmt: skip


class _Html(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.entities: list[Entity] = []
        self.open: list[tuple[str, Entity]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in _TAGS or (tag == "span" and given.get("class") != "tg-spoiler"):
            raise unreadable(f'Unsupported start tag "{tag}"')
        entity: Entity = {"type": _TAGS[tag], "offset": utf16_length(self.text)}
        if tag == "a":
            entity["url"] = given.get("href") or ""
        elif tag == "tg-emoji":
            entity["custom_emoji_id"] = given.get("emoji-id") or ""
        elif tag == "blockquote" and "expandable" in given:
            entity["type"] = "expandable_blockquote"
        elif tag == "code" and self.open and self.open[-1][0] == "pre":
            # <pre><code class="language-python"> is one entity.
            self.open[-1][1]["language"] = (given.get("class") or "").removeprefix("language-")
        self.open.append((tag, entity))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open[-1][0] != tag:
            expected = self.open[-1][0] if self.open else "none"
            raise unreadable(f'Unmatched end tag, expected "</{expected}>", found "</{tag}>"')
        _, entity = self.open.pop()
        entity["length"] = utf16_length(self.text) - entity["offset"]
        inside_pre = tag == "code" and self.open and self.open[-1][0] == "pre"
        if entity["length"] and not inside_pre:
            self.entities.append(entity)

    def handle_data(self, data: str) -> None:
        self.text += data


def parse_html(text: str) -> tuple[str, list[Entity]]:
    """Return the plain text and its entities."""
    reader = _Html()
    try:
        reader.feed(text)
        reader.close()
    except AssertionError as error:
        # HTMLParser asserts on malformed declarations such as <![x.
        raise unreadable(str(error)) from None
    if reader.open:
        raise unreadable(f'Can\'t find end tag corresponding to start tag "{reader.open[-1][0]}"')
    return reader.text, reader.entities
