"""What gets installed: version, command, packages, data files, and the wheel itself."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata, resources
from pathlib import Path

import pytest

import aaren_rl

ROOT = Path(__file__).resolve().parent.parent
SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


def installed_files() -> dict[str, Path]:
    """Every file of the mapped folders, by the name it should have in the wheel."""
    return {
        f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}": path
        for package, folder in SETUPTOOLS["package-dir"].items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


def test_the_version_is_the_installed_one():
    assert aaren_rl.__version__ == metadata.version("aaren-rl")


def test_the_command_exists():
    (command,) = metadata.entry_points(group="console_scripts", name="aaren-rl")
    assert callable(command.load())


def test_every_folder_is_listed_as_a_package():
    files = installed_files()
    folders = {name.rpartition("/")[0].replace("/", ".") for name in files}
    assert set(SETUPTOOLS["packages"]) == folders
    assert [folder for folder in folders if f"{folder.replace('.', '/')}/__init__.py" not in files] == []


def test_type_checkers_are_told_of_the_annotations():
    assert resources.files("aaren_rl").joinpath("py.typed").is_file()


def run(*command: str | Path, **options) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_is_complete_and_runs(tmp_path):
    # From a copy: setuptools leaves build/ where it builds, and packs what it finds there the next time.
    source, target, elsewhere = tmp_path / "source", tmp_path / "target", tmp_path / "elsewhere"
    for folder in SETUPTOOLS["package-dir"].values():
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", tmp_path, source)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == set(installed_files())

    # PYTHONPATH comes before the editable install of this environment, which lends the dependencies.
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", target, wheel)
    elsewhere.mkdir()
    options = {"cwd": elsewhere, "env": {**os.environ, "PYTHONPATH": str(target)}}
    show = "import aaren_rl.agents, aaren_rl.envs; print(aaren_rl.agents.__file__)"
    assert Path(run(sys.executable, "-c", show, **options).strip()) == target / "aaren_rl" / "agents" / "__init__.py"
    assert "--env" in run(sys.executable, "-m", "aaren_rl.train", "--help", **options)
