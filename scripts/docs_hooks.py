"""What mkdocs does beside rendering Markdown: sources for the API reference, output of commands, tables, formulas.

The API and the commands are those of docs_reference.py. In a page, `<!-- help: train -->` becomes the command's --help,
`<!-- file: examples/x.py -->` that file, and formulas between dollars become MathML. What stands between
`<!-- repository -->` and `<!-- /repository -->` is for readers of the repository, where nothing is filled in: the site
leaves it out.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import io
import os
import re
import shutil
import tempfile
import tomllib
from pathlib import Path
from unittest import mock

import docs_reference
from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.pages import Page

from aaren_rl.__main__ import module_of

ROOT = Path(__file__).resolve().parent.parent
_HELP = re.compile(r"<!-- help: ([a-z_]+(?: [a-z]+)?) -->")
_FILE = re.compile(r"<!-- file: (examples/(\w+\.(py|cpp|mjs))) -->")
_LANGUAGES = {"py": "python", "cpp": "cpp", "mjs": "javascript"}
_REPOSITORY = re.compile(r"<!-- repository -->.*?<!-- /repository -->\n*", re.DOTALL)
_IMAGE = re.compile(r"<img (?![^>]*loading=)")
_FENCED = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+?)\$", re.DOTALL)


@event_priority(100)  # before mkdocstrings reads its settings
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Tells mkdocstrings where the package is."""
    config.plugins["mkdocstrings"].config["handlers"]["python"]["paths"] = [str(_package())]
    return config


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Fills in what is generated, and takes the formulas out: Markdown would take a <math> for a block."""
    markdown = docs_reference.fill(_REPOSITORY.sub("", markdown))
    markdown = _HELP.sub(lambda found: f"```text\n{_help(found[1])}```", markdown)
    markdown = _FILE.sub(lambda found: f'```{_LANGUAGES[found[3]]} title="{found[2]}"\n{_text(found[1])}```', markdown)
    formulas: list[str] = []

    def take(found: re.Match[str]) -> str:
        block, inline = found.groups()
        text = " ".join((block or inline).split())
        formulas.append(convert(text, display="block" if block else "inline"))
        return f"FORMULA{len(formulas) - 1}END"

    parts = _FENCED.split(markdown)
    markdown = "".join(part if i % 2 else _FORMULA.sub(take, part) for i, part in enumerate(parts))
    page.meta["formulas"] = formulas
    return markdown


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Puts the formulas back, as MathML; images below the screen are loaded when they come near."""
    html = _IMAGE.sub('<img loading="lazy" ', html)
    return re.sub(r"FORMULA(\d+)END", lambda found: str(page.meta["formulas"][int(found[1])]), html)


def _package() -> Path:
    """A folder in which aaren_rl has its sub-packages inside, as installed: the checkout keeps them beside it."""
    folder = Path(tempfile.mkdtemp(prefix="aaren-rl-docs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    mapping = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["package-dir"]
    package = folder / "aaren_rl"
    package.mkdir()
    for part in (ROOT / mapping.pop("aaren_rl")).iterdir():
        (package / part.name).symlink_to(part)
    for name, source in mapping.items():
        (package / name.removeprefix("aaren_rl.")).symlink_to(ROOT / source)
    return folder


def _text(file: str) -> str:
    return (ROOT / "docs" / file).read_text(encoding="utf-8")


def _help(command: str) -> str:
    """What a command prints; in this process: a new one would import everything again for every page."""
    module, *own = command.split()
    printed = io.StringIO()
    wide = mock.patch.dict(os.environ, COLUMNS="88")  # as a page; otherwise as whatever terminal builds the site
    with wide, contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
        importlib.import_module(module_of(module)).main([*own, "--help"])
    if not printed.getvalue().startswith("usage: "):
        raise PluginError(f"{command} --help: {printed.getvalue()}")
    return printed.getvalue()
