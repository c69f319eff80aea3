"""What changes in the shape of a chat answer, for stream and whole answer alike. Made by chat.py."""

from msgspec import Struct

from smg.api.openai.answer import finish_reason
from smg.types.event import FinishReason

__all__ = ["Switches"]


class Switches(Struct, frozen=True, kw_only=True):
    """`reasoning` False: thoughts are left out. `legacy`: the client asked with `functions`, so one call is told, as `function_call`."""

    choices: int = 1
    usage: bool = False
    logprobs: bool = False
    reasoning: bool = True
    named_choice: bool = False
    legacy: bool = False

    def reason(self, reason: FinishReason) -> str:
        """Gives the finish reason. A call whose function the client named ends with `stop`, as at OpenAI. Raises EngineError for abort."""
        told = finish_reason(reason)
        if told != "tool_calls":
            return told
        if self.named_choice:
            return "stop"
        return "function_call" if self.legacy else told
