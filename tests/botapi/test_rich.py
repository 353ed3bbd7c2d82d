"""Rich messages: their blocks, from JSON, HTML and Markdown, and how they are refused."""

from __future__ import annotations

import time
from typing import Any

import pytest
from aiogram.types import Message

from stepwell.botapi import Person
from stepwell.botapi.formatting.rich.html import parse_rich_html
from stepwell.botapi.formatting.rich.markdown import rich_markdown_to_html
from tests.botapi.conftest import Client

ANSWER = """# Plan

Do **this** first, see https://x.org or @abc.

- [x] done
- [ ] to do

1. one
2. two

| Name | Value |
|:-----|------:|
| a | `b` |

> A quote

```python
print(1 < 2)
```

$$E = mc^2$$

---

==Marked==, ||hidden||, ~~gone~~ and $x^2$ for $5 or $6.
"""


async def sent(call: Client, **rich: Any) -> list[dict[str, Any]]:
    message = await call("sendRichMessage", chat_id=42, rich_message=rich)
    assert isinstance(message, dict), message
    # The framework reads all of it.
    assert Message.model_validate(message).rich_message is not None
    blocks: list[dict[str, Any]] = message["rich_message"]["blocks"]
    return blocks


async def test_the_markdown_of_a_model_becomes_blocks(call: Client, chat: Person) -> None:
    blocks = await sent(call, markdown=ANSWER)
    assert [block["type"] for block in blocks] == [
        "heading", "paragraph", "list", "list", "table", "blockquote", "pre", "mathematical_expression", "divider",
        "paragraph",
    ]  # fmt: skip
    assert blocks[0] == {"type": "heading", "text": "Plan", "size": 1}
    assert blocks[1]["text"] == [
        "Do ", {"type": "bold", "text": "this"}, " first, see ",
        {"type": "url", "text": "https://x.org", "url": "https://x.org"}, " or ",
        {"type": "mention", "text": "@abc", "username": "abc"}, ".",
    ]  # fmt: skip
    assert [(item["label"], item.get("is_checked")) for item in blocks[2]["items"]] == [("•", True), ("•", None)]
    assert [item["label"] for item in blocks[3]["items"]] == ["1.", "2."]
    header, row = blocks[4]["cells"]
    assert [(cell["is_header"], cell["align"]) for cell in header] == [(True, "left"), (True, "right")]
    assert row[1]["text"] == {"type": "code", "text": "b"}
    assert blocks[6] == {"type": "pre", "text": "print(1 < 2)", "language": "python"}
    assert blocks[7]["expression"] == "E = mc^2"
    kinds = [part["type"] for part in blocks[9]["text"] if isinstance(part, dict)]
    assert kinds == ["marked", "spoiler", "strikethrough", "mathematical_expression"]
    assert blocks[9]["text"][-1] == " for $5 or $6."
    assert await chat.answer() == (
        "Plan\nDo this first, see https://x.org or @abc.\n☑ done\n☐ to do\n1. one\n2. two\nName | Value\na | b\n"
        "A quote\nprint(1 < 2)\nE = mc^2\nMarked, hidden, gone and x^2 for $5 or $6.")  # fmt: skip


