"""What mkdocs does beside rendering docs/: other files of the checkout that pages link to, and headers.

- A link that leaves docs/ (an example's README, a source file) leads to a copy of that file in the site.
- A line ``<!-- header: FILE.h -->`` becomes that header's contract and its declarations.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PROJECT = Path("project")  # the site's folder for what is outside of docs/
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")
HEADER = re.compile(r"^<!-- header: (\S+) -->$", re.MULTILINE)
NAMED = re.compile(r"^(?:#pragma once|#include .*)\n*", re.MULTILINE)


def outside(page: Path) -> list[Path]:
    """What a page links to outside of docs/."""
    if page.suffix != ".md":
        return []
    targets = [(page.parent / link).resolve() for _, link, _ in LINK.findall(page.read_text())]
    return [path for path in targets if path.is_file() and not path.is_relative_to(DOCS)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds what pages link to, and what those link to."""
    found: set[Path] = set()
    left = sorted(DOCS.rglob("*.md"))
    while left:
        new = set(outside(left.pop())) - found
        found |= new
        left += new
    for path in sorted(found):
        name = str(PROJECT / path.relative_to(ROOT))
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def place(path: Path) -> Path:
    """Where a file of the checkout is among the site's sources."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    return PROJECT / path.relative_to(ROOT)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns links that cross the border of docs/ into links within the site; shows headers."""
    source = Path(page.file.src_uri)
    inside = source.parts[0] != PROJECT.name
    here = (DOCS if inside else ROOT) / (source if inside else source.relative_to(PROJECT))

    def moved(match: re.Match[str]) -> str:
        target = (here.parent / match[2]).resolve()
        if not target.is_file() or (inside and target.is_relative_to(DOCS)):
            return match[0]
        return match[1] + os.path.relpath(place(target), source.parent) + match[3]

    return HEADER.sub(lambda match: header(ROOT / match[1]), LINK.sub(moved, markdown))


def header(path: Path) -> str:
    """A header as a page: its first comment as text, its declarations as code."""
    lines = path.read_text().splitlines()
    length = next(i for i, line in enumerate(lines) if not line.startswith("//"))
    contract = "\n".join(line[3:] for line in lines[:length])
    code = NAMED.sub("", "\n".join(lines[length:]))
    code = re.sub(r"^namespace \w+ \{\n(?:class \w+;\n)+\}\n*", "", code, flags=re.MULTILINE)
    return f"{contract}\n\n```cpp\n{code.strip()}\n```\n"


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Docstrings begin an example with a line of two colons."""
    return html.replace("<p>::</p>", "<p>For example:</p>")
