"""Decision Transformers that others trained, as our own: min-decision-transformer's and Hugging Face's weights.

Nothing in a file is executed: safetensors, JSON, and tensors through torch.load(weights_only=True).
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..agents import DecisionModel, ModelConfig
from ..errors import CheckpointError, one_line
from ..files import read_small
from ..policies.folder import load_tensors
from ..typed import read

HUGGING_FACE, MIN_DT = "Hugging Face's DecisionTransformerModel", "min-decision-transformer"
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")

# Theirs to ours; without weight and bias.
_OUTSIDE = {
    "embed_state": "embed_observation",
    "embed_action": "embed_action",
    "embed_ln": "norm",
    "predict_action.0": "head",
}
_MIN_DT_BLOCK = {
    "attention.q_net": "mixer.query",
    "attention.k_net": "mixer.key",
    "attention.v_net": "mixer.value",
    "attention.proj_net": "mixer.output",
    "ln1": "norm1",
    "mlp.0": "mlp.0",
    "mlp.2": "mlp.2",
    "ln2": "norm2",
}
_HUGGING_FACE_BLOCK = {
    "ln_1": "norm1",
    "ln_2": "norm2",
    "attn.c_proj": "mixer.output",
    "mlp.c_fc": "mlp.0",
    "mlp.c_proj": "mlp.2",
    "attn.c_attn": "all",
}

# Hugging Face's names of activations to ours; its default is relu.
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}


class Imported(NamedTuple):
    """A model that someone else trained.

    Attributes:
        model: ours, with their weights.
        origin: the code that trained it, `HUGGING_FACE` or `MIN_DT`.
        file: the weights' file.
        context_length: K in steps, where the file says it.
    """

    model: DecisionModel
    origin: str
    file: Path
    context_length: int | None


def import_model(source: Path, *, heads: int | None = None) -> Imported:
    """Our Decision Transformer with the weights of others, which computes the same actions.

    Args:
        source: Hugging Face's folder, or a file with the state dictionary of min-decision-transformer.
        heads: of min-decision-transformer, whose files do not say; 1 by default, as there.

    Raises:
        CheckpointError: not readable, neither of the two, or with something that our model does not have.
    """
    if source.is_dir():
        return _hugging_face(source)
    tensors = _read(source)
    if any(name.startswith("encoder.h.") for name in tensors):
        raise CheckpointError(f"{source}: weights of {HUGGING_FACE}; give its folder, with config.json")
    if "transformer.0.attention.q_net.weight" not in tensors:
        raise CheckpointError(f"{source}: weights of neither {MIN_DT} nor {HUGGING_FACE}")
    return _min_dt(source, tensors, heads or 1)


def _min_dt(file: Path, tensors: dict[str, Tensor], heads: int) -> Imported:
    names = _Names(file, tensors)
    blocks = names.count("transformer.")
    mask = names.take("transformer.0.attention.mask")
    ours = names.outside("embed_rtg", _OUTSIDE)
    for i in range(blocks):
        for theirs, own in _MIN_DT_BLOCK.items():
            ours |= names.linear(f"transformer.{i}.{theirs}", f"trunk.blocks.{i}.{own}")
    names.finish(("predict_rtg.", "predict_state.", *(f"transformer.{i}.attention.mask" for i in range(blocks))))
    model = _build(file, ours, blocks, heads=heads, dropout=0.1, block="post-norm", activation="gelu")
    return Imported(model, MIN_DT, file, mask.shape[-1] // 3)


def _hugging_face(folder: Path) -> Imported:
    config = _read_config(folder / "config.json")
    found = [folder / name for name in _WEIGHT_FILES if (folder / name).is_file()]
    if not found:
        raise CheckpointError(f"{folder}: no {' or '.join(_WEIGHT_FILES)} here")
    names = _Names(found[0], _read(found[0]))
    blocks = names.count("encoder.h.")
    ours = names.outside("embed_return", _OUTSIDE)
    # Every token has position 0 there, so the position embedding is one more bias behind the first layer norm.
    ours["norm.bias"] = ours["norm.bias"] + names.take("encoder.wpe.weight")[0]
    ours |= names.linear("encoder.ln_f", "trunk.norm")
    heads, width = config.n_head, len(ours["norm.bias"])
    for i in range(blocks):
        theirs, own = f"encoder.h.{i}.", f"trunk.blocks.{i}."
        for name, mine in _HUGGING_FACE_BLOCK.items():
            ours |= names.linear(theirs + name, own + mine, transposed=".c_" in name)
        for kind in ("weight", "bias"):
            joined = ours.pop(f"{own}all.{kind}")
            for part, name in enumerate(("query", "key", "value")):
                scale = config.score_scale(width // heads, i) if name == "query" else 1.0
                ours[f"{own}mixer.{name}.{kind}"] = scale * joined[part * width : (part + 1) * width]
    masks = (f"encoder.h.{i}.attn.{name}" for i in range(blocks) for name in ("bias", "masked_bias"))
    names.finish(("predict_return.", "predict_state.", "encoder.wte.", *masks))
    activation = _ACTIVATIONS[config.activation_function]
    made = {"heads": heads, "dropout": config.resid_pdrop, "block": "pre-norm", "activation": activation}
    model = _build(found[0], ours, blocks, **made)
    return Imported(model, HUGGING_FACE, found[0], None)


@dataclass(frozen=True)
class _Config:
    """What we read of Hugging Face's configuration, with the defaults that it leaves out."""

    model_type: str = ""
    n_head: int = 1
    resid_pdrop: float = 0.1
    activation_function: str = "relu"
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    action_tanh: bool = True
    layer_norm_epsilon: float = 1e-5
    add_cross_attention: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _ALLOWED.items():
            if (value := getattr(self, name)) not in allowed:
                raise ValueError(f"{name} is {value!r}; only {' or '.join(map(str, allowed))} can be imported")
        if self.n_head < 1:
            raise ValueError(f"n_head is {self.n_head}; at least 1")

    def score_scale(self, head_dim: int, layer: int) -> float:
        """What the queries are multiplied with, for attention scores that are not scaled by 1 / sqrt(D)."""
        scale = 1.0 if self.scale_attn_weights else math.sqrt(head_dim)
        return scale / (layer + 1) if self.scale_attn_by_inverse_layer_idx else scale


