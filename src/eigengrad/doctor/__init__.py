"""What is wrong with a matrix that a network differentiates through, and the line to write instead."""

from .diagnosis import Advice, Diagnosis, Effect, Loss
from .examination import diagnose

__all__ = ["Advice", "Diagnosis", "Effect", "Loss", "diagnose"]
