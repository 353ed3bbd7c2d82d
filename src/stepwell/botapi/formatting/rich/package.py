"""The package that reads Markdown. The only module that imports it."""

from __future__ import annotations

try:
    from markdown_it import MarkdownIt
except ModuleNotFoundError as _error:
    raise ImportError("rich messages in Markdown need markdown-it-py; run: pip install 'stepwell[botapi]'") from _error

__all__ = ["MarkdownIt"]
