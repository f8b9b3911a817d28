"""What the site needs beyond docs/: pages from other folders, and links that lead out of docs/.

The Markdown files are written to be read in the repository. A link to a file that has a page
becomes a link to that page; any other link out of docs/ becomes its text and the file's path.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

DOCS = Path(__file__).resolve().parent
REPO = DOCS.parent
OUTSIDE = {
    "README.md": "index.md",
    "recipes/README.md": "recipes.md",
    "models/README.md": "models.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""File of the repository to page of the site."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*(?![^<>]*>)")  # in the text, not in a tag


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that stand outside docs/."""
    for source, page in OUTSIDE.items():
        text = (REPO / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Make the links of a page fit the site."""
    here = page.file.src_uri
    sources = {target: source for source, target in OUTSIDE.items()}
    folder = (REPO / sources[here] if here in sources else DOCS / here).parent

    def fit(link: re.Match[str]) -> str:
        mark, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        if "://" in target:
            return link[0]
        path = (folder / target).resolve()
        outside = OUTSIDE.get(path.relative_to(REPO).as_posix())
        if outside is None and not path.is_relative_to(DOCS):
            name = path.relative_to(REPO).as_posix()
            return text if name in text else f"{text} (`{name}`)"
        address = outside or path.relative_to(DOCS).as_posix()
        relative = os.path.relpath(address, Path(here).parent)
        return f"{mark}[{text}]({relative}{anchor})"

    return LINK.sub(fit, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Mark options, which site.css does not break at their hyphens."""
    return OPTION.sub(r'<span class="option">\g<0></span>', content)
