"""Configurations: presets, grids, round trip, and what is refused."""

import dataclasses

import pytest
from checks import fails
from policies import make_card, make_policy
from small_run import ROOT

from aaren_rl.__main__ import main as aaren_rl
from aaren_rl.base.errors import UsageError
from aaren_rl.evaluate import make_parser as evaluate_parser
from aaren_rl.policies.table import AGENTS
from aaren_rl.sweep import read_grid
from aaren_rl.train.config import (
    SETTINGS,
    RunConfig,
    build_config,
    make_config,
    make_request,
    presets,
    read_settings,
    settings_of,
    to_yaml,
)
from aaren_rl.train.config import main as train
from aaren_rl.train.config import make_parser as train_parser

CONFIGS = ROOT / "configs"
LARGE = str(2**70)


@pytest.mark.parametrize("preset", presets())
@pytest.mark.parametrize("agent", AGENTS)
def test_every_preset_loads_and_comes_back(preset, agent, tmp_path):
    odd = "é 'no': \"[\n# 1e5 \x1b\u2028"  # a text that YAML has to quote
    config, file = make_config({"agent": agent, "seed": 3, "source": odd}, preset), tmp_path / "config.yaml"
    file.write_text(to_yaml(config))
    assert build_config(read_settings(file)) == config
    file.write_text("{optimizer: {learning_rate: 1e-3}}")
    assert read_settings(file) == {"learning_rate": 0.001}  # a text in YAML
    # Roll out as you trained: windows break a carried state, without any message.
    prepared = (("auto", "recurrent"), ("mixed", "recurrent"), ("window", "window"), ("window", "staggered"))
    assert (config.data.context, config.evaluation.rollout) in prepared
    if config.evaluation.rollout == "staggered":
        assert config.evaluation.rollout_context == config.data.context_length
    # make_config reads these parts alone, so a part under another name would never be read.
    parts = presets()[preset]
    assert set(parts) <= {"all", *AGENTS}
    assert {**parts.get("all", {}), **parts.get(agent, {})}.items() <= settings_of(config).items()


@pytest.mark.parametrize(
    ("given", "acts_with"),
    [
        ("--agent decision-transformer --context-length 50", 50),
        ("--agent decision-transformer --context-length 50 --rollout-context 30", 30),
        ("--agent decision-aaren --context window --context-length 12 --rollout staggered", 12),
        ("--agent decision-aaren --context window --rollout window", 20),
        ("--agent decision-aaren --context-length 12", 40),  # whole episodes: there are no windows to follow
    ],
)
def test_a_policy_acts_on_as_many_steps_as_it_was_trained_on(given, acts_with):
    request = make_request(train_parser().parse_args(["--env", "hopper-medium", *given.split()]))
    assert request.config.evaluation.rollout_context == acts_with
    assert "rollout_context" not in request.given or "--rollout-context" in given
    card = dataclasses.replace(make_card(make_policy().model), context="window", context_length=20)
    assert card.mismatch("window", 20) is None
    note = dataclasses.replace(card, context_length=50).mismatch("staggered", 20)
    assert note is not None and "windows of 50 steps, but acts with K = 20" in note
    note = dataclasses.replace(card, context="tbptt").mismatch("staggered", 20)
    assert note is not None and "trained on tbptt contexts, which do not match the rollout staggered" in note


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{model: {width: 3}}", "model: not a section with settings"),
        ("{model: {}}", "model: not a section with settings"),
        ("{data: }", "data: not a section with settings"),
        ("{seed: 1, seed: 2}", "key seed stands twice"),
        ("{network: {updates: 3}}", "network: unknown key updates"),
        ("{network: {width: '3'}}", "network.width: '3' is not int"),
        ("{optimizer: {updates: 0}}", "updates: must be at least 1, not 0"),
        ("{optimizer: {learning_rate: .nan}}", "rate: must be finite, not"),
        (f"{{seed: {LARGE}}}", "seed: must be at most"),
        ("agent: 3", "agent: 3 is not str"),
        ("", "settings must be in sections"),
        ("a: &a [*a]", ""),
    ],
)
def test_a_file_that_does_not_fit_is_named(text, message, tmp_path):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UsageError, match=rf"--config .*c\.yaml: .*{message}"):
        read_settings(tmp_path / "c.yaml")


def test_a_runs_file_takes_no_other_agent_and_no_preset(tmp_path):
    (tmp_path / "run").write_text(to_yaml(make_config({"env": "hopper-medium", "agent": "bc"})))
    (tmp_path / "part").write_text("{network: {width: 256}}")

    def made(file: str, *more: str) -> RunConfig:
        return make_request(train_parser().parse_args(["--config", str(tmp_path / file), *more])).config

    with pytest.raises(UsageError, match="--agent bc-top10: --config has the settings of bc"):
        made("run", "--agent", "bc-top10")
    with pytest.raises(UsageError, match="--preset paper: --config has all settings of a run"):
        made("run", "--preset", "paper")
    assert made("run", "--agent", "bc").agent == "bc"
    assert made("part", "--env", "hopper-medium", "--preset", "paper").network.width == 256


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("train --target-return inf", "--target-return: must be finite, not inf"),
        ("train --out runs\udcff", r"'runs\udcff' is not UTF-8; use another name"),
        ("train --learning-rate -1", "--learning-rate: must be above 0, not -1"),
        ("train --width 1.5", "--width: must be an integer, not '1.5'"),
        ("evaluate RUN --target-return 1 nan", "must be finite"),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_its_option(command, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert message in fails(capsys, aaren_rl, command.split(" "), 2) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "k", "optimizer"),
    [([], "40", "muon"), (["--agent", "decision-transformer"], "20", "muon"), (["--preset", "paper"], "40", "adamw")],
)
def test_help_all_shows_the_values_of_the_agent_and_the_preset(given, k, optimizer, capsys, monkeypatch):
    """Of every setting; the short help fits on a screen."""
    monkeypatch.setenv("COLUMNS", "300")
    assert train([*given, "--help-all"]) == 0
    listed = {words[0]: words[-1] for line in capsys.readouterr().out.splitlines() if (words := line.split())}
    assert (listed["--rollout-context"], listed["--optimizer"]) == (f"[{k}]", f"[{optimizer}]")
    options = {option.rstrip(",") for option in listed} | {"--start-from"}
    assert {f"--{name.replace('_', '-')}" for name in SETTINGS} <= options
    monkeypatch.setenv("COLUMNS", "120")
    assert all(len(parser.format_help().splitlines()) <= 40 for parser in (train_parser(), evaluate_parser()))


