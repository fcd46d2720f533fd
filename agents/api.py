"""The public names of `agents`: those that are imported here under their own name."""
# ruff: noqa: I001  it would put every name into a statement of its own

from ..base.errors import NonFiniteActionError as NonFiniteActionError
from .mixers import MIXERS as MIXERS
from .mixers.aaren import Aaren as Aaren
from .mixers.attention import Attention as Attention
from .mixers.base import Mixer as Mixer
from .mixers.cross_attention import CrossAttention as CrossAttention, attend as attend
from .mixers.rsa import RSA as RSA, AarenRSA as AarenRSA, Encoded as Encoded, RemConfig as RemConfig
from .mixers.tree import SAMPLERS as SAMPLERS, TreeAttention as TreeAttention, TreeConfig as TreeConfig
from .model.config import ModelConfig as ModelConfig
from .model.decision import Block as Block, DecisionModel as DecisionModel, Trunk as Trunk
from .model.decision import ReturnEstimate as ReturnEstimate, ReturnRange as ReturnRange
from .model.decision import expectile_loss as expectile_loss
from .policy.base import PolicyState as PolicyState
from .policy.policy import ROLLOUTS as ROLLOUTS, Policy as Policy
from .scan.prefix import prefix_scan as prefix_scan, scan_step as scan_step
from .scan.state import ScanState as ScanState, combine as combine
