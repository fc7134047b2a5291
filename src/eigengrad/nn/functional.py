"""The layers as functions."""

from .covariance import covariance
from .whitening import whitening_matrix

__all__ = ["covariance", "whitening_matrix"]
