"""The layers as functions, and the pieces they are made of."""

from .color_transfer import color_transfer
from .covariance import covariance
from .second_order_pool import second_order_pool
from .whiten_color import whiten_color
from .whitening import whitening_matrix

__all__ = ["color_transfer", "covariance", "second_order_pool", "whiten_color", "whitening_matrix"]
