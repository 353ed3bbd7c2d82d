"""Texts in the language of a person, from catalogues of gettext or files of Fluent."""

from __future__ import annotations

import gettext
import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from stepwell._optional import require
from stepwell._secrets import quoted
from stepwell.errors import InvalidOption
from stepwell.fsm.conversation.context import Context

__all__ = ["Translations"]

logger: logging.Logger = logging.getLogger(__name__)

#: The fields of a profile: the language that a person has chosen, and the one that the app of the person has told.
CHOSEN, TOLD = "language", "language_code"


class Catalogue(Protocol):
    """The texts of one language."""

    def find(self, message: str, values: Mapping[str, Any], /) -> str | None:
        """Return a text with its values, or ``None`` if there is none."""
        ...

    def plural(self, one: str, many: str, count: int, /) -> str | None:
        """Return the form for a number, without its values."""
        ...


class Translations:
    """The texts of a bot in several languages.

    ``folder`` has ``de/LC_MESSAGES/messages.mo`` for gettext, or ``de.ftl`` or ``de/*.ftl`` for Fluent, which needs
    ``stepwell[fluent]``. The language of a person is the one that ``choose`` has stored in the profile, else that of
    their app, else ``default``. With ``router.middleware(translations)`` the language of the app is kept in the profile
    of those who are in a flow, because timers have no update to read it from.

    Example::

        from pathlib import Path

        Path("locales").mkdir()
        Path("locales/de.ftl").write_text("hello = Hallo, { $name }!")
        translations = Translations("locales", default="en")
        router.middleware(translations)
        _ = translations.text

        @router.on(command("start"))
        async def start(ctx):
            ctx.answer(_(ctx, "hello", name="Alice"))
    """

    def __init__(self, folder: str | Path, *, default: str = "en", domain: str = "messages") -> None:
        self.default = default
        self._catalogues: dict[str, Catalogue] = {}
        root = Path(folder)
        if not root.is_dir():
            raise InvalidOption(f"Translations({quoted(str(folder))}): there is no such folder")
        for path in sorted(root.glob(f"*/LC_MESSAGES/{domain}.mo")):
            with path.open("rb") as file:
                self._catalogues[_code(path.parts[-3])] = _Gettext(gettext.GNUTranslations(file))
        fluent: dict[str, list[Path]] = {}
        for path in sorted((*root.glob("*.ftl"), *root.glob("*/*.ftl"))):
            fluent.setdefault(path.stem if path.parent == root else path.parent.name, []).append(path)
        for language, paths in fluent.items():
            self._catalogues[_code(language)] = _Fluent(language, paths)
        if not self._catalogues:
            raise InvalidOption(
                f"Translations({quoted(str(folder))}): it has neither LANGUAGE/LC_MESSAGES/{domain}.mo, which msgfmt "
                "makes of a .po file, nor LANGUAGE.ftl"
            )

    @property
    def languages(self) -> list[str]:
        """The languages that there are, with the default one."""
        return sorted({*self._catalogues, _code(self.default)})

    def language_of(self, ctx: Context[Any]) -> str:
        """Return the language for a person: one of ``languages``."""
        user = ctx.update.user
        for wanted in (ctx.profile.get(CHOSEN), user and user.language_code, ctx.profile.get(TOLD)):
            if isinstance(wanted, str):
                code = _code(wanted)
                for each in (code, code.partition("_")[0]):
                    if each in self._catalogues or each == _code(self.default):
                        return each
        return _code(self.default)

    def choose(self, ctx: Context[Any], language: str) -> None:
        """Store the language that a person has chosen. Raises ``InvalidOption`` for one that there is not."""
        if _code(language) not in self.languages:
            raise InvalidOption(f"there are no texts in {quoted(language)}; there are {', '.join(self.languages)}")
        ctx.profile[CHOSEN] = _code(language)

    def text(self, ctx: Context[Any], message: str, /, **values: Any) -> str:
        """Return a text in the language of a person, with its values.

        ``message``: with gettext the text in the language of the program, whose fields are like ``{name}``; with Fluent
        the id of the message. If no catalogue has it, it is used itself.
        """
        found = self._found(ctx, message, values)
        return _filled(message, values) if found is None else found

    def plural(self, ctx: Context[Any], one: str, many: str, count: int, /, **values: Any) -> str:
        """Return the form of a text for a number, with its values and ``{count}``. With Fluent use ``text``."""
        catalogue = self._catalogues.get(self.language_of(ctx))
        found = None if catalogue is None else catalogue.plural(one, many, count)
        return _filled(found or (one if count == 1 else many), {"count": count, **values})

    def strings(self, ctx: Context[Any], string: str) -> str | None:
        """Return the replacement of a text of a form, by its id: ``Form(..., strings=translations.strings)``.

        Its fields, such as ``{label}``, are filled by the form. In Fluent the dots of ids are hyphens: ``ask-title``.
        """
        return self._found(ctx, string, None)

    async def __call__(self, ctx: Context[Any], handle: Callable[[], Awaitable[None]]) -> None:
        """Handle an update, and keep the language of the app of a person who is in a flow."""
        await handle()
        user = ctx.update.user
        code = None if user is None else user.language_code
        if code and ctx.flow is not None and ctx.profile.get(TOLD) != code:
            ctx.profile[TOLD] = code

    def _found(self, ctx: Context[Any], message: str, values: Mapping[str, Any] | None) -> str | None:
        language = self.language_of(ctx)
        for each in dict.fromkeys((language, _code(self.default))):
            catalogue = self._catalogues.get(each)
            found = None if catalogue is None else catalogue.find(message, _Kept() if values is None else values)
            if found is not None:
                return found
        return None


