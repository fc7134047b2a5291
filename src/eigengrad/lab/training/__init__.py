"""Training: a configuration in, a result out, whatever happens in between."""

from .config import Config
from .engine import Engine
from .loop import run, surroundings, train
from .result import Failure, Result
from .settings import Settings
from .task import Task

__all__ = ["Config", "Engine", "Failure", "Result", "Settings", "Task", "run", "surroundings", "train"]
