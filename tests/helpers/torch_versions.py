"""What versions of torch cannot do: marks for the tests that show it, each for one version and with its reason."""

import pytest
import torch

TORCH_2_6 = torch.__version__.startswith("2.6.")


def fails_in_torch_2_6(reason: str) -> pytest.MarkDecorator:
    """The mark of a test that fails there for an error of torch's, and that must be told if it no longer does."""
    return pytest.mark.xfail(TORCH_2_6, reason=reason, strict=True)
