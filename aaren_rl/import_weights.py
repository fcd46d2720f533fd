"""Make a policy of a Decision Transformer that Hugging Face's transformers has trained.

  aaren-rl import-weights HF_FOLDER FOLDER --env hopper-medium
  aaren-rl evaluate FOLDER

SOURCE is a folder with Hugging Face's config.json and model.safetensors. Its actions depend on how observations were
normalized, which it does not store: the statistics are those of the data of --env and --source, or of a JSON file
{"mean": [...], "std": [...]}, such as the numbers of a Hugging Face model card. Nothing in SOURCE is executed.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from .agents.model.config import ModelConfig
from .agents.model.decision import DecisionModel
from .base.errors import CheckpointError, UsageError, one_line
from .base.fields import CONTEXT, RETURN, RETURN_SCALE, read
from .base.files import check_free, read_small, sha256
from .cli import Parser, import_registering, run
from .envs.load import load_task
from .envs.tasks.table import Task, get_task
from .evaluate.play import check_fits
from .policies.card import LEAST, PolicyCard, task_fields, versions
from .policies.folder import load_tensors, make_model, save_policy

__all__ = ["import_model"]

WEIGHTS = "model.safetensors"
# Parts of their names to ours; no part means two things.
_NAMES = {
    "embed_state.": "embed_observation.",
    "embed_ln.": "norm.",
    "predict_action.0.": "head.",
    "encoder.h.": "trunk.blocks.",
    "encoder.ln_f.": "trunk.norm.",
    ".attn.c_proj.": ".mixer.output.",
    ".ln_1.": ".norm1.",
    ".ln_2.": ".norm2.",
    ".mlp.c_fc.": ".mlp.0.",
    ".mlp.c_proj.": ".mlp.2.",
}
# What has no effect on actions.
_UNUSED = ("predict_return.", "predict_state.", "encoder.wte.", "encoder.wpe.")
# Hugging Face's names of activations to ours; its default is relu.
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}


# What cannot be imported otherwise. Where it is left out, it is so.
_ONLY: dict[str, Any] = {"model_type": "decision_transformer", "action_tanh": True}
_ONLY |= {"layer_norm_epsilon": 1e-5, "add_cross_attention": False}


@dataclass(frozen=True)
class _Config:
    """What we read of Hugging Face's configuration, with the defaults that it leaves out."""

    n_head: int = 1
    resid_pdrop: float = 0.1
    activation_function: str = "relu"
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False

    def __post_init__(self) -> None:
        if self.activation_function not in _ACTIVATIONS:
            raise ValueError(f"activation_function is {self.activation_function!r}; only {' or '.join(_ACTIVATIONS)}")
        if self.n_head < 1:
            raise ValueError(f"n_head is {self.n_head}; at least 1")


@dataclass(frozen=True)
class _Statistics:
    mean: list[float]
    std: list[float]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = Parser("import-weights", __doc__, "SOURCE FOLDER [options]")
    add = parser.add_argument
    add("weights", type=Path, metavar="SOURCE", help="folder with the weights")
    add("folder", type=Path, metavar="FOLDER", help="policy folder to write; must not exist, or be empty")
    add("--env", metavar="NAME", default="hopper-medium", help="task it was trained for [hopper-medium]")
    add("--source", metavar="NAME", help="data of the statistics, as in train [auto]")
    add("--statistics", type=Path, metavar="FILE", help='JSON {"mean": [...], "std": [...]} instead')
    add("--context-length", type=CONTEXT.integer, metavar="K", default=20, help="context in steps [20]")
    add("--target-return", type=RETURN.number, metavar="R", help="return to ask for (the task's)")
    scale = "returns are divided by it [1000]"
    add("--return-scale", type=RETURN_SCALE.number, metavar="X", default=1000.0, help=scale)
    parser.add_shared()
    return run(parser, _import_weights, argv)


def _import_weights(arguments: argparse.Namespace) -> int:
    check_free(arguments.folder)
    if arguments.statistics is not None and arguments.source is not None:
        raise UsageError(f"--source {arguments.source}: --statistics has the statistics already; leave one out")
    import_registering(arguments.register)
    model, file = import_model(arguments.weights), arguments.weights / WEIGHTS
    task, mean, std = _statistics(arguments)
    if task.n_actions is not None:
        raise UsageError(f"{task.name} has discrete actions, and these weights are for continuous ones; choose another")
    target, length, size = arguments.target_return, arguments.context_length, len(task.action_low)
    card = PolicyCard(
        # The tanh of the original goes to the environment as it is, whatever its bounds.
        **task_fields(task) | {"action_low": [-1.0] * size, "action_high": [1.0] * size},
        agent="decision-transformer",
        dataset=task.name,
        source="imported",
        source_path=str(file),
        context="window",
        context_length=length,
        rollout="window",
        rollout_context=length,
        target_return=task.target_returns[0] if target is None else target,
        return_scale=arguments.return_scale,
        exact=False,
        observation_mean=mean.tolist(),
        observation_std=std.tolist(),
        model=asdict(model.config),
        updates=0,
        seed=0,
        weights="ema",
        versions={**versions(), "device": "cpu", "weights": f"Hugging Face's, SHA-256 {sha256(file)}"},
    )
    check_fits(card)
    save_policy(arguments.folder, card, {"ema": model.state_dict()})
    print(f"{arguments.folder}: {model.config.layers} layers of width {model.config.width}, K = {length}")
    print(f"score it with: aaren-rl evaluate {arguments.folder}")
    return 0


