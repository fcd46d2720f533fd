"""Triton's interpreter as the tests use it: as slow as it has to be, and rounding to bfloat16 as a GPU does.

It takes every element of an associative scan by itself, patches the language at every call of one kernel's function by
another, and cuts a float32's lower half off to make a bfloat16.
"""

import os
from typing import Any

import numpy as np
import torch


def prepare() -> None:
    """Mends the interpreter of this process, if Triton is installed and interprets."""
    try:
        from triton.runtime import interpreter
    except ImportError:
        return
    if os.environ.get("TRITON_INTERPRET") == "1":
        interpreter.ScanOps.generic_scan = _scan_by_slices
        patched = interpreter.InterpretedFunction.__call__
        interpreter.InterpretedFunction.__call__ = lambda self, *x, **y: (
            # Of Triton's own functions the language is another module, which a launch has not patched yet.
            patched(self, *x, **y) if self.fn.__module__.startswith("triton.") else self.rewrite()(*x, **y)
        )
        interpreter.InterpreterBuilder.create_fp_trunc = _truncate


def _scan_by_slices(self: Any, inputs: tuple[Any, ...]) -> list[Any]:
    """The same combinations of the same numbers, all columns at once."""
    arrays, types = [x.handle.data for x in inputs], [x.dtype for x in inputs]
    found = [np.empty_like(array) for array in arrays]
    so_far: tuple[Any, ...] | None = None
    for i in range(arrays[0].shape[self.axis]):
        place = tuple(slice(i, i + 1) if axis == self.axis else slice(None) for axis in range(arrays[0].ndim))
        here = tuple(self.to_tensor(array[place], type_) for array, type_ in zip(arrays, types, strict=True))
        if so_far is not None:
            joined = self.combine_fn.fn(*so_far, *here)
            here = joined if isinstance(joined, tuple) else (joined,)
        for array, x in zip(found, here, strict=True):
            array[place] = x.handle.data
        so_far = tuple(self.to_tensor(array[place], type_) for array, type_ in zip(found, types, strict=True))
    return [self.to_tensor(array, type_) for array, type_ in zip(found, types, strict=True)]


def _truncate(self: Any, source: Any, to: Any) -> Any:
    from triton import language as tl
    from triton.runtime.interpreter import TensorHandle

    if to.scalar is tl.bfloat16 and source.dtype.scalar == tl.float32:
        rounded = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.bfloat16)
        return TensorHandle(rounded.view(torch.uint16).numpy(), to.scalar)
    return self.cast_impl(source, to)
