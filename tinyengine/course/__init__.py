"""The course around the engine: shown source, exercises, checks and the grader.

Lessons and check cells import from here. Nothing here imports torch, and nothing in the engine imports this package.
"""

from tinyengine.course.checks import check, ends
from tinyengine.course.display import tell_unwritten
from tinyengine.course.in_notebook import grade, home, progress, start
from tinyengine.course.lesson import goal, predict, quiz, scoreboard
from tinyengine.course.source import show_diff, show_source

__all__ = [
    "check",
    "ends",
    "goal",
    "grade",
    "home",
    "mine",
    "predict",
    "progress",
    "quiz",
    "scoreboard",
    "show_diff",
    "show_source",
    "start",
]

tell_unwritten()
