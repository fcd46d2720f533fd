"""The loss of a policy, Decision Transformer's: how far its actions are from the data's, on average over steps."""

import torch
from torch import Tensor


def action_errors(predicted: Tensor, target: Tensor, mask: Tensor, *, discrete: bool = False) -> Tensor:
    """Errors (B, T) of actions (B, T, A), 0 where the bool `mask` (B, T) is False.

    Of continuous actions the squared error, a mean over dimensions; of discrete ones, whose `target` is one-hot and
    whose `predicted` are logits, the cross entropy in nats.
    """
    if discrete:
        errors = -(predicted.float().log_softmax(-1) * target).sum(-1)
    else:
        errors = (predicted.float() - target).square().mean(-1)
    return torch.where(mask, errors, 0.0)


def mean_error(
    predicted: Tensor, target: Tensor, mask: Tensor, count: Tensor | None = None, *, discrete: bool = False
) -> Tensor:
    """The mean of `action_errors` over the true positions of `mask`.

    If this is a part of a batch with `count` true positions, the errors of all parts sum to that of the batch.
    """
    errors = action_errors(predicted, target, mask, discrete=discrete)
    return errors.sum() / (mask.sum() if count is None else count)