async def test_html_becomes_blocks(call: Client, chat: Person) -> None:
    html = (
        '<h2>A</h2><p>b <i>c</i><br>\n d</p><ol start="3" type="a"><li>x</li><li value="9">y</li></ol>'
        "<details open><summary>Sum</summary><p>in</p></details><aside>q<cite>me</cite></aside>"
        '<a name="end"></a><p><a href="#end">down</a> <a href="mailto:a@b.org">mail</a></p><footer>f</footer>'
        '<figure><img src="https://x.org/a.jpg"><figcaption>Cap</figcaption></figure><tg-map lat="1.5" long="2"/>'
    )
    blocks = await sent(call, html=html, skip_entity_detection=True)
    assert blocks[0] == {"type": "heading", "text": "A", "size": 2}
    assert blocks[1]["text"] == ["b ", {"type": "italic", "text": "c"}, "\nd"]
    assert [item["label"] for item in blocks[2]["items"]] == ["c.", "i."]
    assert blocks[3] == {
        "type": "details", "summary": "Sum", "blocks": [{"type": "paragraph", "text": "in"}], "is_open": True
    }  # fmt: skip
    assert blocks[4] == {"type": "pullquote", "text": "q", "credit": "me"}
    assert blocks[5] == {"type": "anchor", "name": "end"}
    assert [part["type"] for part in blocks[6]["text"] if part != " "] == ["anchor_link", "email_address"]
    assert blocks[7] == {"type": "footer", "text": "f"}
    assert (blocks[8]["type"], blocks[8]["caption"]) == ("photo", {"text": "Cap"})
    assert blocks[8]["photo"][0]["width"] == 1
    assert blocks[9]["location"] == {"latitude": 1.5, "longitude": 2.0}


async def test_blocks_are_taken_as_they_are_given_and_win_over_markdown(call: Client, chat: Person) -> None:
    button = {"text": "Yes", "callback_data": "y"}
    given: list[dict[str, Any]] = [
        {"type": "paragraph", "text": ["a", {"type": "bold", "text": ["b", {"type": "code", "text": "@c"}]}]},
        {"type": "buttons", "buttons": [button]},
        {"type": "collage", "blocks": [{"type": "paragraph", "text": "x"}], "caption": {"text": "Two"}},
    ]
    assert await sent(call, blocks=given, markdown="other") == given
    assert await chat.answer() == "ab@c\n[Yes]\nx\nTwo"


async def test_a_button_inside_a_rich_message_is_pressed_like_one_below_it(call: Client, chat: Person) -> None:
    inside = {"type": "button", "button": {"text": {"type": "bold", "text": "No"}, "callback_data": "n"}}
    row = {"type": "buttons", "buttons": [{"text": "Yes", "callback_data": "y"}]}
    await sent(
        call,
        blocks=[
            {"type": "paragraph", "text": ["Sure? ", inside]},
            {"type": "details", "summary": "More", "blocks": [row]},
        ],
    )
    assert chat.buttons == ["No", "Yes"]
    await chat.press("Yes")
    await chat.press("No")
    assert [each["callback_query"]["data"] for each in await call("getUpdates")] == ["y", "n"]


async def test_files_are_named_by_a_link_to_the_listed_media(call: Client, chat: Person) -> None:
    media = [{"id": "cat", "media": {"type": "photo", "media": "https://x.org/cat.png", "has_spoiler": True}}]
    blocks = await sent(call, markdown="Look:\n\n![](tg://photo?id=cat)", media=media)
    assert [block["type"] for block in blocks] == ["paragraph", "photo"]
    missing = {"chat_id": 42, "rich_message": {"markdown": "![](tg://photo?id=dog)"}}
    assert await call("sendRichMessage", **missing) == (400, "Bad Request: media not found")


async def test_a_text_becomes_rich_by_an_edit_and_back(call: Client, chat: Person) -> None:
    number = (await call("sendMessage", chat_id=42, text="plain"))["message_id"]
    rich = await call("editMessageText", chat_id=42, message_id=number, rich_message={"markdown": "# Rich"})
    assert ("text" in rich, rich["rich_message"]["blocks"][0]["type"]) == (False, "heading")
    refused = await call("editMessageText", chat_id=42, message_id=number, rich_message={"markdown": "# Rich"})
    assert refused[1].startswith("Bad Request: message is not modified")
    text = await call("editMessageText", chat_id=42, message_id=number, text="plain")
    assert (text["text"], "rich_message" in text) == ("plain", False)


