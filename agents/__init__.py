"""The models: the scan, the mixers, the decision model and the policy. Imports torch only."""

from .cross_attention import CrossAttention, attend
from .decision import DecisionModel, ModelConfig
from .mixers import Aaren, Attention
from .mixers.tree import TreeAttention, TreeConfig
from .policy import ROLLOUTS, NonFiniteActionError, Policy, PolicyState
from .scan import ScanState, combine, prefix_scan, scan_step
from .tree_policy import tree_config, tree_state, with_tree_attention
from .tree_samplers import SAMPLERS
from .trunk import MIXERS, Block, Trunk

__all__ = [
    "MIXERS",
    "ROLLOUTS",
    "SAMPLERS",
    "Aaren",
    "Attention",
    "Block",
    "CrossAttention",
    "DecisionModel",
    "ModelConfig",
    "NonFiniteActionError",
    "Policy",
    "PolicyState",
    "ScanState",
    "TreeAttention",
    "TreeConfig",
    "Trunk",
    "attend",
    "combine",
    "prefix_scan",
    "scan_step",
    "tree_config",
    "tree_state",
    "with_tree_attention",
]
