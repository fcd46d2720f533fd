"""The public names of `agents`."""

from ..base.errors import NonFiniteActionError
from .mixers import MIXERS, RSA, Aaren, AarenRSA, Attention, Encoded, Mixer
from .mixers.rsa.encoding import RemConfig
from .mixers.tree.mixer import TreeAttention, TreeConfig
from .mixers.tree.samplers import SAMPLERS
from .model.config import ModelConfig
from .model.critic import Critic
from .model.decision import DecisionModel, ReturnEstimate, expectile_loss
from .model.scaling import ReturnRange
from .model.trunk import Block, Trunk
from .policy.guidance import GuidedPolicy, tree_config, with_guidance, with_softmax_attention, with_tree_attention
from .policy.memory import PolicyState
from .policy.torch_policy import ROLLOUTS, Policy
from .scan.cross_attention import CrossAttention, attend
from .scan.prefix import prefix_scan, scan_step
from .scan.state import ScanState, combine

__all__ = [
    "MIXERS",
    "ROLLOUTS",
    "RSA",
    "SAMPLERS",
    "Aaren",
    "AarenRSA",
    "Attention",
    "Block",
    "Critic",
    "CrossAttention",
    "DecisionModel",
    "Encoded",
    "GuidedPolicy",
    "Mixer",
    "ModelConfig",
    "NonFiniteActionError",
    "Policy",
    "PolicyState",
    "RemConfig",
    "ReturnEstimate",
    "ReturnRange",
    "ScanState",
    "TreeAttention",
    "TreeConfig",
    "Trunk",
    "attend",
    "combine",
    "expectile_loss",
    "prefix_scan",
    "scan_step",
    "tree_config",
    "with_guidance",
    "with_softmax_attention",
    "with_tree_attention",
]
