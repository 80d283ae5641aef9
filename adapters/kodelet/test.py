"""Drives Epitome with kodelet's own SDK and example, and a scripted model:

    git clone --depth 1 https://github.com/jingkaihe/kodelet && (cd kodelet/sdk && npm install && npm run build)
    python3 adapters/kodelet/test.py kodelet target/debug/epitome

The example asks about commands in `tool.call` and registers a tool that asks the user.
"""

import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

kodelet, epitome = (Path(argument).resolve() for argument in sys.argv[1:])
here = Path(__file__).resolve().parent
scratch = Path(tempfile.mkdtemp(prefix="epitome-kodelet-"))
home, work = scratch / "home", scratch / "work"
work.mkdir()

# The example as kodelet's users install it.
extension = home / ".kodelet/extensions/workspace"
shutil.copytree(kodelet / "skills/kodelet/examples/extensions/workspace", extension)
(extension / "node_modules/.bin").mkdir(parents=True)
(extension / "node_modules/kodelet").symlink_to(kodelet / "sdk")
(extension / "node_modules/.bin/tsx").symlink_to(kodelet / "sdk/node_modules/.bin/tsx")
(home / ".epitome/hooks").mkdir(parents=True)
hook = shutil.copy(here / "epitome-kodelet", home / ".epitome/hooks")

# The model's replies: calls of tools, one for each request; the last one ends the turn.
calls = [("mcp__kodelet__ask_user_question", {"question": "Which color?", "options": ["red", "blue"]}),
         ("bash", {"command": "echo one"}), ("bash", {"command": "echo two"})]
requests = []


class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        number = len(requests) - 1
        delta = {"content": "Done."}
        if number < len(calls):
            name, arguments = calls[number]
            delta = {"tool_calls": [{"index": 0, "id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}]}
        reason = "tool_calls" if number < len(calls) else "stop"
        events = [{"choices": [{"index": 0, "delta": delta}]}, {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}]
        body = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Model)
threading.Thread(target=server.serve_forever, daemon=True).start()

(home / ".epitome/config.toml").write_text(f"""
model = "scripted/m"
[providers.scripted]
base_url = "http://127.0.0.1:{server.server_port}/v1"
wire = "openai_chat"
key_variable = "SCRIPTED_KEY"
[mcp.servers.kodelet]
command = "{hook}"
args = ["mcp"]
""")
env = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(scratch / "run"), "SCRIPTED_KEY": "x"}
(scratch / "run").mkdir(mode=0o700)
agent = subprocess.Popen([epitome, "acp"], cwd=work, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
answers, questions, updates = {}, [], []
# The answers of the person: a color, one command allowed, one denied.
choices = ["blue", "Allow once", "Deny once"]


def send(message):
    agent.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    agent.stdin.flush()


def call(method, params):
    number = len(answers) + 1
    answers[number] = None
    send({"id": number, "method": method, "params": params})
    while answers[number] is None:
        line = agent.stdout.readline()
        assert line, "the agent has ended"
        message = json.loads(line)
        if "method" not in message:
            answers[message["id"]] = message
        elif message["method"] == "session/request_permission":
            option = next(option for option in message["params"]["options"] if option["kind"] == "allow_once")
            send({"id": message["id"], "result": {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}})
        elif "id" in message:
            questions.append(message)
            send({"id": message["id"], "result": {"action": "accept", "content": {"value": choices[len(questions) - 1]}}})
        else:
            updates.append(message["params"])
    assert "result" in answers[number], answers[number]
    return answers[number]["result"]


capabilities = {"elicitation": {"form": {}}}
call("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities})
session = call("session/new", {"cwd": str(work), "mcpServers": []})["sessionId"]
call("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "Go."}]})

results = [message["content"] for message in requests[-1]["messages"] if message["role"] == "tool"]
print(json.dumps(results, indent=1))
assert "User selected option 2: blue" in str(results[0]), results[0]
assert "one" in str(results[1]), results[1]
assert "two" not in str(results[2]) or "den" in str(results[2]).lower(), results[2]
assert "Workspace extension started" in json.dumps(updates), "the notice of agent.start"
assert len(questions) == 3, questions
agent.stdin.close()
agent.wait(30)
shutil.rmtree(scratch, ignore_errors=True)  # A daemon may still end.
print("kodelet's example works")
