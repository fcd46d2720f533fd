"""The error of a model whose action cannot be used. No torch."""


class NonFiniteActionError(FloatingPointError):
    """The model's action is NaN or infinite; it was not returned."""
