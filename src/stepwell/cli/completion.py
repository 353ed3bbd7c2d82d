"""``stepwell completion``: print a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from stepwell.cli.command import Commands

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "completion",
        help="print the completion script of a shell",
        description="Print a script that completes commands and options.",
        epilog='example:\n  eval "$(stepwell completion bash)"     # in ~/.bashrc',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    parser.set_defaults(action=lambda options: _print(options.shell, commands.choices))


def _print(shell: str, commands: dict[str, argparse.ArgumentParser]) -> int:
    print("\n".join(_fish(commands) if shell == "fish" else _bash(commands, zsh=shell == "zsh")))
    return 0


def _options(parser: argparse.ArgumentParser) -> list[str]:
    return [option for action in parser._actions for option in action.option_strings if option.startswith("--")]


def _bash(commands: dict[str, argparse.ArgumentParser], *, zsh: bool) -> Iterator[str]:
    if zsh:
        yield "autoload -U +X compinit && compinit"
        yield "autoload -U +X bashcompinit && bashcompinit"
    yield "_stepwell() {"
    yield '  local current="${COMP_WORDS[COMP_CWORD]}" words="--help --version"'
    yield '  case "${COMP_WORDS[1]}" in'
    for name, parser in commands.items():
        yield f"    {name}) words='{' '.join(_options(parser))}' ;;"
    yield "  esac"
    yield '  if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f"    words='{' '.join(commands)} --help --version'"
    yield '  elif [[ "$current" != -* ]]; then'
    yield '    COMPREPLY=($(compgen -f -- "$current")); return'
    yield "  fi"
    yield '  COMPREPLY=($(compgen -W "$words" -- "$current"))'
    yield "}"
    yield "complete -o filenames -F _stepwell stepwell"


def _fish(commands: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    for name, parser in commands.items():
        about = (parser.description or "").split(";")[0].replace("'", "\\'").rstrip(".")
        yield f"complete -c stepwell -n __fish_use_subcommand -a {name} -d '{about}'"
        for option in _options(parser):
            yield f"complete -c stepwell -n '__fish_seen_subcommand_from {name}' -l {option[2:]}"
