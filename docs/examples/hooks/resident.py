#!/usr/bin/env python3
"""A resident hook: refuses `git push --force`, and reminds the agent of its tests once a prompt.

It shows the whole protocol: answering requests, calling back, and answering a request that comes while a
call is open. Put it into ~/.epitome/hooks/ and make it executable.
"""

import json
import sys

MANIFEST = {
    "protocol": 2,
    "mode": "resident",
    "events": ["before_tool_call", "agent_stop"],
    "description": "refuses forced pushes, asks for tests",
}

last_call = 0


def send(line):
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def call(method, params):
    """Asks the session for something and waits for the answer; an error is an exception."""
    global last_call
    last_call += 1
    name = f"c{last_call}"
    send({"id": name, "method": method, "params": params})
    for line in sys.stdin:
        line = json.loads(line)
        if "payload" in line:
            # The session may need this answer before it can give ours.
            answer(line)
        elif line.get("id") == name:
            if "error" in line:
                raise RuntimeError(line["error"]["message"])
            return line.get("result")
    sys.exit(0)


def handle(payload):
    if payload["canonical_event"] == "before_tool_call":
        command = payload["tool_input"].get("command", "")
        if "git push" in command and "--force" in command:
            call("notice", {"text": "A forced push was refused."})
            return {"blocked": True, "reason": "Forced pushes are not allowed here."}
        return {}
    # The agent would stop. `continuations` is how often hooks have made it go on already.
    if payload.get("continuations", 0) == 0:
        return {"follow_up_messages": ["Run the tests if you changed code."]}
    return {}


def answer(request):
    try:
        send({"id": request["id"], "result": handle(request["payload"])})
    except Exception as error:
        send({"id": request["id"], "error": {"message": str(error)}})


if sys.argv[1:] == ["hook"]:
    print(json.dumps(MANIFEST))
else:
    for line in sys.stdin:
        answer(json.loads(line))
