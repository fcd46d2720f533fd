"""scripts/memory_tasks: who plays its data, the task of its own, and what its tables say of made-up runs."""

import json
from typing import Any

import memory_page
import numpy as np
import pytest


def runs(rate: float, scores: list[float], ms: float = 10.0) -> list[dict[str, Any]]:
    """A run a seed, which has half of its score after 80 updates and all of it after 160."""
    cost = {"ms_per_update": ms, "ms_per_action": 0.5, "bytes": 2000}
    return [
        {"rate": rate, "seed": seed, "score": score, "curve": [[80, score / 2], [160, score]], "variants": {"4": score}}
        | cost
        for seed, score in enumerate(scores)
    ]


@pytest.fixture
def made_up(tmp_path, monkeypatch) -> None:
    found = {
        "decision-aaren": [*runs(1.0, [99.0]), *runs(3.0, [90.0, 94.0])],
        "decision-gru": runs(1.0, [50.0], ms=20.0),
    }
    tree = {
        "tasks": {"Recall": {"one_action": 25, "data": 70}},
        "rates": {"Recall": {"decision-aaren": 3.0}},
        "runs": {"Recall": found},
    }
    (tmp_path / "results.json").write_text(json.dumps(tree), encoding="utf-8")
    monkeypatch.setattr(memory_page, "RESULTS", tmp_path / "results.json")


@pytest.mark.usefixtures("made_up")
def test_a_table_has_the_runs_with_the_chosen_rate():
    head, rows = memory_page.tasks()
    assert head == ["task", "seeds", "one action", "data", "Decision-Aaren", "Decision-GRU"]
    assert rows[0] == ["Recall", "2", "25", "70", "92 ± 3, 2\N{NO-BREAK SPACE}s", "50, never"]
    assert rows[1][4:] == ["0.50", "0.50"] and rows[2][4:] == ["2,000", "2,000"]
    assert memory_page.chosen_rate({"rates": {memory_page.TUNED: {"bc": 0.3}}}, "Recall", "bc") == 0.3
    assert memory_page.lengths()[1] == [["Recall", "4", "92", "-", "50", *["-"] * 5]]


@pytest.mark.usefixtures("made_up")
def test_where_nobody_is_as_good_as_the_data_no_time_is_told():
    tree = json.loads(memory_page.RESULTS.read_text(encoding="utf-8"))
    tree["tasks"]["Recall"]["data"] = 93
    memory_page.RESULTS.write_text(json.dumps(tree), encoding="utf-8")
    assert memory_page.tasks()[1][0][4:] == ["92 ± 3", "50"]


@pytest.fixture(scope="module")
def data() -> Any:
    for package in ("popgym", "minigrid"):
        pytest.importorskip(package, reason="needs the extra memory")
    import memory_data

    return memory_data


@pytest.mark.filterwarnings("ignore")
def test_experts_score_everything_and_seeds_repeat(data):
    for task in data.TASKS.values():
        assert task.score(data.played(task, 300, 0.0).returns) == pytest.approx(100, abs=0.01), task.name
    task = data.TASKS["Recall"]
    first, second = (data.played(task, 300, 0.8) for _ in range(2))
    np.testing.assert_array_equal(first.observations, second.observations)
    assert task.score(first.returns) < 90


def test_recall_asks_for_every_key_once(data):
    env = data.Recall(pairs=5)
    shown, rows, ended = {}, [env.reset(seed=3)[0]], False
    while not ended:
        key, value = rows[-1]
        if value < data.VALUES:
            shown[key] = value
        after, reward, ended, _, _ = env.step(shown[key])
        assert reward == pytest.approx(0.2 if value == data.VALUES else 0)
        rows.append(after)
    assert len(rows) == 11 and sorted(key for key, _ in rows[5:10]) == sorted(shown) and len(shown) == 5
