"""Runs the middleware in the real frameworks with scripted models.

    pip install langchain langgraph pydantic-ai-slim && cargo build -p epitome-compact
    PATH=$PWD/target/debug:$PATH python adapters/middleware/test.py
"""

from langchain.agents import create_agent
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.prebuilt import create_react_agent
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from epitome_langgraph import EpitomeHook
from epitome_pydantic_ai import EpitomeProcessor

FACT = "Never touch `vendor/`: the release is called WALNUT-42."
SYSTEM = "You are a careful agent."
LONG = "It is as it should be. " * 400
ASKED = []  # For each request, the texts of its messages.


def check(name, say):
    """Forty prompts, each with a long reply, in one conversation. Each request has the system prompt, Epitome's message at most once
    and the fact once, and the requests do not grow without bound."""
    ASKED.clear()
    for turn in range(40):
        say(f"Look at part {turn}." if turn else FACT)
        texts = ASKED[-1]
        request = "\n".join(texts)
        assert texts[0] == SYSTEM, f"{name}, turn {turn}: {texts[0][:200]}"
        assert request.count(FACT) == 1, f"{name}, turn {turn}: the fact is in it once"
        assert request.count("[Epitome message") <= 1, f"{name}, turn {turn}: no message contains another one"
        assert len(request) < 120_000, f"{name}, turn {turn}: {len(request)} characters"
    assert "[Epitome message" in texts[1], f"{name}: {texts[1][:200]}"
    assert texts[-1] == "Look at part 39.", f"{name}: {texts[-1][:200]}"
    print(f"{name}: ok")


class RecordingModel(GenericFakeChatModel):
    def _generate(self, messages, *arguments, **more):
        ASKED.append([message.content for message in messages])
        return super()._generate(messages, *arguments, **more)


def langchain(agent):
    state = {"messages": []}

    def say(text):
        nonlocal state
        # A video is nothing that OpenAI's form of messages knows.
        content = text if ASKED else [{"type": "text", "text": text}, {"type": "video", "url": "https://host/a.mp4"}]
        state = agent.invoke({"messages": [*state["messages"], HumanMessage(content)]})
        ASKED[-1] = [text if isinstance(text, str) else text[0]["text"] for text in ASKED[-1]]

    return say


def replies():
    return RecordingModel(messages=iter(AIMessage(LONG) for _ in range(40)))


hook = EpitomeHook(max_tokens=10_000)
check("LangChain", langchain(create_agent(replies(), [], system_prompt=SYSTEM, middleware=[hook])))
check("LangGraph", langchain(create_react_agent(replies(), [], prompt=SYSTEM, pre_model_hook=EpitomeHook(max_tokens=10_000))))


def reply(messages, _):
    ASKED.append([part.content for message in messages for part in message.parts])
    return ModelResponse(parts=[TextPart(LONG)])


# The system prompt was once lost at the first compaction: pydantic-ai adds it to the first request of a conversation only.
agent = Agent(FunctionModel(reply), system_prompt=SYSTEM, capabilities=[ProcessHistory(EpitomeProcessor(max_chars=40_000))])
history = []


def say(text):
    global history
    history = agent.run_sync(text, message_history=history).all_messages()


check("pydantic-ai", say)
