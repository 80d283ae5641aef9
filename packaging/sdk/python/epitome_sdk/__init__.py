"""Sessions of Epitome over the Agent Client Protocol, and the control API of its daemon."""

from ._client import Epitome, Mode, PermissionAnswer, PromptResult, Session, Turn
from ._control import Control

__all__ = ["Control", "Epitome", "Mode", "PermissionAnswer", "PromptResult", "Session", "Turn"]
