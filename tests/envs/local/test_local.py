import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from checks import replayed
from safetensors.numpy import load_file

from aaren_rl.envs import DataError, get_task, load_episodes, make_env
from aaren_rl.envs.local import behavior as local_module
from aaren_rl.envs.local.behavior import RECIPES, BehaviorPolicy, Recipe, make_local, play, policy_rows, weights_path

BEHAVIOR = Path(local_module.__file__).parent
MEDIUM = BEHAVIOR / "hopper_380000.safetensors"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AAREN_RL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def small(monkeypatch, level, policies, steps):
    monkeypatch.setitem(RECIPES["hopper"], level, Recipe(policies, steps, "a test's recipe"))


def content(path):
    with h5py.File(path) as file:
        return {key: file[key][()] for key in file} | dict(file.attrs)


def test_every_recipe_has_its_policies():
    assert local_module.local_levels("humanoid") == ()
    for family in ("hopper", "halfcheetah", "walker2d", "ant"):
        assert local_module.local_levels(family) == ("random", "medium", "medium-replay", "medium-expert", "expert")
        for level, recipe in RECIPES[family].items():
            task = get_task(f"{family}-{level}")
            zeros, noise = np.zeros((1, task.observation_dim), np.float32), np.zeros((1, task.action_dim), np.float32)
            for steps in filter(None, recipe.policies):
                assert BehaviorPolicy(weights_path(task, steps)).act(zeros, noise).shape == noise.shape


def test_the_policy_is_the_formula_in_float64():
    w = {k: v.astype(np.float64) for k, v in load_file(MEDIUM).items()}
    rng = np.random.default_rng(0)
    x, noise = rng.standard_normal((5, 11), np.float32), rng.standard_normal((5, 3), np.float32)
    h = np.maximum(x @ w["hidden_0.kernel"] + w["hidden_0.bias"], 0)
    h = np.maximum(h @ w["hidden_1.kernel"] + w["hidden_1.bias"], 0)
    std = np.exp(np.clip(h @ w["log_std.kernel"] + w["log_std.bias"], -20, 2))
    expected = np.tanh(h @ w["mean.kernel"] + w["mean.bias"] + std * noise)
    actions = BehaviorPolicy(MEDIUM).act(x, noise)
    assert actions.dtype == np.float32
    np.testing.assert_array_equal(actions * 2**16, np.round(expected * 2**16))


def test_episodes_are_the_environments():
    """Replaying the stored actions from the same seed gives the stored observations and rewards."""
    env, policy, seeds = make_env("Hopper-v4"), BehaviorPolicy(MEDIUM), [(0, 380_000, number) for number in range(4, 7)]
    played = [play(env, policy, 1000, seed) for seed in seeds]
    for seed, episode in zip(seeds, played, strict=True):
        rng = np.random.default_rng(seed)
        replayed(env, episode, int(rng.integers(2**31)))
        noise = rng.standard_normal((1000, 3), dtype=np.float32)[: len(episode)]
        np.testing.assert_array_equal(episode.actions, policy.act(episode.observations, noise))
        assert episode.terminated or len(episode) == 1000
    assert len({episode.rewards.sum() for episode in played}) == 3, "episodes should differ"
    cut = play(env, policy, 7, seeds[0])
    assert (len(cut), len(cut.observations), cut.terminated) == (7, 7, False)


def test_each_policy_has_its_share_and_its_own_first_episodes_for_any_number_of_threads(monkeypatch):
    for level, policies, steps in (("medium", (40_000,), 500), ("random", (None,), 500)):
        small(monkeypatch, level, policies, steps)
    small(monkeypatch, "medium-expert", (40_000, None), 1000)
    found = []
    monkeypatch.setattr(local_module, "_AT_ONCE", 2)
    for level, threads in (("medium", 1), ("random", 1), ("medium-expert", 3)):
        monkeypatch.setattr(local_module, "core_count", lambda threads=threads: threads)
        found.append(load_episodes(f"hopper-{level}", "local", progress=False))
    medium, random, both = found
    for part in (medium, random):
        # The episode that crosses the share's end is kept whole, and none after it.
        assert part.n_steps >= 500 > part.n_steps - part.lengths[-1]
    for key in ("observations", "actions", "rewards", "terminated"):
        np.testing.assert_array_equal(getattr(both, key), np.concatenate([getattr(medium, key), getattr(random, key)]))
    assert len(np.unique(random.returns)) == len(random)
    assert -1.0 <= random.actions.min() < -0.99 and 0.99 < random.actions.max() <= 1.0


