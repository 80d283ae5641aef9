"""Drives Epitome with kodelet's own SDK and example, and a scripted model:

    git clone --depth 1 https://github.com/jingkaihe/kodelet && (cd kodelet/sdk && npm install && npm run build)
    python3 adapters/kodelet/test.py kodelet target/debug/epitome

The example asks about commands in `tool.call` and registers a tool that asks the user.
"""

import http.server
import json
import os
import re
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

(home / ".epitome").mkdir()
(home / ".epitome/config.toml").write_text(f"""
model = "scripted/m"
[providers.scripted]
base_url = "http://127.0.0.1:{server.server_port}/v1"
wire = "openai_chat"
key_variable = "SCRIPTED_KEY"
""")
(scratch / "bin").mkdir()
(scratch / "bin/epitome").symlink_to(epitome)
env = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(scratch / "run"), "SCRIPTED_KEY": "x",
       "PATH": f"{scratch / 'bin'}:{os.environ['PATH']}"}
(scratch / "run").mkdir(mode=0o700)
# Installed as the page says.
[install] = re.findall(r"```sh\n(.*?)```", (here / "README.md").read_text(), re.DOTALL)
subprocess.run(["sh", "-ec", install], cwd=here.parents[1], env=env, check=True)


class Window:
    """A window of an editor, with the person's answers to questions, if it shows questions."""

    def __init__(self, choices):
        self.agent = subprocess.Popen([epitome, "acp"], cwd=work, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.choices, self.answers, self.questions, self.updates = choices, {}, [], []
        self.call("initialize", {"protocolVersion": 1, "clientCapabilities": {"elicitation": {"form": {}}} if choices else {}})
        self.session = self.call("session/new", {"cwd": str(work), "mcpServers": []})["sessionId"]

    def send(self, message):
        self.agent.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.agent.stdin.flush()

    def call(self, method, params):
        number = len(self.answers) + 1
        self.answers[number] = None
        self.send({"id": number, "method": method, "params": params})
        while self.answers[number] is None:
            line = self.agent.stdout.readline()
            assert line, "the agent has ended"
            message = json.loads(line)
            if "method" not in message:
                self.answers[message["id"]] = message
            elif message["method"] == "session/request_permission":
                option = next(option for option in message["params"]["options"] if option["kind"] == "allow_once")
                self.send({"id": message["id"], "result": {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}})
            elif "id" in message:
                self.questions.append(message)
                answer = {"action": "accept", "content": {"value": self.choices[len(self.questions) - 1]}}
                self.send({"id": message["id"], "result": answer})
            else:
                self.updates.append(message["params"])
        assert "result" in self.answers[number], self.answers[number]
        return self.answers[number]["result"]

    def prompt(self):
        """Sends a prompt, and returns the results of all calls so far."""
        self.call("session/prompt", {"sessionId": self.session, "prompt": [{"type": "text", "text": "Go."}]})
        return [message["content"] for message in requests[-1]["messages"] if message["role"] == "tool"]

    def close(self):
        self.agent.stdin.close()
        self.agent.wait(30)


# A color, one command allowed, one denied.
window = Window(["blue", "Allow once", "Deny once", "Allow once"])
results = window.prompt()
print(json.dumps(results, indent=1))
assert "User selected option 2: blue" in str(results[0]), results[0]
assert "one" in str(results[1]), results[1]
assert "two" not in str(results[2]) or "den" in str(results[2]).lower(), results[2]
assert "Workspace extension started" in json.dumps(window.updates), "the notice of agent.start"
assert len(window.questions) == 3, window.questions

# The question of a handler was once shown in the window of another session, if that was the only one that shows questions.
calls[:] = [None] * len(requests) + [("bash", {"command": "echo three"})]
other = Window([])
print(json.dumps(other.prompt()))
assert len(window.questions) == 3, "another window was asked"
other.close()
window.close()
shutil.rmtree(scratch, ignore_errors=True)  # A daemon may still end.
print("kodelet's example works")
