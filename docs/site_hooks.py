"""Hooks of MkDocs, which adapt the Markdown files of the repository to the site.

They add the pages whose files are outside docs/, such as README.md, and change the links. If a link
leads to a file that has a page, it becomes a link to that page. If it leads to another file outside
docs/, it becomes plain text: the text of the link and the path of the file.
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
"""Maps each file outside docs/ to its page of the site."""
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*(?![^<>]*>)")  # in the text, not in a tag


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages whose files are outside docs/ to the site's files; return them."""
    for source, page in OUTSIDE.items():
        text = (REPO / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Return a page's Markdown with the links that the site needs (see the top of this file)."""
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
    """Return a page's HTML with a mark around each option, such as --beam.

    site.css has a rule for this mark, so that lines do not break at the hyphens of options.
    """
    return OPTION.sub(r'<span class="option">\g<0></span>', content)