# What our model can express.
_ALLOWED: dict[str, Collection[object]] = {
    "model_type": ("decision_transformer",),
    "activation_function": _ACTIVATIONS,
    "action_tanh": (True,),
    "layer_norm_epsilon": (1e-5,),
    "add_cross_attention": (False,),
}


def _read_config(file: Path) -> _Config:
    try:
        tree = json.loads(read_small(file))
        if isinstance(tree, dict):
            tree = {name: value for name, value in tree.items() if name in _Config.__annotations__}
        return read(_Config, tree)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: not readable: {one_line(error)}") from error


def _build(file: Path, tensors: dict[str, Tensor], blocks: int, **model: Any) -> DecisionModel:  # noqa: ANN401
    try:
        config = ModelConfig(
            observation_dim=tensors["embed_observation.weight"].shape[1],
            action_dim=tensors["embed_action.weight"].shape[1],
            mixer="attention",
            width=tensors["norm.weight"].shape[0],
            layers=blocks,
            max_timestep=tensors["embed_timestep.weight"].shape[0],
            tokens_per_step=3,
            **model,
        )
        built = DecisionModel(config)
        built.load_state_dict(tensors)
    except (IndexError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file}: {one_line(error)}") from error
    return built.eval()


class _Names:
    """A state dictionary that is taken apart name by name, so that nothing in it is overlooked."""

    def __init__(self, file: Path, tensors: dict[str, Tensor]) -> None:
        self._file, self._left = file, dict(tensors)

    def take(self, name: str) -> Tensor:
        if name not in self._left:
            raise CheckpointError(f"{self._file}: {name} is missing")
        return self._left.pop(name)

    def linear(self, theirs: str, ours: str, *, transposed: bool = False) -> dict[str, Tensor]:
        """Weight and bias under our name; `transposed`: theirs is (in, out)."""
        weight, bias = self.take(f"{theirs}.weight"), self.take(f"{theirs}.bias")
        return {f"{ours}.weight": weight.T.contiguous() if transposed else weight, f"{ours}.bias": bias}

    def outside(self, embed_return: str, names: dict[str, str]) -> dict[str, Tensor]:
        found = {"embed_timestep.weight": self.take("embed_timestep.weight")}
        for theirs, ours in {embed_return: "embed_return", **names}.items():
            found |= self.linear(theirs, ours)
        return found

    def count(self, prefix: str) -> int:
        return len({name.removeprefix(prefix).partition(".")[0] for name in self._left if name.startswith(prefix)})

    def finish(self, unused: Iterable[str]) -> None:
        """Raises CheckpointError where something is left that is not known to have no effect on actions."""
        known = tuple(unused)
        if left := sorted(name for name in self._left if not name.startswith(known)):
            raise CheckpointError(f"{self._file}: what is {', '.join(left[:3])}? Only plain models can be imported")


def _read(file: Path) -> dict[str, Tensor]:
    if file.exists() and not file.is_file():
        raise CheckpointError(f"{file}: is neither file nor folder; give a state dictionary, or Hugging Face's folder")
    if file.suffix == ".safetensors":
        return load_tensors(file)
    try:
        tree = torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:  # says nothing of the file
        raise
    # Damaged and foreign files make torch raise almost anything; nothing in them has been executed.
    except Exception as error:
        # What torch says of others' files is how to execute them all the same.
        reason = f" ({one_line(error)})" if isinstance(error, OSError) else ""
        raise CheckpointError(f"{file}: not readable as tensors alone{reason}; nothing was executed") from error
    if not isinstance(tree, dict) or not all(isinstance(tensor, Tensor) for tensor in tree.values()):
        raise CheckpointError(f"{file}: not a state dictionary; save it with torch.save(model.state_dict(), FILE)")
    return tree
