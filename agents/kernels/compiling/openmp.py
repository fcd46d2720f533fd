"""A kernel's parts in the threads of OpenMP, without Python in between.

Python's lock would let these threads start one after the other: each would wait to be woken with it, for longer than
many a part takes. Compiled code enters OpenMP's parallel region here, and calls the kernel in each of its threads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

WORD, FLAG, ADDRESS = ir.IntType(64), ir.IntType(8), ir.IntType(8).as_pointer()
COUNT = ir.IntType(32)  # C's int


class OpenMP(NamedTuple):
    """Addresses of functions in the OpenMP library.

    Attributes:
        parallel: GOMP_parallel(function, its argument, threads, flags), the entry point of code that GCC compiles.
        number: omp_get_thread_num().
        size: omp_get_num_threads().
    """

    parallel: int
    number: int
    size: int


def _run_in_team(typing: Any, kernel: Any, openmp: Any, parts: Any, rows: Any, arguments: Any) -> Any:  # noqa: ANN401
    """Compiles the call of `kernel` with a part's number, first and last + 1 of its rows, and the arguments."""
    call = kernel.get_call_type(typing, (types.intp, types.intp, types.intp, *arguments.types), {})

    def build(context: Any, builder: Any, _: Any, values: Any) -> Any:  # noqa: ANN401  of LLVM
        _, openmp, parts, rows, arguments = values
        parallel, number, size = cgutils.unpack_tuple(builder, openmp, 3)
        failed = cgutils.alloca_once_value(builder, FLAG(0))
        job = cgutils.pack_struct(builder, [number, size, parts, rows, failed, arguments])
        place = cgutils.alloca_once_value(builder, job)
        member = _build_member(context, builder.module, place.type, kernel.dispatcher.get_compile_result(call), call)
        enter = ir.FunctionType(ir.VoidType(), [member.type, ADDRESS, COUNT, COUNT]).as_pointer()
        given = [member, builder.bitcast(place, ADDRESS), builder.trunc(parts, COUNT), COUNT(0)]
        builder.call(builder.inttoptr(parallel, enter), given)
        with builder.if_then(builder.trunc(builder.load(failed), ir.IntType(1))):
            context.call_conv.return_user_exc(builder, RuntimeError, ("a part of a kernel's work failed",))
        return context.get_dummy_value()

    return types.void(kernel, openmp, types.intp, types.intp, arguments), build


def _build_member(context: Any, module: Any, place: Any, kernel: Any, call: Any) -> Any:  # noqa: ANN401
    """What every thread runs: all parts that are its own, which are the same at every call.

    Their rows are in that core's cache, as those of torch's operations. OpenMP may give fewer threads than parts.
    """
    context.active_code_library.add_linking_library(kernel.library)
    member = ir.Function(module, ir.FunctionType(ir.VoidType(), [ADDRESS]), module.get_unique_name("member"))
    member.linkage = "internal"
    builder = ir.IRBuilder(member.append_basic_block())
    job = builder.load(builder.bitcast(member.args[0], place))
    number, size, parts, rows, failed, arguments = cgutils.unpack_tuple(builder, job, 6)
    ask = ir.FunctionType(COUNT, []).as_pointer()
    own, step = (builder.sext(builder.call(builder.inttoptr(f, ask), []), WORD) for f in (number, size))
    with cgutils.for_range_slice(builder, own, parts, step, WORD) as (part, _):
        cuts = (builder.sdiv(builder.mul(rows, k), parts) for k in (part, builder.add(part, WORD(1))))
        values = cgutils.unpack_tuple(builder, arguments, len(call.args) - 3)
        values = [_uncounted(context, builder, *pair) for pair in zip(call.args[3:], values, strict=True)]
        status, _ = context.call_internal_no_propagate(builder, kernel.fndesc, call, [part, *cuts, *values])
        with builder.if_then(status.is_error):
            builder.store(FLAG(1), failed)
    builder.ret_void()
    return member


def _uncounted(context: Any, builder: Any, kind: Any, value: Any) -> Any:  # noqa: ANN401
    """An array as one whose memory nobody counts references to: the threads would wait for each other's counting."""
    if not isinstance(kind, types.Array):
        return value
    array = context.make_helper(builder, kind, value=value)
    array.meminfo = cgutils.get_null_value(array.meminfo.type)
    return array._getvalue()


run_in_team: Any = intrinsic(_run_in_team)  # in a kernel: run_in_team(other kernel, OpenMP, parts, rows, arguments)
