"""The loss of a policy, Decision Transformer's: how far its actions are from the data's, on average over steps."""

import torch
from torch import Tensor


def mean_error(
    predicted: Tensor, target: Tensor, mask: Tensor, count: Tensor | None = None, *, discrete: bool = False
) -> Tensor:
    """The mean error of actions (B, T, A) over the steps where the bool `mask` (B, T) is True.

    Of continuous actions the squared error, a mean over dimensions; of discrete ones, whose `target` is one-hot and
    whose `predicted` are logits, the cross entropy in nats. If this is a part of a batch with `count` true positions,
    the errors of all parts sum to that of the batch.
    """
    if discrete:
        errors = -(predicted.float().log_softmax(-1) * target).sum(-1)
    else:
        errors = (predicted.float() - target).square().mean(-1)
    return torch.where(mask, errors, 0.0).sum() / (mask.sum() if count is None else count)
