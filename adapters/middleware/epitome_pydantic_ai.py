"""Epitome as a history processor of a pydantic-ai agent.

    agent = Agent(model, capabilities=[ProcessHistory(EpitomeProcessor())])      # pydantic-ai 2
    agent = Agent(model, history_processors=[EpitomeProcessor()])                # pydantic-ai 1

The model gets Epitome's message in place of the older ones. Needs `epitome-compact` on the PATH.
"""

import json
import os
import subprocess

from pydantic_ai.messages import ModelMessagesTypeAdapter, ModelRequest, UserPromptPart


class EpitomeProcessor:
    def __init__(self, max_chars=400_000, keep=6, program=None):
        """`max_chars`: size from which a history is compacted, as JSON. `keep`: newest messages that stay as they are."""
        self.max_chars, self.keep = max_chars, keep
        self.program = program or os.environ.get("EPITOME_COMPACT", "epitome-compact")

    def __call__(self, messages):
        if len(ModelMessagesTypeAdapter.dump_json(messages)) <= self.max_chars:
            return messages
        cut = max(len(messages) - self.keep, 0)
        # A call and its results stay together.
        while cut > 0 and _has_results(messages[cut]):
            cut -= 1
        if cut == 0:
            return messages
        request = json.dumps([line for message in messages[:cut] for line in _openai(message)])
        run = subprocess.run(
            [self.program, "--from", "openai"], input=request, capture_output=True, text=True, timeout=60
        )
        if run.returncode == 3:  # Nothing is gained.
            return messages
        run.check_returncode()
        # pydantic-ai adds the system prompt to the first request only, so it would be lost with it.
        system = [part for message in messages[:cut] for part in message.parts if part.part_kind == "system-prompt"]
        summary = ModelRequest(parts=[*system, UserPromptPart(run.stdout.rstrip("\n"))])
        return [summary, *messages[cut:]]


def _has_results(message):
    return any(part.part_kind in ("tool-return", "retry-prompt") for part in message.parts)


def _openai(message):
    """The lines of a message in OpenAI's form."""
    if message.kind == "response":
        texts = [part.content for part in message.parts if part.part_kind == "text"]
        calls = [
            {
                "id": part.tool_call_id,
                "type": "function",
                "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
            }
            for part in message.parts
            if part.part_kind == "tool-call"
        ]
        yield {"role": "assistant", "content": "\n\n".join(texts) or None, **({"tool_calls": calls} if calls else {})}
        return
    for part in message.parts:
        if part.part_kind == "user-prompt":
            content = part.content if isinstance(part.content, str) else [
                {"type": "text", "text": item} for item in part.content if isinstance(item, str)
            ]
            yield {"role": "user", "content": content}
        elif part.part_kind == "tool-return":
            yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response_str()}
        elif part.part_kind == "retry-prompt" and part.tool_name:
            yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response()}
