"""Every preset and grid in configs/ is a valid configuration of every agent."""

import pytest
import yaml
from checkout import ROOT

from aaren_rl.compare.published import PAPER, published
from aaren_rl.errors import UsageError
from aaren_rl.policies.names import AGENTS
from aaren_rl.sweep.grid import read_grid
from aaren_rl.train.options import make_job, make_parser
from aaren_rl.train.settings import make_config, run_folder, settings_of

CONFIGS = ROOT / "configs"


def test_a_preset_says_what_its_file_says():
    for preset, parts in yaml.safe_load((CONFIGS / "presets.yaml").read_text(encoding="utf-8")).items():
        # make_config reads these parts only, so a part under another name would never be read.
        assert set(parts) <= {"all", *AGENTS}
        for agent in AGENTS:
            written = {**parts.get("all", {}), **parts.get(agent, {})}
            assert written.items() <= settings_of(make_config({"agent": agent}, preset)).items()


GRIDS = sorted(CONFIGS.glob("*/*.yaml"))


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.parent.stem)
def test_a_grids_runs_are_valid(path, tmp_path):
    cells = read_grid(str(path)).cells(tmp_path)
    assert len({cell.run for cell in cells}) == len(cells)
    for cell in cells:
        job = make_job(make_parser().parse_args(cell.arguments))
        assert job.make_config() == cell.config and run_folder(cell.config, job.out) == cell.run


def test_the_papers_grid_is_its_table(tmp_path):
    grid = read_grid("paper")
    assert grid == read_grid(str(CONFIGS / "paper" / "table1.yaml"))
    assert len(grid.cells(tmp_path)) == 12 * 2 * 5
    assert all(PAPER in published(env, agent) for env in grid.envs for agent in grid.agents)


def test_the_local_grid_is_the_papers_sets_with_two_baselines(tmp_path):
    local, paper = read_grid("local"), read_grid("paper")
    assert local.envs == paper.envs == list(local.data) and set(paper.agents) < set(local.agents)
    cells = local.cells(tmp_path)
    assert len(cells) == 12 * (2 * 5 + 2 * 2) == len({cell.run for cell in cells})
    assert sum(cell.config.agent == "bc-10" for cell in cells) == 12 * 2
    # Those that are left out by some agents are the last of a sweep that is stopped early.
    assert [cell.run.name for cell in cells[: 12 * 4]] == ["seed0"] * 48
    for cell in cells:
        config = cell.config
        assert config.data.source == "local" and config.data.local_steps >= 202_000
        assert (config.data.best_fraction == 0.1) == (config.agent == "bc-10")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{preset: paper, envs: [x], agents: [bc], seeds: []}", "seeds: must not be empty"),
        ("{preset: paper, envs: [x], agents: [bc], seeds: [0], agent_seeds: {bc: []}}", "agent_seeds: bc: must not"),
        ("{preset: paper, envs: [x], agents: [bc], seeds: [0], agent_seeds: {bc: [-1]}}", "agent_seeds: bc: must be"),
        ("{preset: paper, envs: [x], agents: [bc], seeds: [0], agent_seeds: {gpt: [1]}}", "agent_seeds: gpt is not"),
        ("preset: paper", "a grid has preset, envs"),
        ("{preset: papers, envs: [], agents: [decision-aaren], seeds: [0]}", "preset: papers is not one of"),
        ("{preset: paper, envs: [], agents: [gpt], seeds: [0]}", "agents: gpt is not one of"),
        ("{preset: paper, envs: [], agents: [decision-aaren], seeds: [a]}", "seeds: must be"),
        ("{preset: paper, envs: x, agents: [decision-aaren], seeds: [0]}", "envs: must be"),
        ("{preset: paper, envs: [], agents: [decision-aaren], seeds: [0], settings: {widht: 1}}", "settings: widht"),
        ("{preset: paper, envs: [x], agents: [bc], seeds: [0], data: {y: {}}}", "data: y is not one of x"),
        ("{preset: paper, envs: [x], agents: [bc], seeds: [0], data: {x: {widht: 1}}}", "data: x: widht is not"),
        ("{preset: paper, envs: [x], agents: [bc], seeds: [0], data: {x: 3}}", "data: "),
        ("{preset: paper, envs: [", "grid.yaml: while parsing"),
    ],
)
def test_a_grid_that_does_not_fit_is_refused(text, message, tmp_path):
    (tmp_path / "grid.yaml").write_text(text)
    with pytest.raises(UsageError, match=message):
        read_grid(str(tmp_path / "grid.yaml"))


@pytest.mark.defect(10)
def test_a_grid_of_ones_own_data(tmp_path):
    (tmp_path / "grid.yaml").write_text(
        "{preset: default, envs: [one, two], agents: [bc], seeds: [0], settings: {width: 16, clip_actions: true},"
        " data: {one: {env_id: Pendulum-v1, source: a.hdf5, ref_min_score: -9.0, ref_max_score: 0.0},"
        " two: {source: 'minari:my/pendulum-v0', clip_actions: false}}}"
    )
    cells = read_grid(str(tmp_path / "grid.yaml")).cells(tmp_path)
    one, two = (cell.config.data for cell in cells)
    assert [cell.run for cell in cells] == [tmp_path / env / "bc" / "seed0" for env in ("one", "two")]
    assert (one.env, one.env_id, one.source, one.ref_min_score) == ("one", "Pendulum-v1", "a.hdf5", -9.0)
    assert (two.env, two.env_id, two.source) == ("two", None, "minari:my/pendulum-v0")
    assert one.clip_actions and not two.clip_actions


@pytest.mark.parametrize("more", ["--seed 3", "--out elsewhere", "--resume", "--agent bc-10"])
def test_what_a_sweep_decides_is_not_an_argument_for_its_runs(more, tmp_path):
    with pytest.raises(UsageError, match="leave them to the sweep"):
        read_grid("local").cells(tmp_path, more.split())


def test_arguments_for_all_runs_come_before_the_grids(tmp_path):
    cell = read_grid("local").cells(tmp_path, ["--width", "64", "--eval-every=7", "--threads", "2"])[0]
    assert (cell.config.network.width, cell.config.evaluation.eval_every) == (64, 7)
    job = make_job(make_parser().parse_args(cell.arguments))
    assert job.threads == 2 and job.make_config() == cell.config