def test_a_set_is_made_once_and_describes_itself(monkeypatch, capfd):
    small(monkeypatch, "random", (None,), 200)
    task = get_task("hopper-random")
    path = make_local(task)
    assert path.parent == local_module.cache_dir() / "datasets" / str(local_module.RECIPE_VERSION)
    assert "making hopper-random" in capfd.readouterr().err
    before = path.stat()
    assert make_local(task) == path
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert capfd.readouterr() == ("", "")
    attrs = content(path)
    assert (attrs["env_id"], attrs["steps"], attrs["policy"]) == ("Hopper-v4", 200, "a test's recipe")
    assert "not the D4RL file" in attrs["origin"]
    assert attrs["mujoco"] and attrs["gymnasium"] and "seed" in attrs


def test_a_set_of_other_size_begins_each_policy_like_the_smaller(monkeypatch):
    small(monkeypatch, "medium-expert", (40_000, None), 1000)
    task = get_task("hopper-medium-expert")
    assert make_local(task, progress=False) == make_local(task, 1000, progress=False)
    one = load_episodes(task.name, "local", progress=False)
    other = load_episodes(task.name, "auto", local_steps=3000, progress=False)
    assert Path(other.path).name == "hopper-medium-expert-3000-local.hdf5" and other.n_steps >= 3000 > one.n_steps
    for (_, (start, end)), (_, (begin, _)) in zip(policy_rows(task, one), policy_rows(task, other), strict=True):
        for key in ("observations", "actions", "rewards"):
            rows = getattr(other, key)[begin : begin + end - start]
            np.testing.assert_array_equal(getattr(one, key)[start:end], rows)


def test_cache_dir(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("AAREN_RL_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match="AAREN_RL_CACHE"):
        make_local(get_task("hopper-random"), progress=False)
    monkeypatch.delenv("AAREN_RL_CACHE")
    for xdg, expected in ((str(tmp_path / "xdg"), "xdg/aaren_rl"), ("", ".cache/aaren_rl")):
        monkeypatch.setenv("XDG_CACHE_HOME", xdg)
        monkeypatch.setenv("HOME", str(tmp_path))
        assert local_module.cache_dir() == tmp_path / expected


SCRIPT = """
from aaren_rl.envs import load_episodes
from aaren_rl.envs.local.behavior import RECIPES, Recipe
RECIPES["hopper"]["random"] = Recipe((None,), 1000, "test")
print(load_episodes("hopper-random", "local", progress=False).n_steps)
"""


@pytest.mark.faults
def test_two_processes_make_one_set(cache):
    command, pipe = [sys.executable, "-c", SCRIPT], subprocess.PIPE
    first, second = (subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(2))
    outputs = [process.communicate(timeout=120) for process in (first, second)]
    assert first.returncode == second.returncode == 0
    assert outputs[0][0] == outputs[1][0]
    # Whichever came second waited, unless it came when all was done.
    waited = [err for _, err in outputs if err]
    assert len(waited) <= 1 and all("another process is making it" in err for err in waited)
    assert len([p for p in cache.rglob("*.hdf5")]) == 1


MAKE = """
import hashlib, json, sys
import numpy as np
from aaren_rl.envs import get_task
from aaren_rl.envs.local.behavior import make_local
file = make_local(get_task("hopper-medium"), 1000, progress=False)
a, b = (np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((8, 256), (256, 256)))
print(json.dumps({name: hashlib.sha256(data).hexdigest() for name, data in
                  {"file": file.read_bytes(), "product": (a @ b).tobytes()}.items()}))
"""
# OpenBLAS's kernels by processor, which NumPy's wheels have; NumPy's own loops without AVX-512.
OLDER = {"OPENBLAS_CORETYPE": "Prescott"}, {"OPENBLAS_CORETYPE": "Haswell", "NPY_DISABLE_CPU_FEATURES": "AVX512F"}


def hashes(cache, processor):
    """SHA-256 of a set and of a product in float32."""
    environment = {**os.environ, "AAREN_RL_CACHE": str(cache), **processor}
    done = subprocess.run([sys.executable, "-c", MAKE], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_set_is_the_same_file_with_the_matrix_products_of_older_processors(tmp_path):
    here = hashes(tmp_path / "here", {})
    older = [hashes(tmp_path / processor["OPENBLAS_CORETYPE"], processor) for processor in OLDER]
    assert [made["file"] for made in older] == [here["file"]] * len(older)
    if (sys.platform, platform.machine()) == ("linux", "x86_64"):  # elsewhere NumPy may have one kind of product
        assert len({made["product"] for made in (here, *older)}) > 1