def _statistics(arguments: argparse.Namespace) -> tuple[Task, npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """The task, and mean and standard deviation of its observations, (O,) each."""
    file = arguments.statistics
    if file is None:
        task, episodes = load_task(arguments.env, arguments.source or "auto")
        return task, *episodes.observation_statistics()
    task = get_task(arguments.env)
    try:
        found = read(_Statistics, json.loads(read_small(file)))
        with np.errstate(over="ignore"):  # infinity is an error below
            mean, std = np.array(found.mean, np.float32), np.array(found.std, np.float32)
        sizes = {len(mean), len(std)}
        if sizes != {task.observation_dim} or not np.isfinite([mean, std]).all() or std.min() < LEAST:
            raise ValueError(f"needs {task.observation_dim} finite numbers each, and std of at least {LEAST:g}")
    except (OSError, ValueError, RecursionError) as error:
        reason = one_line(error)
        raise UsageError(f'{file}: not a JSON file {{"mean": [...], "std": [...]}} ({reason})') from error
    return task, mean, std


def import_model(folder: Path) -> DecisionModel:
    """Our Decision Transformer with the weights of Hugging Face's folder, which computes the same actions.

    Raises:
        CheckpointError: not readable, or with something that our model does not have.
    """
    described = folder / "config.json"
    try:
        tree = json.loads(read_small(described))
        given = {"model_type": "", **tree}  # which is never left out
        if other := [name for name, value in _ONLY.items() if given.get(name, value) != value]:
            raise ValueError(f"{other[0]} is {given[other[0]]!r}; only {_ONLY[other[0]]} can be imported")
        config = read(_Config, {name: tree[name] for name in tree if name in _Config.__annotations__})
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError(f"{described}: not readable: {one_line(error)}") from error
    tensors = load_tensors(folder / WEIGHTS)
    made: dict[str, Any] = {"heads": config.n_head, "dropout": config.resid_pdrop, "block": "pre-norm"}
    made |= {"activation": _ACTIVATIONS[config.activation_function], "mixer": "attention", "tokens_per_step": 3}
    try:
        ours = _renamed(_plain(tensors, config))
        model = ModelConfig(
            observation_dim=ours["embed_observation.weight"].shape[1],
            action_dim=ours["embed_action.weight"].shape[1],
            width=ours["norm.weight"].shape[0],
            layers=len({name.split(".")[2] for name in ours if name.startswith("trunk.blocks.")}),
            max_timestep=ours["embed_timestep.weight"].shape[0],
            **made,
        )
        return make_model(model, ours).eval()  # strict, so nothing is overlooked
    except KeyError as error:
        raise CheckpointError(f"{folder / WEIGHTS}: {error.args[0]} is missing") from error
    except (IndexError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{folder / WEIGHTS}: {one_line(error)}") from error


def _plain(tensors: Mapping[str, Tensor], config: _Config) -> dict[str, Tensor]:
    """Hugging Face's tensors, as linear layers with a query, a key and a value of their own."""
    plain = dict(tensors)
    # Every token has position 0 there, so the position embedding is one more bias behind the first layer norm.
    plain["embed_ln.bias"] = plain["embed_ln.bias"] + plain["encoder.wpe.weight"][0]
    for name, tensor in tensors.items():
        if ".c_" in name and name.endswith(".weight"):  # (in, out)
            plain[name] = tensor.t().contiguous()
        if ".attn.c_attn." in name:
            query, key, value = plain.pop(name).chunk(3)
            # Their attention scores may not be scaled by 1 / sqrt(D), as ours are.
            scale = 1.0 if config.scale_attn_weights else math.sqrt(len(query) // config.n_head)
            query = query * (scale / (int(name.split(".")[2]) + 1 if config.scale_attn_by_inverse_layer_idx else 1))
            for part, own in (("query", query), ("key", key), ("value", value)):
                plain[name.replace("attn.c_attn", f"mixer.{part}")] = own
    return plain


def _renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    ours = {}
    for name, tensor in tensors.items():
        if not name.startswith(_UNUSED) and not name.endswith((".attn.bias", ".attn.masked_bias")):
            for theirs, mine in _NAMES.items():
                name = name.replace(theirs, mine)
            ours[name] = tensor
    return ours
