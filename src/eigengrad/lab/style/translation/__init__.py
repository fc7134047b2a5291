"""Image translation: photographs into paintings and back, by whitening and colouring inside a network (SVD-WCT)."""

from .config import TranslationConfig
from .task import Translation, train

__all__ = ["Translation", "TranslationConfig", "train"]
