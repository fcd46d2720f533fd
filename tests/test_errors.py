"""One tree of errors: what is caught by a name is caught wherever it was raised."""

import pytest

from aaren_rl import envs, errors
from aaren_rl.envs import errors as of_envs


@pytest.mark.parametrize("name", ["CommandError", "EnvsError", "ResourcesError", "UsageError"])
def test_a_name_is_one_class(name):
    assert getattr(errors, name) is getattr(of_envs, name)


@pytest.mark.parametrize("name", [n for n in errors.__all__ if n.endswith("Error")])
def test_every_error_is_a_commands(name):
    assert issubclass(getattr(errors, name), errors.CommandError)


def test_names_of_envs_are_imported_on_demand():
    assert all(getattr(envs, name).__module__.startswith("aaren_rl.envs") for name in envs.__all__ if name[1].islower())
    assert {"TASKS", "REFERENCE_RETURNS"} <= set(envs.__all__) and envs.TASKS and envs.REFERENCE_RETURNS
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = envs.nothing