def test_the_grids_of_table_1(tmp_path):
    """The paper's, and the same sets with more baselines."""
    paper, local = read_grid("paper"), read_grid(str(CONFIGS / "local" / "table1.yaml"))
    assert local.envs == paper.envs == list(local.data) and set(paper.agents) < set(local.agents)
    assert len(paper.envs) == 12
    for grid, count in ((paper, 2 * 2 * 5), (local, 2 * 5 * 3)):
        data = {name: grid.data[name] for name in paper.envs[:2] if grid.data}
        cells = dataclasses.replace(grid, envs=paper.envs[:2], data=data).requests(tmp_path)
        assert len(cells) == count == len({cell.folder for cell in cells})
    # A sweep that is stopped early has every dataset and agent.
    assert [cell.folder.name for cell in cells[: 2 * 5]] == ["seed0"] * 10
    assert all((cell.config.data.draws == "best") == (cell.config.agent == "bc-top10") for cell in cells)
    assert {cell.config.data.source for cell in cells} == {"local"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("seeds: []", "must not be empty"),
        ("agent_seeds: {bc: [-1]}", "seed: must be at least 0"),
        ("agent_seeds: {gpt: [1]}", "agent_seeds: gpt is not"),
        ("settings: {widht: 1}", "widht: unknown setting"),
        ("data: {y: {}}", "data: y is not one of tmaze"),
        ("sets: 3", "a grid has preset, envs"),
        ("data: [", "grid.yaml: while parsing"),
        ("agents: [bc, bc]\nagents: [bc]", "key agents stands twice"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused(changes, message, tmp_path):
    right = {"preset": "paper", "envs": "[tmaze]", "agents": "[bc]", "seeds": "[0]"}
    changed = right | {changes.partition(":")[0]: changes.partition(":")[2]}
    (tmp_path / "grid.yaml").write_text("\n".join(f"{name}: {value}" for name, value in changed.items()))
    with pytest.raises(UsageError, match=message):
        read_grid(str(tmp_path / "grid.yaml")).requests(tmp_path)


SMALLEST = {"envs": ["hopper-medium"], "agents": ["bc"], "seeds": [0], "agent_seeds": {}, "data": {}}


def test_arguments_for_all_runs_come_before_the_grids(tmp_path):
    """As data of one's own come before the settings of all."""
    (tmp_path / "grid.yaml").write_text(
        "{preset: default, envs: [one, two, one], agents: [bc, bc], seeds: [0],"
        " settings: {width: 16, clip_actions: true, learning_rate: 1e-4},"
        " data: {one: {env_id: A-v1, source: a.hdf5}, two: {source: 'minari:my/b-v0', clip_actions: false}}}"
    )
    cells = read_grid(str(tmp_path / "grid.yaml")).requests(tmp_path)
    assert [cell.config.optimizer.learning_rate for cell in cells] == [1e-4, 1e-4]  # text to PyYAML
    one, two = (cell.config.data for cell in cells)
    assert (one.env, one.env_id, one.source, one.clip_actions) == ("one", "A-v1", "a.hdf5", True)
    assert (two.env, two.env_id, two.source, two.clip_actions) == ("two", None, "minari:my/b-v0", False)
    more = "--width 64 --eval-every=7 --preset paper --threads 2 --device cpu --save-every 5 --register json"
    small = dataclasses.replace(read_grid("local"), **SMALLEST)
    (request,) = small.requests(tmp_path, more.split())
    assert (request.config.network.width, request.config.evaluation.eval_every) == (64, 7)
    assert (request.preset, request.threads, request.device) == ("paper", 2, "cpu")
    assert (request.save_every, request.register) == (5, "json")
    (one_core,) = small.requests(tmp_path)
    assert one_core.threads == 1
    for more in ("--seed 3", "--out elsewhere", "--resume", "--agent bc-top10"):  # which the sweep decides
        with pytest.raises(UsageError, match="leave them to the sweep"):
            small.requests(tmp_path, more.split())


def test_every_setting_can_be_given_on_the_command_line():
    """Its default, that is."""
    config = RunConfig()
    given = {name: value for name, value in settings_of(config).items() if value not in (None, "")}
    words = [(f"--{name.replace('_', '-')}", value) for name, value in given.items()]  # --from has no default
    switches = [word if value else f"--no-{word[2:]}" for word, value in words if isinstance(value, bool)]
    others = [f"{word}={value}" for word, value in words if not isinstance(value, bool)]
    request = make_request(train_parser().parse_args([*switches, *others]))
    assert build_config(dict(request.typed)) == config and len(request.typed) == len(given) > 40