class _Kept(dict[str, Any]):
    """Values that leave the fields of a text as they are."""

    def __missing__(self, name: str) -> str:
        return f"{{{name}}}"


class _Gettext:
    def __init__(self, catalogue: gettext.GNUTranslations) -> None:
        self._catalogue = catalogue
        catalogue.add_fallback(_Missing())

    def find(self, message: str, values: Mapping[str, Any], /) -> str | None:
        found = self._catalogue.gettext(message)
        if found is _MISSING:
            return None
        try:
            return _filled(found, values)
        except InvalidOption as error:
            # A mistake in one language must not stop the handlers of its speakers.
            logger.warning("the translation %s of %s is not used: %s", quoted(found), quoted(message), error)
            return None

    def plural(self, one: str, many: str, count: int, /) -> str | None:
        found = self._catalogue.ngettext(one, many, count)
        return None if found is _MISSING else found


#: What a catalogue returns for a message that it has not.
_MISSING = str(object())


class _Missing(gettext.NullTranslations):
    def gettext(self, message: str) -> str:
        return _MISSING

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return _MISSING


class _Fluent:
    def __init__(self, language: str, paths: list[Path]) -> None:
        fluent = require("fluent.runtime", "fluent", distribution="fluent.runtime")
        self._bundle = fluent.FluentBundle([language.replace("_", "-")], use_isolating=False)
        for path in paths:
            self._bundle.add_resource(fluent.FluentResource(path.read_text("utf-8")))

    def find(self, message: str, values: Mapping[str, Any], /) -> str | None:
        name = message.replace(".", "-")
        if not self._bundle.has_message(name):
            return None
        found, errors = self._bundle.format_pattern(self._bundle.get_message(name).value, values)
        if errors:
            logger.warning("the message %s of Fluent has an error: %s", quoted(name), errors[0])
        return str(found)

    def plural(self, one: str, many: str, count: int, /) -> str | None:
        return self.find(one, {"count": count})


def _filled(text: str, values: Mapping[str, Any]) -> str:
    try:
        return text.format_map(values)
    except (LookupError, ValueError, AttributeError) as error:
        raise InvalidOption(f"the text {quoted(text)} cannot be filled: {type(error).__name__}: {error}") from error


def _code(language: str) -> str:
    return language.replace("-", "_").lower()
