#!/usr/bin/env python3
"""Compacts real sessions within the real pi, by its extensions, and counts the facts that are left.

    pi.py --pi "node …/pi-coding-agent/dist/cli.js" --corpus DIR [--corpus DIR] NAME=EXTENSION.ts …

Each session with facts (`gold-facts.json`) is opened in `pi --mode rpc` and compacted once. No model is called: the extensions make their
summaries without one, and the address of the model is one where nobody listens. Prints a row for each extension, and one for the
summaries that the sessions' own agents wrote.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

NEAR = 700  # Characters within which all patterns of a fact must match, as in KeepBench.
WAIT = 180  # Seconds for a compaction.


def has(fact, text):
    first, *others = [re.compile(pattern) for pattern in fact["all_of"]]
    near = (text[max(0, match.start() - NEAR) : match.end() + NEAR] for match in first.finditer(text))
    return any(all(other.search(part) for other in others) for part in near)


def text_of(messages):
    """Everything that the model gets of these messages."""
    parts = []
    for message in messages:
        for content in (message.get("summary"), message.get("content")):
            for block in [{"text": content}] if isinstance(content, str) else content or []:
                parts.append(block.get("text") or json.dumps(block.get("arguments") or "", ensure_ascii=False))
    return "\n".join(parts)


def prepared(session, cwd, copy):
    """A copy of a session that pi opens: with the fields of its newest version, in a directory that exists."""
    cost = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite", "total"), 0)
    usage = {"input": 1000, "output": 10, "cacheRead": 0, "cacheWrite": 0, "totalTokens": 1010, "cost": cost}
    lines = [json.loads(line) for line in session.open(encoding="utf-8")]
    lines[0]["cwd"] = str(cwd)
    for line in lines:
        message = line.get("message")
        if not message:
            continue
        message["timestamp"] = 1764324000000
        if message["role"] == "assistant":
            message.update({"api": "anthropic-messages", "usage": usage, "provider": "mock", "model": "mock"})
        if message["role"] == "toolResult":
            message.setdefault("toolName", "tool")
            message.setdefault("isError", False)
    copy.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return copy


class Pi:
    def __init__(self, command, extension, keep, home, cwd, session):
        model = {"id": "mock", "name": "mock", "reasoning": False, "input": ["text"], "contextWindow": 200000, "maxTokens": 8000}
        model["cost"] = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0)
        mock = {"baseUrl": "http://127.0.0.1:9", "apiKey": "x", "api": "anthropic-messages", "models": [model]}
        settings = {"defaultProvider": "mock", "defaultModel": "mock", "enableInstallTelemetry": False}
        settings["compaction"] = {"keepRecentTokens": keep}
        (home / ".pi/agent").mkdir(parents=True)
        (home / ".pi/agent/models.json").write_text(json.dumps({"providers": {"mock": mock}}))
        (home / ".pi/agent/settings.json").write_text(json.dumps(settings))
        env = {**os.environ, "HOME": str(home), "PI_OFFLINE": "1", "PI_SKIP_VERSION_CHECK": "1", "PI_TELEMETRY": "0"}
        command = [*command, "--mode", "rpc", "--session", str(session), "-e", extension]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=pipe, stdout=pipe, stderr=(home / "stderr").open("w"), text=True
        )
        self.calls = 0

    def call(self, kind):
        self.calls += 1
        self.process.stdin.write(json.dumps({"type": kind, "id": f"c{self.calls}"}) + "\n")
        self.process.stdin.flush()
        until = time.monotonic() + WAIT
        for line in self.process.stdout:
            answer = json.loads(line) if line.startswith("{") else {}
            if answer.get("type") == "response" and answer.get("id") == f"c{self.calls}":
                return answer
            if time.monotonic() > until:
                break
        raise SystemExit(f"pi did not answer {kind}")

    def end(self):
        self.process.stdin.close()
        self.process.terminate()
        self.process.wait()


def row(name, found, of, chars, after, after_chars, seconds):
    cells = [f"{100 * found / of:.0f}", f"{statistics.mean(chars):.0f}"]
    cells += [f"{100 * after / of:.0f}", f"{statistics.mean(after_chars):.0f}", f"{statistics.median(seconds):.1f}"] if seconds else ["–"] * 3
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--pi", required=True)
    arguments.add_argument("--corpus", action="append", required=True, type=Path)
    arguments.add_argument("--keep", type=int, default=1, help="tokens of the newest messages that pi leaves as they are")
    arguments.add_argument("extensions", nargs="+", metavar="NAME=EXTENSION")
    arguments = arguments.parse_args()
    facts = {}
    for corpus in arguments.corpus:
        for name, those in json.loads((corpus / "gold-facts.json").read_text(encoding="utf-8")).items():
            if (session := corpus / "sessions" / f"{name}.jsonl").exists():
                facts[session] = those
    total = sum(map(len, facts.values()))
    print(f"{total} facts of {len(facts)} sessions\n")
    print("| way | facts in the message, % | characters | facts in all that is left, % | characters | seconds |")
    print("| --- | --: | --: | --: | --: | --: |")
    for named in arguments.extensions:
        name, extension = named.split("=", 1)
        found, after, chars, after_chars, seconds = 0, 0, [], [], []
        with tempfile.TemporaryDirectory(prefix="rivals-") as folder:
            for session, those in facts.items():
                home = Path(folder, session.stem)
                (work := home / "work").mkdir(parents=True)
                copy = prepared(session, work, home / session.name)
                pi = Pi(arguments.pi.split(), os.path.abspath(extension), arguments.keep, home, work, copy)
                pi.call("get_messages")  # The start of pi is not counted.
                began = time.monotonic()
                answer = pi.call("compact")
                seconds.append(time.monotonic() - began)
                if not answer.get("success"):
                    print(f"{name}, {session.stem}: {answer.get('error')}; {(home / 'stderr').read_text()[-300:]}")
                summary = (answer.get("data") or {}).get("summary", "")
                left = text_of((pi.call("get_messages").get("data") or {}).get("messages", []))
                pi.end()
                found += sum(has(fact, summary) for fact in those)
                after += sum(has(fact, left) for fact in those)
                chars.append(len(summary))
                after_chars.append(len(left))
        row(name, found, total, chars, after, after_chars, seconds)
    own = {session: list(session.parent.glob(f"{session.stem}.summary.*.md")) for session in facts}
    texts = {session: paths[0].read_text(encoding="utf-8") for session, paths in own.items() if paths}
    found = sum(has(fact, text) for session, text in texts.items() for fact in facts[session])
    of = sum(len(facts[session]) for session in texts)
    row(f"the agents' own summaries ({len(texts)} sessions)", found, of, [len(text) for text in texts.values()], 0, [], [])


main()