async def test_a_rich_draft_may_show_that_the_bot_thinks_and_a_message_may_not(call: Client, chat: Person) -> None:
    rich = {"html": "<tg-thinking>Reading the page</tg-thinking>"}
    assert await call("sendRichMessageDraft", chat_id=42, draft_id=5, rich_message=rich, can_stop=True) is True
    assert await chat.preview() == "Reading the page"
    assert await call("sendRichMessage", chat_id=42, rich_message=rich) == (
        400, "Bad Request: can't parse InputRichBlock: type \"thinking\" is unsupported")  # fmt: skip
    await chat.stop()
    assert "stopped_message_generation" in chat.updates[-1]


PARAGRAPH = {"type": "paragraph", "text": "x"}


def nested(depth: int) -> dict[str, Any]:
    return PARAGRAPH if depth == 1 else {"type": "blockquote", "blocks": [nested(depth - 1)]}


@pytest.mark.parametrize(
    ("rich", "why"),
    [
        (None, "rich message must be non-empty"),
        ({}, "rich message must be non-empty"),
        ({"markdown": " "}, "RICH_MESSAGE_EMPTY"),
        ({"blocks": []}, "RICH_MESSAGE_EMPTY"),
        ({"html": "x" * 32_769}, "RICH_MESSAGE_TEXT_TOO_LONG"),
        ({"blocks": [PARAGRAPH] * 501}, "RICH_MESSAGE_BLOCKS_TOO_MANY"),
        ({"html": '<img src="http://x.org/a.jpg">' * 51}, "RICH_MESSAGE_MEDIA_TOO_MANY"),
        ({"blocks": [nested(17)]}, "RICH_MESSAGE_TOO_LARGE"),
        ({"blocks": [{"text": "x"}]}, 'can\'t parse InputRichBlock: Can\'t find field "type"'),
        ({"blocks": [{"type": "code", "text": "x"}]}, 'can\'t parse InputRichBlock: type "code" is unsupported'),
        ({"blocks": [{"type": "paragraph"}]}, 'can\'t parse InputRichBlock: Can\'t find field "text"'),
        ({"blocks": ["x"]}, "object expected as InputRichMessageBlock"),
        ({"blocks": [{"type": "heading", "text": "x", "size": 7}]}, "invalid section heading size specified"),
        ({"blocks": [{"type": "list", "items": []}]}, "list must be non-empty"),
        ({"blocks": [{"type": "buttons", "buttons": []}]}, "button row must be non-empty"),
        ({"blocks": [{"type": "paragraph", "text": 5}]}, "invalid rich text specified"),
        ({"blocks": [{"type": "paragraph", "text": {"type": "loud", "text": "x"}}]}, "unsupported rich text type"),
    ],
)  # fmt: skip
async def test_a_rich_message_is_refused_with_telegrams_description(
    call: Client, chat: Person, rich: Any, why: str
) -> None:
    assert await call("sendRichMessage", chat_id=42, rich_message=rich) == (400, f"Bad Request: {why}")
    assert chat.messages == []


async def test_the_limits_themselves_are_accepted(call: Client, chat: Person) -> None:
    assert len(await sent(call, blocks=[PARAGRAPH] * 500)) == 500
    await sent(call, html="x" * 32_768)
    await sent(call, blocks=[nested(15)])


@pytest.mark.parametrize("text", ["<b><i>half", "</p>", "<unknown>x</unknown>", "<![x", "| a |\n|--|\n| b", "```py\nx"])
async def test_half_a_message_can_be_shown_while_it_is_written(call: Client, chat: Person, text: str) -> None:
    for kind in ("html", "markdown"):
        await call("sendRichMessageDraft", chat_id=42, draft_id=1, rich_message={kind: f"x {text}"})
        assert (await chat.preview()).startswith("x")


@pytest.mark.parametrize("unit", ["*_~", "[a](", "==", "||", "$x", "<b>", "<", "> ", "- ", "`", "| a "])
def test_the_work_of_parsing_is_bounded(unit: str) -> None:
    began = time.process_time()
    text = unit * (60_000 // len(unit))
    parse_rich_html(rich_markdown_to_html(text))
    parse_rich_html(text)
    # Quadratic work takes a minute.
    assert time.process_time() - began < 10
