"""Texts in the language of a person."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from stepwell.errors import InvalidOption
from stepwell.fsm import FSM, Context, Flow, Form, Router, Translations, command, state, text
from stepwell.testing import Chat

GERMAN = """msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\nPlural-Forms: nplurals=2; plural=(n != 1);\\n"

msgid "Hello, {name}!"
msgstr "Hallo, {name}!"

msgid "Broken {name}"
msgstr "Kaputt {nmae}"

msgid "{count} item"
msgid_plural "{count} items"
msgstr[0] "{count} Ding"
msgstr[1] "{count} Dinge"

msgid "ask.title"
msgstr "Wie lautet der Titel?"

msgid "label.title"
msgstr "Titel"
"""
FLUENT = """
hello = Hallo, { $name }!
items = { $count ->
    [one] { $count } Ding
   *[other] { $count } Dinge
 }
ask-title = Wie lautet der Titel?
"""


@pytest.fixture(params=["gettext", "fluent"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(tmp_path: Path, kind: str) -> Path:
    if kind == "fluent":
        (tmp_path / "de.ftl").write_text(FLUENT)
        (tmp_path / "en").mkdir()
        (tmp_path / "en" / "main.ftl").write_text("hello = Hello, { $name }!\n")
    else:
        catalogue(tmp_path, "de", GERMAN)
    return tmp_path


def catalogue(folder: Path, language: str, text: str) -> None:
    """Write a catalogue of gettext, as ``pybabel compile`` does."""
    target = folder / language / "LC_MESSAGES"
    target.mkdir(parents=True)
    (target / "messages.po").write_text(text)
    pybabel = shutil.which("pybabel", path=sysconfig.get_path("scripts")) or "pybabel"
    subprocess.run([pybabel, "-q", "compile", "-d", str(folder), "-l", language], check=True)


class Trip(Flow, name="trip"):
    asked = state()
    default_state = asked


def bot(translations: Translations, kind: str) -> Router:
    router = Router(FSM("my_bot", storage="memory://", flows=[Trip]))
    router.middleware(translations)
    hello = "hello" if kind == "fluent" else "Hello, {name}!"

    @router.on(command("start"))
    async def start(ctx: Context) -> None:
        ctx.answer(translations.text(ctx, hello, name="Ann"))

    @router.on(command("items"))
    async def items(ctx: Context) -> None:
        ctx.answer(
            translations.plural(ctx, "items" if kind == "fluent" else "{count} item", "{count} items", int(ctx.args))
        )

    @router.on(command("language"))
    async def language(ctx: Context) -> None:
        translations.choose(ctx, ctx.args)

    @router.on(command("trip"))
    async def trip(ctx: Context) -> None:
        ctx.start_flow(Trip)

    return router


async def test_a_person_gets_texts_in_the_language_of_their_app_or_the_one_that_they_chose(
    folder: Path, kind: str
) -> None:
    chat = Chat(bot(Translations(folder), kind))
    german, french = chat.user(1, language_code="de-AT"), chat.user(2, language_code="fr")
    assert await german.send("/start") == ["Hallo, Ann!"]
    assert await french.send("/start") == ["Hello, Ann!"]
    await french.send("/language de")
    assert await french.send("/start") == ["Hallo, Ann!"]
    await german.send("/language en")
    assert await german.send("/start") == ["Hello, Ann!"]


async def test_the_form_for_a_number(folder: Path, kind: str) -> None:
    german = Chat(bot(Translations(folder), kind)).user(1, language_code="de")
    assert await german.send("/items 1") == ["1 Ding"]
    assert await german.send("/items 3") == ["3 Dinge"]


async def test_the_language_of_the_app_is_kept_for_timers_of_those_in_a_flow(folder: Path, kind: str) -> None:
    translations = Translations(folder)
    router = bot(translations, kind)
    german = Chat(router).user(1, language_code="de")
    assert router.fsm is not None
    await german.send("/start")
    async with router.fsm.conversation(key=(1, 1)) as ctx:
        assert translations.language_of(ctx) == "en"
    await german.send("/trip")
    async with router.fsm.conversation(key=(1, 1)) as ctx:
        assert translations.language_of(ctx) == "de"


async def test_the_texts_of_a_form_are_translated(folder: Path) -> None:
    @dataclass
    class Post:
        title: str

    translations = Translations(folder)
    posts = Form(Post, name="post", command="post", strings=translations.strings)
    router = Router(FSM("my_bot", storage="memory://", flows=[posts.flow]))
    router.include(posts.router)
    chat = Chat(router)
    assert await chat.user(1, language_code="de").send("/post") == ["Wie lautet der Titel?"]
    assert await chat.user(2).send("/post") == ["Title?"]


@pytest.mark.parametrize("kind", ["gettext"])
async def test_a_translation_with_a_wrong_field_is_not_used_and_logged(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    translations = Translations(folder)
    router = Router(FSM("my_bot", storage="memory://", flows=[]))

    @router.on(text())
    async def answer(ctx: Context) -> None:
        ctx.answer(translations.text(ctx, "Broken {name}", name="Ann"))

    with caplog.at_level(logging.WARNING):
        assert await Chat(router).user(1, language_code="de").send("hi") == ["Broken Ann"]
    assert "the translation 'Kaputt {nmae}' of 'Broken {name}' is not used" in caplog.text


def test_folders_without_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="there is no such folder"):
        Translations(tmp_path / "nowhere")
    with pytest.raises(InvalidOption, match=r"neither LANGUAGE/LC_MESSAGES/messages.mo.* nor LANGUAGE.ftl"):
        Translations(tmp_path)


async def test_a_language_without_texts_cannot_be_chosen(folder: Path, kind: str) -> None:
    router = bot(Translations(folder), kind)
    with pytest.raises(InvalidOption, match="there are no texts in 'xx'; there are de, en"):
        await Chat(router).send("/language xx")
