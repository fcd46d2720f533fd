"""Which datasets Minari's remote has: a child process asks through minari's client, and ends if the remote is slow."""

import json
import os
import sys
from itertools import islice
from typing import Any

from ....base.errors import DataError, one_line
from ....base.processes import run_child
from .spec import check_minari_id, minari_dataset_dir, split_version

_ASK = f"import sys; from {__name__} import print_answer; print_answer(sys.argv[1])"
_SECONDS, _SECONDS_IF_INSTALLED = 60.0, 15.0
_MOST_FOUND, _MOST_SHOWN = 2000, 20
_HUB = "Hugging Face"  # Minari's default


def remote_name() -> str:
    """Minari's remote, as a message has it."""
    return os.environ.get("MINARI_REMOTE") or _HUB


def _version(dataset_id: str) -> int:
    return split_version(dataset_id)[1] or 0


def installed(name: str) -> list[str]:
    """The versions on this machine of a Minari id that has none, the latest first."""
    parent, _, last = name.rpartition("/")
    folders = [data.parent.name for data in (minari_dataset_dir() / parent).glob(f"{last}-v*/data")]
    versions = [f"{parent}/{folder}".lstrip("/") for folder in folders if split_version(folder)[0] == last]
    return sorted(versions, key=_version, reverse=True)


def choose_version(dataset_id: str) -> str:
    """A Minari id with its version: without one the latest that the remote or this machine has and minari can read.

    Where the remote cannot be asked or has none, it is the latest on this machine, with a line on stderr.

    Raises:
        UsageError: not a Minari id.
        DataError: this machine has none, and the remote has none that can be read or cannot be asked.
    """
    name, version = split_version(check_minari_id(dataset_id))
    if version is not None:
        return dataset_id
    here, remote = installed(name), remote_name()
    answer = _ask(name, _SECONDS_IF_INSTALLED if here else _SECONDS)
    for left_out, why in answer.get("left_out", {}).items():
        print(f"{left_out}: left out, because {why}", file=sys.stderr)
    if "chosen" in answer:
        return max([str(answer["chosen"]), *here], key=_version)
    if "error" in answer:
        reason = f"{remote} cannot be asked for its versions ({answer['error']})"
        way_out = (
            "check the network, name another remote in MINARI_REMOTE, or put the dataset's folder at "
            f"{minari_dataset_dir() / name}-v0"
        )
    else:
        reason = _missing(name, answer["found"])
        way_out = "give one that it has, as --source minari:ID, or name another remote in MINARI_REMOTE"
    if here:
        print(f"{name}: using {here[0]}, which is on this machine, because {reason}", file=sys.stderr)
        return here[0]
    raise DataError(f"minari:{name}: {reason}; {way_out}")


def _missing(name: str, found: list[str]) -> str:
    if any(_name(one) == name for one in found):
        return f"{remote_name()} has no version of it that can be read here"
    parent = f"{name.rpartition('/')[0]}/"
    near = [one for one in found if one.startswith(parent)] or found
    more = f" and {len(near) - _MOST_SHOWN} more" if len(near) > _MOST_SHOWN else ""
    has = ", ".join(near[:_MOST_SHOWN]) or f"nothing that begins with {name.split('/')[0]}"
    return f"{remote_name()} has no dataset of that name; it has {has}{more}"


def _name(dataset_id: str) -> str:
    return split_version(dataset_id)[0]


def _ask(name: str, seconds: float) -> dict[str, Any]:
    """The answer of `print_answer`, or an error."""
    code, printed = run_child(_ASK, name, seconds=seconds, flags=("-P", "-W", "ignore"))
    if code is None:
        return {"error": f"it did not answer within {seconds:g} seconds"}
    try:
        answer: dict[str, Any] = json.loads(printed.splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": f"minari's client ended with code {code}"}
    return answer


def print_answer(name: str) -> None:
    """Body of the child. It prints as JSON what the remote has of a name without a version.

    `found` are ids that begin like the name, `chosen` is the latest version that minari can read, if any; `left_out`
    are later ones, with reasons. In place of them there may be an `error`.
    """
    try:
        answer = _answer(name)
    except Exception as error:  # the clients of minari's remotes raise errors of their own
        answer = {"error": cause_of(error)}
    print(json.dumps(answer))


def _answer(name: str) -> dict[str, Any]:
    import minari
    from minari.storage.remotes import get_cloud_storage

    remote = get_cloud_storage()
    if remote_name().startswith(("hf://", _HUB)):  # whose client would try for half a minute
        from huggingface_hub import constants, get_session

        get_session().head(constants.ENDPOINT, timeout=10)
    listed = islice(remote.list_datasets(prefix=name.split("/")[0]), _MOST_FOUND)
    found = sorted({one for one in listed if split_version(check_minari_id(one))[1] is not None})
    left_out = dict[str, str]()
    for one in sorted((one for one in found if _name(one) == name), key=_version, reverse=True):
        try:
            written = str(remote.get_dataset_metadata(one).get("minari_version"))
        except Exception as error:
            left_out[one] = f"its metadata cannot be read ({cause_of(error)})"
            continue
        if written in minari.supported_dataset_versions:
            return {"found": found, "left_out": left_out, "chosen": one}
        left_out[one] = f"Minari {one_line(written, 20)} wrote it, which Minari {minari.__version__} here cannot read"
    return {"found": found, "left_out": left_out}


def cause_of(error: BaseException) -> str:
    """What happened at first, in one line; the hub's client wraps that into advice."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(f"{type(error).__name__}: {error}")
