"""The public names of `agents`."""

from ..base.errors import NonFiniteActionError
from .mixers import MIXERS
from .mixers.aaren import Aaren
from .mixers.attention import Attention
from .mixers.base import Mixer
from .mixers.rsa import RSA, AarenRSA, Encoded, RemConfig
from .mixers.tree import SAMPLERS, TreeAttention, TreeConfig
from .model.config import ModelConfig
from .model.decision import Block, DecisionModel, ReturnEstimate, ReturnRange, Trunk, expectile_loss
from .policy.base import PolicyState
from .policy.policy import ROLLOUTS, Policy
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
    "CrossAttention",
    "DecisionModel",
    "Encoded",
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
]
