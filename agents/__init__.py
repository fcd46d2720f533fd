"""The models: the scan, the mixers, the decision model and the policy. Imports torch only."""

from .decision import DecisionModel, ModelConfig
from .encoding import RemConfig
from .mixers import Aaren, AarenRsa, Attention, Encoded, Rsa
from .policy import ROLLOUTS, NonFiniteActionError, Policy, PolicyState
from .scan import ScanState, combine, prefix_scan, scan_step
from .trunk import MIXERS, Block, Trunk

__all__ = [
    "MIXERS",
    "ROLLOUTS",
    "Aaren",
    "AarenRsa",
    "Attention",
    "Block",
    "DecisionModel",
    "Encoded",
    "ModelConfig",
    "NonFiniteActionError",
    "Policy",
    "PolicyState",
    "RemConfig",
    "Rsa",
    "ScanState",
    "Trunk",
    "combine",
    "prefix_scan",
    "scan_step",
]
