"""Commands and code in README.md and docs/: all of them parse, and with -m slow they run, at a small scale."""

import importlib
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from small_run import ROOT

from aaren_rl import cli
from aaren_rl.__main__ import COMMANDS as COMMANDS_OF_THE_PACKAGE
from aaren_rl.__main__ import module_of

sys.path.insert(0, str(ROOT / "scripts"))
import docs_reference

FOUND = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in FOUND if "node_modules" not in page.parts]
BLOCK = re.compile(r"^```(\w+)?(?: title=\"([^\"]+)\")?\n(.*?)^```$|((?:^    \S[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"(?:-m aaren_rl\.|aaren-rl )\w|scripts/bench ")  # the two forms, and the benchmarks of the pages
NEEDS = re.compile(r"# needs (a GPU|a cluster|the network)|venv")
PROGRAMS = ("aaren-rl ", "python", "torchrun", "tensorboard", "pip", "scripts/", "hf ")


class Step(NamedTuple):
    """A command, a piece of Python, or a file to write (`title`)."""

    kind: str
    text: str
    title: str | None = None


def steps(page: Path) -> list[Step]:
    found, text = [], page.read_text(encoding="utf-8")
    for name in re.findall(r"<!-- file: (\S+) -->", text):
        found.append(Step("file", (ROOT / "docs" / name).read_text(encoding="utf-8"), Path(name).name))
    for language, title, fenced, indented in BLOCK.findall(text):
        text = fenced or "".join(line[4:] for line in indented.splitlines(keepends=True))
        if title:
            found.append(Step("file", text, title))
        elif language == "python":
            found.append(Step("python", text))
        elif language == "bash":
            found += [Step("command", line) for line in text.splitlines() if line.strip()]
        elif indented and text.startswith("import "):
            found.append(Step("python", text))
        elif indented:
            found += [Step("command", line) for line in text.splitlines() if line.startswith(PROGRAMS)]
    return found


COMMANDS = {  # each once, by the first page that has it
    step.text: page.relative_to(ROOT).as_posix()
    for page in reversed(PAGES)
    for step in steps(page)
    if step.kind == "command" and COMMAND.search(step.text)
}
assert {"README.md", "docs/tutorial.md", "docs/howto/own-data.md", "docs/data.md"} <= {*COMMANDS.values()}


def parsed(words: list[str]) -> tuple[str, list[str]]:
    """The name of the command in a line of either form, and its arguments."""
    if words[0] == "scripts/bench":
        return words[0], words[1:]
    at = next(i for i, word in enumerate(words) if word == "aaren-rl" or word.startswith("aaren_rl."))
    name, *arguments = words[at + 1 :] if words[at] == "aaren-rl" else [words[at][9:], *words[at + 1 :]]
    return name, arguments


@pytest.mark.parametrize("line", COMMANDS, ids=[f"{page}:{line[:70]}" for line, page in COMMANDS.items()])
def test_a_command_parses(line, monkeypatch):
    """Up to the point where the command's work would begin."""
    name, arguments = parsed(shlex.split(line.split(" && ")[-1], comments=True))
    module = importlib.import_module("benchmarks.command" if name == "scripts/bench" else module_of(name))
    begun = []
    for runs in (cli, module):  # train's main calls it itself
        monkeypatch.setattr(runs, "run_command", lambda command, **_: begun.append(command) or 0, raising=False)
    assert module.main(arguments) == 0 and begun


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_compiles(page):
    for step in steps(page):
        if step.kind == "python" or (step.title or "").endswith(".py"):
            compile(step.text, str(page), "exec")


def test_the_reference_is_complete():
    """Every command and every command of theirs, and every public name, under a heading of its own."""
    pages = [page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.md"))]
    filled = "\n".join(map(docs_reference.fill, pages))
    documented = re.findall(r"^::: (\S+)$", filled, re.MULTILINE)
    for module in ("agents", "envs", "hub", "import_weights", "nn", "train", "base.errors"):
        assert set(docs_reference.api([f"aaren_rl.{module}"])) <= set(documented), module
    assert len(documented) == len(set(documented)) > 60 and all(map(pkgutil.resolve_name, documented))
    shown = re.findall(r"^##+ (.+)\n\n<!-- help: \1 -->$", filled, re.MULTILINE)
    assert {name.replace("-", "_") for name in COMMANDS_OF_THE_PACKAGE} | {"datasets convert"} <= set(shown)


# Appended, the last of two options counts: what a page shows for a user's hour is done in seconds.
MODEL = "--width 16 --layers 1 --heads 2 --warmup-updates 1 --steps-per-update 160 --eval-every 4 --eval-episodes 1"
TRAIN = f"{MODEL} --updates 8 --final-episodes 1 --threads 1"
SMALL = {
    "train": TRAIN,
    "compare": f"--updates 8 --seeds 1 --episodes 1 --jobs 1 -- {MODEL} --final-episodes 1",
    "sweep": f"--jobs 2 -- {TRAIN}",
    "evaluate": "--episodes 1",
    "collect": "--steps 5000",
    "scripts/bench rollout": "--steps 60 --width 16 --layers 1",
    "scripts/bench learning": "--updates 7 --recipes default:decision-aaren,width=16",
    "scripts/bench memory": "--agents decision-aaren --reacher-seeds 0 --lengths 20 --updates 2",
    "scripts/bench steering": "--episodes 2 --values 2",
    "scripts/bench scan": "--lengths 64 128",
    "scripts/bench train": "--sizes 16x1 --repeats 1",
}
PAGES_THAT_RUN = ("README.md", "index.md", "tutorial.md", "speed.md", "memory.md")
RUNNING = [page for page in PAGES if "howto" in page.parts or page.name in PAGES_THAT_RUN]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNING, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_runs_from_top_to_bottom(page, hopper_file, trained_run, tmp_path):
    """All but what is marked as needing a GPU or the network, in a folder of its own."""
    cache = tmp_path / "home" / ".d4rl" / "datasets" / "gym_mujoco_v2"
    cache.mkdir(parents=True)
    shutil.copy(hopper_file, cache.parent / "hopper_medium-v2.hdf5")
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "MINARI_DATASETS_PATH": str(tmp_path / "minari"),
        "D4RL_DATASET_DIR": str(cache.parent),
        "OMP_NUM_THREADS": "1",
    }
    work = tmp_path / "work"
    work.mkdir()
    given = steps(page)
    commands = [step.text for step in given if COMMAND.search(step.text) and runs(step.text, page)]
    if not re.search(r"aaren-rl (train|sweep)|aaren_rl\.train", "\n".join(commands)):
        shutil.copytree(trained_run, work / "runs" / "hopper-medium" / "decision-aaren" / "seed0")
    for step in given:
        if step.kind == "file":
            (work / str(step.title)).write_text(step.text)
        elif step.kind == "python":
            run([sys.executable, "-W", "ignore", "-c", step.text], work, environment)
        elif re.match(r"python \w+\.py", step.text):
            run([sys.executable, "-W", "ignore", *step.text.split()[1:]], work, environment)
        elif step.text in commands:
            run(small(step.text), work, environment)


def runs(line: str, page: Path) -> bool:
    """Whether a command can run here: it needs nothing, and a file of data is one that its page makes."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"--source ([\w/]+\.\w+)", line)
    return not NEEDS.search(line) and all(re.search(f'(--out |"){re.escape(name)}', text) for name in named)


def small(line: str) -> list[str]:
    """A command at a small scale, run by this Python."""
    words = shlex.split(line, comments=True)
    name, arguments = parsed(words)
    if name.endswith("bench"):
        name += f" {arguments[0]}"
    own = {"torchrun": [sys.executable, "-m", "torch.distributed.run"], "python": [sys.executable]}
    own["scripts/bench"] = [sys.executable, str(ROOT / "scripts" / "bench")]
    program = own.get(words[0]) or [str(Path(sys.executable).with_name(words[0]))]
    more = [] if "--resume" in words else shlex.split(SMALL.get(name, ""))
    if "--" in words:  # of train's settings, which come last
        place, cut = words.index("--"), more.index("--")
        return [*program, *words[1:place], *more[:cut], *words[place:], *more[cut + 1 :]]
    return [*program, *words[1:], *more]


def run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


LINKING = [*PAGES, *(ROOT / name for name in ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"))]
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:href|src)=\"([^\"]+)\"")
SITE_ALONE = re.compile(r"^!!! |^\?\?\? |\{ ?[#.]\w|\{ \w+=|<figure markdown", re.MULTILINE)


@cache
def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    words = (heading.lower() for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", heading)).replace(" ", "-") for heading in words}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.relative_to(ROOT).as_posix())
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


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_is_plain_markdown(page):
    """What only the site's generator knows would stand there as text."""
    assert SITE_ALONE.findall(CODE.sub("", page.read_text(encoding="utf-8"))) == []
