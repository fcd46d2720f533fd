"""Decision Transformers that others trained, as our own: min-decision-transformer's and Hugging Face's weights.

Nothing in a file is executed: safetensors, JSON, and tensors through torch.load(weights_only=True).
"""

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..agents import DecisionModel, ModelConfig
from ..base.errors import CheckpointError, one_line
from ..base.files import read_small
from ..base.json_dataclass import read
from ..policies.folder import load_tensors, make_model

HUGGING_FACE, MIN_DT = "Hugging Face's DecisionTransformerModel", "min-decision-transformer"
_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")

# Parts of their names to ours; no part means two things in the two layouts.
_NAMES = {
    "embed_state.": "embed_observation.",
    "embed_ln.": "norm.",
    "predict_action.0.": "head.",
    "embed_rtg.": "embed_return.",
    "transformer.": "trunk.blocks.",
    ".attention.q_net.": ".mixer.query.",
    ".attention.k_net.": ".mixer.key.",
    ".attention.v_net.": ".mixer.value.",
    ".attention.proj_net.": ".mixer.output.",
    ".ln1.": ".norm1.",
    ".ln2.": ".norm2.",
    # Hugging Face's.
    "encoder.h.": "trunk.blocks.",
    "encoder.ln_f.": "trunk.norm.",
    ".attn.c_proj.": ".mixer.output.",
    ".ln_1.": ".norm1.",
    ".ln_2.": ".norm2.",
    ".mlp.c_fc.": ".mlp.0.",
    ".mlp.c_proj.": ".mlp.2.",
}
# What has no effect on actions.
_UNUSED = re.compile(r"predict_(rtg|return|state)\.|encoder\.wte\.|.*\.(attention\.mask|attn\.(masked_)?bias)$")

# Hugging Face's names of activations to ours; its default is relu.
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu-tanh", "gelu_pytorch_tanh": "gelu-tanh"}


class Imported(NamedTuple):
    """A model that someone else trained."""

    model: DecisionModel  # ours, with their weights
    origin: str  # the code that trained it, `HUGGING_FACE` or `MIN_DT`
    file: Path  # of the weights
    context_length: int | None  # K in steps, where the file says it


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
    mask = tensors.get("transformer.0.attention.mask")
    if mask is None or mask.dim() == 0:
        raise CheckpointError(f"{source}: weights of neither {MIN_DT} nor {HUGGING_FACE}")
    made = {"heads": heads or 1, "dropout": 0.1, "block": "post-norm", "activation": "gelu"}
    return Imported(_build(source, tensors, made), MIN_DT, source, mask.shape[-1] // 3)


def _hugging_face(folder: Path) -> Imported:
    described = folder / "config.json"
    try:
        tree = json.loads(read_small(described))
        if isinstance(tree, dict):
            tree = {name: value for name, value in tree.items() if name in _Config.__annotations__}
        config = read(_Config, tree)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{described}: not readable: {one_line(error)}") from error
    file = next((file for name in _WEIGHT_FILES if (file := folder / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"{folder}: no {' or '.join(_WEIGHT_FILES)} here")
    made = {"heads": config.n_head, "dropout": config.resid_pdrop, "block": "pre-norm"}
    made |= {"activation": _ACTIVATIONS[config.activation_function]}
    return Imported(_build(file, _read(file), made, config), HUGGING_FACE, file, None)


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


# What our model can express.
_ALLOWED: dict[str, Collection[object]] = {
    "model_type": ("decision_transformer",),
    "activation_function": _ACTIVATIONS,
    "action_tanh": (True,),
    "layer_norm_epsilon": (1e-5,),
    "add_cross_attention": (False,),
}


def _plain(tensors: Mapping[str, Tensor], config: _Config) -> dict[str, Tensor]:
    """Hugging Face's tensors, as linear layers with a query, a key and a value of their own."""
    plain = dict(tensors)
    # Every token has position 0 there, so the position embedding is one more bias behind the first layer norm.
    plain["embed_ln.bias"] = plain["embed_ln.bias"] + plain.pop("encoder.wpe.weight")[0]
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


def _build(
    file: Path, tensors: Mapping[str, Tensor], made: dict[str, Any], config: _Config | None = None
) -> DecisionModel:
    """Our model of their tensors; loading them is strict, so nothing is overlooked. `config` is Hugging Face's."""
    ours: dict[str, Tensor] = {}
    try:
        for name, tensor in (tensors if config is None else _plain(tensors, config)).items():
            own = name
            for theirs, mine in _NAMES.items():
                own = own.replace(theirs, mine)
            if not _UNUSED.match(name):
                ours[own] = tensor
        model = ModelConfig(
            observation_dim=ours["embed_observation.weight"].shape[1],
            action_dim=ours["embed_action.weight"].shape[1],
            mixer="attention",
            width=ours["norm.weight"].shape[0],
            layers=len({name.split(".")[2] for name in ours if name.startswith("trunk.blocks.")}),
            max_timestep=ours["embed_timestep.weight"].shape[0],
            tokens_per_step=3,
            **made,
        )
        built = make_model(model, ours)
    except KeyError as error:
        raise CheckpointError(f"{file}: {error.args[0]} is missing") from error
    except (IndexError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{file}: {one_line(error)}") from error
    return built.eval()


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
    if not isinstance(tree, dict) or not all(isinstance(k, str) and isinstance(v, Tensor) for k, v in tree.items()):
        raise CheckpointError(f"{file}: not a state dictionary; save it with torch.save(model.state_dict(), FILE)")
    return tree
