"""Who may do what in the inspector: people have the role of a viewer, an operator or an admin."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from stepwell.engine import quoted
from stepwell.errors import InvalidOption
from stepwell.options import check_choice
from stepwell.web.auth import GROUPS, SHORTEST_TOKEN, USER, TrustedProxy

__all__ = ["OPERATOR_ACTIONS", "ROLES", "Access", "AccessFile", "Person", "Role", "read_access"]

Role: TypeAlias = Literal["viewer", "operator", "admin"]
#: From the least to the most.
ROLES: Final[tuple[Role, ...]] = ("viewer", "operator", "admin")
#: The edits of operators. All others need an admin, also those that are added and forgotten here.
OPERATOR_ACTIONS: Final = frozenset(
    {
        "answer", "complete", "decide", "fork", "pause", "reply", "reply_turn", "resend", "retry", "retry_at",
        "retry_turns", "retry_updates", "send_now", "stop_turn",
    }
)  # fmt: skip


class Person(NamedTuple):
    """Who makes a request."""

    #: For the audit.
    name: str
    role: Role

    def may(self, action: str) -> bool:
        """Return whether the person may make an edit."""
        return self.role == "admin" or (self.role == "operator" and action in OPERATOR_ACTIONS)


class Access:
    """The tokens of people, and the roles of people and of groups that a proxy names."""

    def __init__(
        self,
        tokens: Mapping[str, str],
        roles: Mapping[str, Role] | None,
        proxy: TrustedProxy | None,
        *,
        allow_write: bool,
        name: str,
    ) -> None:
        _check_tokens(tokens)
        for person, role in (roles or {}).items():
            check_choice(role, ROLES, f"the role of {quoted(person)} must be one of {', '.join(ROLES)}, not {{}}")
        if proxy is None and (unknown := sorted(set(roles or {}) - set(tokens))):
            raise InvalidOption(f"roles has {quoted(unknown[0])}, who has no token; token= has {_names(tokens)}")
        self.tokens: dict[str, str] = dict(tokens)
        self.proxy: TrustedProxy | None = proxy
        self._roles = roles
        self._default: Role = "admin" if allow_write else "viewer"
        self._name = name

    @property
    def has_writers(self) -> bool:
        """Whether anybody may edit."""
        return self._default == "admin" or any(role != "viewer" for role in (self._roles or {}).values())

    def person(self, scope: Mapping[str, Any]) -> Person | None:
        """Return who makes a request; ``None`` for somebody whom the proxy names and who has no role."""
        name, groups = scope.get(USER, ""), scope.get(GROUPS)
        if groups is None:
            role = self._default if self._roles is None else self._roles.get(name, "viewer")
            return Person(name or self._name, role)
        if self._roles is not None:
            found = [self._roles[each] for each in (name, *groups) if each in self._roles]
        elif self.proxy is not None and self.proxy.groups is None:
            found = [self._default]
        else:
            found = [role for role in ROLES if role in groups]
        return Person(name, max(found, key=ROLES.index)) if found else None


class AccessFile(NamedTuple):
    """The people and the proxy of a file for ``stepwell inspect --access``."""

    tokens: dict[str, str]
    roles: dict[str, Role]
    proxy: TrustedProxy | None


def read_access(path: str) -> AccessFile:
    """Read a file with people and a proxy. No error has a token. Raises ``InvalidOption``."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidOption(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        # The text of the error may have a part of a token.
        raise InvalidOption(f"{path} is not TOML; see the page about the inspector for an example") from None
    _check_table(path, "the file", found, {"people", "roles", "proxy"})
    tokens: dict[str, str] = {}
    roles: dict[str, Any] = dict(_check_table(path, "[roles]", found.get("roles", {})))
    for name, given in _check_table(path, "[people]", found.get("people", {})).items():
        person = _check_table(path, f"[people.{name}]", given, {"token", "role"})
        if not isinstance(person.get("token"), str):
            raise InvalidOption(f"[people.{name}] of {path} needs a token")
        tokens[name], roles[name] = person["token"], person.get("role", "viewer")
    proxy = None
    if "proxy" in found:
        settings = _check_table(path, "[proxy]", found["proxy"], {"secret", "user", "groups", "secret_header"})
        if not isinstance(settings.get("secret"), str) or not all(isinstance(each, str) for each in settings.values()):
            raise InvalidOption(f"[proxy] of {path} needs a secret, and all its settings are texts")
        proxy = TrustedProxy(**settings)
    if not tokens and proxy is None:
        raise InvalidOption(f"{path} lets nobody in; add [people.NAME] with a token, or [proxy]")
    return AccessFile(tokens, roles, proxy)


def _check_table(path: str, what: str, found: Any, known: Collection[str] | None = None) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise InvalidOption(f"{what} of {path} must be a table")
    unknown = [] if known is None else sorted(set(found) - set(known))
    if unknown:
        raise InvalidOption(f"{what} of {path} has {quoted(unknown[0])}; it may have {', '.join(sorted(known or ()))}")
    return found


def _check_tokens(tokens: Mapping[str, str]) -> None:
    for name, token in tokens.items():
        if not name:
            raise InvalidOption("a token has no name; writes are logged with it")
        if len(token) < SHORTEST_TOKEN:
            raise InvalidOption(f"the token has {len(token)} characters; give at least {SHORTEST_TOKEN} random ones")
    if len(set(tokens.values())) < len(tokens):
        raise InvalidOption("two names have the same token; give each person another one")


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(quoted, names)) or "none"
