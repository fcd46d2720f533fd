"""What gets installed: version, command, packages, data files, and the wheel itself."""

import io
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from checks import fails
from small_run import ROOT, SMALL, typed

import aaren_rl
from aaren_rl.__main__ import main, module_of

SETUPTOOLS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]


def installed_files() -> dict[str, Path]:
    """Every file of the mapped folders, by the name it should have in the wheel."""
    return {
        f"{package.replace('.', '/')}/{path.relative_to(ROOT / folder).as_posix()}": path
        for package, folder in SETUPTOOLS["package-dir"].items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }


def run(*command: str | Path, **options) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, **{"timeout": 600, **options})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_release_installs_in_an_empty_environment_and_works(hopper_file, tmp_path):
    """The source distribution, the wheel built from it, and all their dependencies, from anywhere but the checkout."""
    source, dist = tmp_path / "source", tmp_path / "dist"
    tracked = run("git", "ls-files", cwd=ROOT).splitlines()
    for name in tracked:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    run(sys.executable, "-m", "build", "--outdir", dist, source)
    (wheel,), (archive,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as packed:
        assert {name for name in packed.namelist() if ".dist-info/" not in name} == set(installed_files())
    version = aaren_rl.__version__
    assert wheel.name.startswith(f"aaren_rl-{version}-") and archive.name == f"aaren_rl-{version}.tar.gz"

    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python, elsewhere = tmp_path / "venv" / "bin" / "python", tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    options = {"cwd": elsewhere, "env": environment}
    run(python, "-m", "pip", "install", "--quiet", wheel, timeout=1800, **options)
    command = tmp_path / "venv" / "bin" / "aaren-rl"
    run(command, "train", "--env", "hopper-medium", "--source", hopper_file, *typed(SMALL), **options)
    trained = elsewhere / "runs" / "hopper-medium" / "decision-aaren" / "seed0"
    assert "hopper-medium, decision-aaren" in run(command, "evaluate", trained, "--episodes", "1", **options)
    show = "import aaren_rl, aaren_rl.agents; print(aaren_rl.__version__, aaren_rl.agents.__file__)"
    shown = run(python, "-c", show, **options)
    assert shown.startswith(f"{version} {tmp_path / 'venv'}")


def test_the_extra_all_is_every_extra_for_users():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(everything.removeprefix("aaren-rl[").removesuffix("]").split(","))
    assert named == set(extras) - {"all", "bench", "docs", "memory", "test", "dev"}


def test_the_version_is_told(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"aaren-rl {metadata.version('aaren-rl')}\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("trian --env hopper-medium", "unknown command 'trian'; did you mean train?"),
        ("import_wieghts", "unknown command 'import_wieghts'; did you mean import-weights?"),
        ("train --env x --agnet bc", "--agnet bc; did you mean --agent?"),
        ("evaluate RUN --episode=3", "--episode=3; did you mean --episodes?"),
    ],
)
def test_a_typing_error_is_told_what_is_near(given, message, capsys):
    assert message in fails(capsys, main, given.split(), 2)


def test_a_command_may_be_called_as_its_module(capsys):
    for name in ("import_weights", "import-weights"):
        with pytest.raises(SystemExit) as left:
            main([name, "--help"])
        assert left.value.code == 0 and "aaren-rl import-weights" in capsys.readouterr().out


def test_a_terminal_of_ascii_shows_other_letters_escaped(monkeypatch):
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, encoding="ascii"))
    with pytest.raises(SystemExit):
        main(["hub", "--help"])
    print("données", flush=True)
    assert shown.getvalue().endswith(rb"donn\xe9es" + b"\n")


def test_an_interrupt_while_modules_are_imported_is_no_traceback(tmp_path):
    """Of a module that is imported early, and in a user's hands the signal comes."""
    (tmp_path / "tqdm.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(9)\n")
    command, environment = [sys.executable, "-m", "aaren_rl", "train", "--help"], {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_a_typing_error_does_not_wait_for_torch():
    modules = ", ".join(map(module_of, ("train", "compare", "sweep")))
    parsed = "aaren_rl.train.config.make_parser()"
    script = f"import sys, {modules}; {parsed}; print(*{{'torch', 'scipy', 'matplotlib'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "\n"
