"""The settings of the site: ``make docs`` builds it into ``build/docs``."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_site"), str(DOCS.parent / "src")]

from stepwell import __version__  # noqa: E402

project = "Stepwell"
copyright = "the authors of Stepwell"  # noqa: A001 - the name that Sphinx reads
version = release = __version__

extensions = ["myst_parser", "pages"]
exclude_patterns = ["_site", "images"]

# Links between pages are those that GitHub understands: [text](page.md#heading).
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = "Stepwell"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"
highlight_language = "text"
