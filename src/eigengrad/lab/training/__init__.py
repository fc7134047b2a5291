"""Training: a configuration in, a result out, whatever happens in between."""

from .classification import train
from .config import Config
from .engine import Engine
from .loop import run, run_context
from .result import Failure, Result
from .settings import Settings
from .task import Task

__all__ = ["Config", "Engine", "Failure", "Result", "Settings", "Task", "run", "run_context", "train"]
