"""Whatever the data: the samplers, the splitting of steps into episodes, configurations."""

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aaren_rl.agents import MIXERS
from aaren_rl.envs import DataError
from aaren_rl.envs.data.files import read_file, write_hdf5
from aaren_rl.policies.table import AGENTS
from aaren_rl.train.config import CONTEXTS, build_config, differences, read_settings, settings_of, to_yaml

quick = settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(
    st.lists(st.sampled_from(["", "terminal", "timeout", "both"]), min_size=1, max_size=50),
    st.one_of(st.none(), st.integers(1, 20)),
)
def test_steps_are_split_at_their_ends(tmp_path_factory, ends, limit):
    """Against a loop over the steps; nothing is lost but an unfinished last episode. Two ends in a row stay up."""
    import h5py

    for k in range(1, len(ends)):
        if ends[k - 1]:
            ends[k] = ""
    wanted: list[tuple[int, int, bool]] = []
    first = 0
    for k, end in enumerate(ends):
        if end or (limit is not None and k + 1 - first == limit):
            wanted.append((first, k + 1, end in ("terminal", "both")))
            first = k + 1
    path = tmp_path_factory.mktemp("split") / "x.hdf5"
    n = len(ends)
    with h5py.File(path, "w") as file:
        file["observations"] = np.arange(n, dtype=np.float32).reshape(n, 1)
        file["actions"], file["rewards"] = np.zeros((n, 1), np.float32), np.arange(n, dtype=np.float32)
        file["terminals"] = np.array([end in ("terminal", "both") for end in ends])
        file["timeouts"] = np.array([end in ("timeout", "both") for end in ends])
    try:
        episodes = read_file(path, max_episode_steps=limit)
    except DataError as error:
        assert not wanted and "--max-episode-steps" in str(error)
        return
    offsets = episodes.offsets.tolist()
    assert list(zip(offsets[:-1], offsets[1:], episodes.terminated.tolist(), strict=True)) == wanted
    assert episodes.rewards.tolist() == list(range(offsets[-1]))
    write_hdf5(path, episodes, {})
    again = read_file(path)
    assert again.offsets.tolist() == offsets and again.terminated.tolist() == episodes.terminated.tolist()


positive, floats = st.integers(1, 10**6), st.floats(1e-6, 1e6)
SETTINGS: dict[str, st.SearchStrategy[Any]] = {
    "agent": st.sampled_from(sorted(AGENTS)),
    "source": st.text(max_size=20),
    "env_id": st.none() | st.text(max_size=20),
    "context": st.sampled_from(CONTEXTS),
    "context_length": st.integers(2, 1000),
    "steps_per_update": positive,
    "clip_actions": st.booleans(),
    "max_episode_steps": st.none() | positive,
    "dropout": st.floats(0, 0.9),
    "learning_rate": floats,
    "lr_schedule": st.sampled_from(["constant", "cosine"]),
    "max_grad_norm": floats | st.integers(1, 100),
    "target_return": st.none() | st.floats(-1e6, 1e6),
}


@quick
@given(st.fixed_dictionaries({"seed": st.integers(0, 2**31)}, optional=SETTINGS))
def test_a_configuration_comes_back_from_a_file(tmp_path, asked):
    if not MIXERS[AGENTS[asked.get("agent", "bc")].mixer].constant_state and asked.get("context") == "tbptt":
        asked["context"] = "window"  # the other is refused
    config = build_config(asked)
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    again = build_config(read_settings(tmp_path / "config.yaml"))
    assert again == config and differences(settings_of(config), settings_of(again)) == []
    assert asked.items() <= settings_of(config).items()
    changed = {**settings_of(config), "seed": asked["seed"] + 1}
    assert differences(settings_of(config), changed) == [f"seed (run: {asked['seed']}, requested: {asked['seed'] + 1})"]
