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

extensions = ["myst_parser", "sphinx.ext.autodoc", "api", "pages"]
exclude_patterns = ["_site", "images"]

# Links between pages are those that GitHub understands: [text](page.md#heading).
myst_heading_anchors = 4
myst_enable_extensions = ["tasklist"]
nitpicky = True
# Annotations name types of other packages, type variables and internal classes, which have no page.
nitpick_ignore_regex = [("py:(class|obj|exc|data|func)", r".*")]

# The type set of Python in an annotation, and the field of that name of a change.
suppress_warnings = ["ref.python"]

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
add_module_names = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "Stepwell"
html_static_path = ["_site/static"]
html_css_files = ["site.css"]
html_js_files = [("copy.js", {"defer": "defer"})]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
pygments_dark_style = "monokai"
highlight_language = "text"
