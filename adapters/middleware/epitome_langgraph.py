"""Epitome in the agents of LangChain and LangGraph.

    agent = create_agent(model, tools, middleware=[EpitomeHook(max_tokens=100_000)])           # langchain 1
    agent = create_react_agent(model, tools, pre_model_hook=EpitomeHook(max_tokens=100_000))   # langgraph

The state keeps all messages; the model gets Epitome's message in place of the older ones. Needs `epitome-compact` on the PATH.
"""

import asyncio
import json
import os
import subprocess

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.messages.utils import convert_to_openai_messages, count_tokens_approximately

try:
    from langchain.agents.middleware import AgentMiddleware
except ImportError:  # LangGraph is installed alone.
    AgentMiddleware = object

CONVERSATIONS_MAX = 1000  # Conversations whose messages of Epitome are kept; that of the oldest one is made again.


class EpitomeHook(AgentMiddleware):
    def __init__(self, max_tokens=100_000, keep=10, program=None):
        """`max_tokens`: size from which a conversation is compacted. `keep`: newest messages that stay as they are."""
        super().__init__()
        self.max_tokens, self.keep = max_tokens, keep
        self.program = program or os.environ.get("EPITOME_COMPACT", "epitome-compact")
        # For each conversation, by its first message: how many messages are compacted, the next one's id, and the message.
        self.made = {}

    def __call__(self, state):
        return {"llm_input_messages": self._input(state["messages"])}

    def wrap_model_call(self, request, handler):
        return handler(request.override(messages=self._input(request.messages)))

    async def awrap_model_call(self, request, handler):
        return await handler(request.override(messages=await asyncio.to_thread(self._input, request.messages)))

    def _input(self, messages):
        head = 1 if messages and isinstance(messages[0], SystemMessage) else 0
        key = messages[head].id if len(messages) > head else None
        cut, after, text = self.made.get(key, (0, None, None))
        # Messages may have been removed from the state, or have no ids.
        if key is None or cut >= len(messages) or messages[cut].id != after:
            cut, text = 0, None
        # The same message is used until the rest has grown again, so that the provider's cache stays useful.
        if count_tokens_approximately(self._shorter(messages, head, cut, text)) > self.max_tokens:
            cut, text = self._compact(messages, head) or (cut, text)
            if text is not None:
                self.made.pop(key, None)
                self.made[key] = (cut, messages[cut].id, text)
            if len(self.made) > CONVERSATIONS_MAX:
                self.made.pop(next(iter(self.made)), None)
        return self._shorter(messages, head, cut, text)

    @staticmethod
    def _shorter(messages, head, cut, text):
        return messages if text is None else [*messages[:head], HumanMessage(text), *messages[cut:]]

    def _compact(self, messages, head):
        cut = max(len(messages) - self.keep, head)
        # A call and its results stay together.
        while cut > head and messages[cut].type == "tool":
            cut -= 1
        if cut == head:
            return None
        request = json.dumps([line for message in messages[head:cut] for line in _openai(message)])
        run = subprocess.run(
            [self.program, "--from", "openai"], input=request, capture_output=True, text=True, timeout=60
        )
        if run.returncode == 3:  # Nothing is gained.
            return None
        run.check_returncode()
        return cut, run.stdout.rstrip("\n")


def _openai(message):
    try:
        return convert_to_openai_messages([message])
    except (ValueError, KeyError):  # It has a block that OpenAI doesn't know, such as a video.
        return convert_to_openai_messages([message.model_copy(update={"content": str(message.text)})])
