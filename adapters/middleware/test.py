"""Runs the middleware in the real frameworks with scripted models.

    pip install langgraph pydantic-ai-slim && cargo build -p epitome-compact
    EPITOME_COMPACT=target/debug/epitome-compact python adapters/middleware/test.py
"""

from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.prebuilt import create_react_agent
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel

from epitome_langgraph import EpitomeHook
from epitome_pydantic_ai import EpitomeProcessor

FACT = "Never touch `vendor/`: the release is called WALNUT-42."
LONG = "It is as it should be. " * 400


def check(name, texts):
    """The texts of the messages that the model got: Epitome's message first, with the fact once, and the newest one."""
    assert texts[0].startswith("[Epitome message"), f"{name}: {texts[0][:200]}"
    assert "\n".join(texts).count(FACT) == 1, f"{name}: the fact is in it once"
    assert texts[-1] == "What is the release called?", f"{name}: {texts[-1][:200]}"
    print(f"{name}: ok")


class RecordingModel(GenericFakeChatModel):
    def _generate(self, messages, *arguments, **more):
        ASKED.append(messages)
        return super()._generate(messages, *arguments, **more)


ASKED = []
agent = create_react_agent(RecordingModel(messages=iter([AIMessage("Done.")])), [], pre_model_hook=EpitomeHook(max_tokens=10_000))
history = [HumanMessage(FACT), AIMessage(LONG)]
for turn in range(1, 10):
    history += [HumanMessage(f"Look at part {turn}."), AIMessage(LONG)]
agent.invoke({"messages": [*history, HumanMessage("What is the release called?")]})
check("LangGraph", [message.content for message in ASKED[-1]])

ASKED.clear()


def reply(messages, _):
    ASKED.append(messages)
    return ModelResponse(parts=[TextPart("Done.")])


agent = Agent(FunctionModel(reply), capabilities=[ProcessHistory(EpitomeProcessor(max_chars=40_000))])
history = [ModelRequest(parts=[UserPromptPart(FACT)]), ModelResponse(parts=[TextPart(LONG)])]
for turn in range(1, 10):
    history += [ModelRequest(parts=[UserPromptPart(f"Look at part {turn}.")]), ModelResponse(parts=[TextPart(LONG)])]
agent.run_sync("What is the release called?", message_history=history)
check("pydantic-ai", [part.content for message in ASKED[-1] for part in message.parts])
