"""Measures of translated pictures: is the style right, is the content there, is it sharp, and how long did it take."""

from .classifier import StyleClassifier, load_or_fit
from .content import edge_similarity, feature_similarity
from .feature_classifier import FeatureClassifier, find_features
from .judge import Accuracy, Judge
from .sharpness import intensity, sharpness
from .speed import time_in_turns

__all__ = [
    "Accuracy",
    "FeatureClassifier",
    "Judge",
    "StyleClassifier",
    "edge_similarity",
    "feature_similarity",
    "find_features",
    "intensity",
    "load_or_fit",
    "sharpness",
    "time_in_turns",
]
