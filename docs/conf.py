"""The site: `make docs`. Its source is the repository, so that links work here and on GitHub."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import pe_jax  # noqa: E402

project = "pe_jax"
author = "The pe_jax authors"
copyright = f"{author}, Apache-2.0"
release = pe_jax.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "site_sources",
]
root_doc = "docs/index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext", ".ipynb": "markdown"}
include_patterns = ["*.md", "docs/**"]
exclude_patterns = [".*"]
exclude_patterns += [path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "docs"]

myst_heading_anchors = 4  # GitHub's
suppress_warnings = ["myst.header"]  # a heading that skips a level

default_role = "code"  # docstrings write `code` as Markdown does
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False  # a method that overrides is described where it is declared
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"pe_jax {release}"
html_static_path = ["static/style"]
html_css_files = ["site.css"]
html_extra_path = ["static/root"]
html_copy_source = False
html_show_sphinx = False
