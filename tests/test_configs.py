"""Every preset in configs/ is a valid configuration of every agent."""

from pathlib import Path

import pytest
import yaml

from aaren_rl.config import AGENTS, SECTIONS, build_config, load_preset, preset_names

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
FILES = sorted(CONFIGS.glob("*.yaml"))


def test_every_file_is_a_preset():
    assert preset_names() == [path.stem for path in FILES]
    assert "default" in preset_names()


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_preset_says_what_its_file_says(path, agent):
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    # load_preset takes these parts only, so a part under another name would never be read.
    assert set(tree) <= {"all", *AGENTS}
    config = build_config(agent, 0, load_preset(path.stem, agent))
    for section in SECTIONS:
        written = {**tree.get("all", {}).get(section, {}), **tree.get(agent, {}).get(section, {})}
        assert written.items() <= vars(getattr(config, section)).items()
