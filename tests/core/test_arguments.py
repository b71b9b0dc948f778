"""An argument that lacks its group or its explanation is an error that names the place."""

import pytest

from streamsampler.core.arguments import with_arguments_in_groups


def test_an_argument_without_a_group_is_named_with_the_place_of_groups():
    def called(*, in_no_group=None):
        """Do something."""

    with pytest.raises(LookupError, match=r"give `in_no_group` a group in GROUPS of streamsampler/core/arguments\.py"):
        with_arguments_in_groups()(called)


def test_an_argument_without_an_explanation_is_named_with_the_docstring():
    def called(*, seed=None, order="index"):
        """Do something.

        Args:
            seed: A number.
        """

    with pytest.raises(LookupError, match="explain `order` under Args in the docstring of called"):
        with_arguments_in_groups()(called)
