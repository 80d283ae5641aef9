"""Epitome as the `pre_model_hook` of a LangGraph agent.

    agent = create_react_agent(model, tools, pre_model_hook=EpitomeHook(max_tokens=100_000))

The state keeps all messages; the model gets Epitome's message in place of the older ones. Needs `epitome-compact` on the PATH.
"""

import json
import os
import subprocess

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.messages.utils import convert_to_openai_messages, count_tokens_approximately


class EpitomeHook:
    def __init__(self, max_tokens=100_000, keep=10, program=None):
        """`max_tokens`: size from which a conversation is compacted. `keep`: newest messages that stay as they are."""
        self.max_tokens, self.keep = max_tokens, keep
        self.program = program or os.environ.get("EPITOME_COMPACT", "epitome-compact")
        self.made = {}  # For each conversation, by its first message: how many messages are compacted, and the message.

    def __call__(self, state):
        messages = state["messages"]
        head = 1 if messages and isinstance(messages[0], SystemMessage) else 0
        key = messages[head].id if len(messages) > head else None
        cut, text = self.made.get(key, (0, None))
        # The same message is used until the rest has grown again, so that the provider's cache stays useful.
        if count_tokens_approximately(self._shorter(messages, head, cut, text)) > self.max_tokens:
            cut, text = self._compact(messages, head) or (cut, text)
            self.made[key] = (cut, text)
        return {"llm_input_messages": self._shorter(messages, head, cut, text)}

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
        request = json.dumps(convert_to_openai_messages(messages[head:cut]))
        run = subprocess.run(
            [self.program, "--from", "openai"], input=request, capture_output=True, text=True, timeout=60
        )
        if run.returncode == 3:  # Nothing is gained.
            return None
        run.check_returncode()
        return cut, run.stdout.rstrip("\n")
