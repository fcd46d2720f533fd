"""The models: the scan, the mixers, the decision model and the policy. Imports torch only."""

from .cross_attention import CrossAttention, attend
from .decision import DecisionModel, ModelConfig
from .mixers import Aaren, Attention
from .policy import ROLLOUTS, NonFiniteActionError, Policy, PolicyState
from .scan import ScanState, combine, prefix_scan, scan_step
from .trunk import MIXERS, Block, Trunk

__all__ = [
    "MIXERS",
    "ROLLOUTS",
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
    "Trunk",
    "attend",
    "combine",
    "prefix_scan",
    "scan_step",
]
