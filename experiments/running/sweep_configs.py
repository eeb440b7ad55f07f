"""The configs under their module's name before 0.2, which users' config files import."""

from experiments.running.configs.compare import CompareConfig
from experiments.running.configs.extend import ExtendConfig
from experiments.running.configs.images import ImagesConfig
from experiments.running.configs.tasks import TasksConfig

__all__ = ("CompareConfig", "ExtendConfig", "ImagesConfig", "TasksConfig")
