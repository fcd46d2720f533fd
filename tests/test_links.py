"""Links between pages, as a repository page shows them: mkdocs checks those of the site."""

import re
from functools import cache
from pathlib import Path

import pytest
from small_run import ROOT

TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
FOUND = [*(ROOT / name for name in TOP), *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in FOUND if "node_modules" not in page.parts]
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:href|src)=\"([^\"]+)\"")
SITE_ALONE = re.compile(r"^!!! |^\?\?\? |\{ ?[#.]\w|\{ \w+=|<figure markdown", re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    words = (heading.lower() for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading)).replace(" ", "-") for heading in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_in_the_repository(page):
    wrong = []
    for link in (one or other for one, other in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_plain_markdown(page):
    """What only the site's generator knows would stand there as text."""
    assert SITE_ALONE.findall(CODE.sub("", page.read_text(encoding="utf-8"))) == []
