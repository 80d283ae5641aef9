#!/usr/bin/env python3
"""Makes a corpus for `cargo bench --bench keep -- --corpus DIR` out of coding sessions that their owners published.

    fetch-corpus.py DIR [--repository URL] [--commit HASH]

The maintainers of github.com/entireio/cli (MIT License, Copyright (c) 2026 Entire Inc.) publish the transcripts of
their sessions with Claude Code on the branch entire/checkpoints/v1. Some of those sessions were compacted while they
went on. Each of these is cut at its first compaction: what was said before is the conversation, the summary that a
frontier model wrote there is kept beside it, and so is what happened afterwards. The branch has about 700 MB.

The result depends on the commit alone. It needs git and Python 3.9, and no other package. benches/keep/README.md says
what the files of a corpus are.
"""
import argparse
import collections
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

REPOSITORY = "https://github.com/entireio/cli"
COMMIT = "394f81fab87f71aa8938d91ff7a067c524ff344b"
TRANSCRIPT = "/full.jsonl"
HERE = os.path.dirname(os.path.abspath(__file__))
# Shorter conversations would hardly be compacted.
MESSAGES_MIN = 50

REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>\s*", re.S)
# What the program wrote in the user's place: a stop, and commands that it answered itself.
NOT_SAID = ("[Request interrupted by user", "<command-name>", "<command-message>", "<local-command-")
# The model of replies that no model wrote.
SYNTHETIC = "<synthetic>"
ADDRESS = re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[a-z]{2,}\b")
# Addresses that are nobody's.
PUBLIC = re.compile(r"^(?:git|noreply|no-reply|\d+\+?.*)@|@(?:example\.(?:com|org)|users\.noreply\.github\.com)$")


def git(repository, *arguments, **more):
    return subprocess.run(["git", "-C", repository, *arguments], check=True, capture_output=True, **more).stdout


def clone(url, commit, folder):
    """The repository as a folder with the commit in it: a local one as it is, another one fetched without history."""
    if os.path.isdir(url):
        return url
    git(folder, "init", "--quiet", "--bare")
    subprocess.run(["git", "-C", folder, "fetch", "--depth", "1", url, commit], check=True)
    return folder


def transcripts(repository, commit):
    """(path, lines) of every transcript, those with the same content once. A partial copy may lack some."""
    listed = git(repository, "ls-tree", "-r", commit, text=True).splitlines()
    blobs = {}
    for line in listed:
        about, path = line.split("\t", 1)
        if path.endswith(TRANSCRIPT):
            blobs.setdefault(about.split()[2], path)
    reader = subprocess.Popen(["git", "-C", repository, "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    absent = 0
    for blob, path in blobs.items():
        reader.stdin.write(blob.encode() + b"\n")
        reader.stdin.flush()
        header = reader.stdout.readline().split()
        if len(header) != 3:
            absent += 1
            continue
        text = reader.stdout.read(int(header[2]) + 1).decode("utf-8", "replace")
        yield path, [entry for entry in map(parsed, text.split("\n")) if isinstance(entry, dict)]
    reader.stdin.close()
    reader.wait()
    if absent:
        print(f"{absent} of {len(blobs)} transcripts are not in this copy of the repository", file=sys.stderr)


def parsed(line):
    try:
        return json.loads(line)
    except ValueError:
        return None


def is_summary(entry):
    return entry.get("isCompactSummary") is True


def compacted_sessions(repository, commit):
    """The lines of each session that was compacted, by its id: the longest snapshot that shows the compaction."""
    best = {}
    for path, lines in transcripts(repository, commit):
        at = next((k for k, entry in enumerate(lines) if is_summary(entry)), None)
        if at is None:
            continue
        session = lines[at].get("sessionId")
        # What was said before this session's first line is not there: such a snapshot would be of the wrong compaction.
        rank = (-len(lines), path)
        if session not in best or rank < best[session][0]:
            best[session] = (rank, lines, at)
    return {session: (lines, at) for session, (_, lines, at) in best.items()}


def text_of(content):
    if isinstance(content, str):
        return content
    return "\n".join(block.get("text", "") for block in content or [] if block.get("type") == "text")


def messages(lines):
    """The conversation: one dictionary a message. Left out are side chains, thinking, and what the program said itself."""
    out, reply = [], None
    for entry in lines:
        message = entry.get("message")
        if entry.get("isSidechain") or entry.get("isMeta") or is_summary(entry) or not isinstance(message, dict):
            continue
        content, time = message.get("content"), entry.get("timestamp")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content or []
        if entry.get("type") == "assistant":
            kept = [kept for kept in map(reply_block, blocks) if kept]
            if not kept or message.get("model") == SYNTHETIC:
                continue
            # One reply comes in several lines.
            if reply == message.get("id") and out[-1]["role"] == "assistant":
                out[-1]["content"] += kept
            else:
                out.append({"role": "assistant", "content": kept, "model": message.get("model"), "time": time})
                reply = message.get("id")
        elif entry.get("type") == "user":
            for block in blocks:
                if block.get("type") == "tool_result":
                    text = REMINDER.sub("", text_of(block.get("content"))).rstrip() or "(no output)"
                    out.append({"role": "tool", "id": block["tool_use_id"], "text": text, "failed": bool(block.get("is_error")), "time": time})
            said = REMINDER.sub("", text_of([block for block in blocks if block.get("type") == "text"])).strip()
            if said and not said.startswith(NOT_SAID):
                out.append({"role": "user", "text": said, "time": time})
    return out


def reply_block(block):
    if block.get("type") == "text" and block["text"].strip():
        return {"type": "text", "text": block["text"]}
    if block.get("type") == "tool_use":
        return {"type": "toolCall", "id": block["id"], "name": block["name"], "arguments": block.get("input") or {}}
    return None


def paired(conversation, known):
    """Without results whose call is not there. `known` are the calls of what came before."""
    calls = set(known)
    for message in conversation:
        if message["role"] == "assistant":
            calls.update(block["id"] for block in message["content"] if block["type"] == "toolCall")
        if message["role"] != "tool" or message["id"] in calls:
            yield message


def as_pi(conversation, session, cwd):
    """The conversation in the session format of the pi coding agent, version 3, which `epitome sessions import` reads."""
    yield {"type": "session", "version": 3, "id": session, "timestamp": conversation[0]["time"], "cwd": cwd}
    parent, names = None, {}
    for number, message in enumerate(conversation, 1):
        if message["role"] == "user":
            body = {"role": "user", "content": [{"type": "text", "text": message["text"]}]}
        elif message["role"] == "assistant":
            calls = {block["id"]: block["name"] for block in message["content"] if block["type"] == "toolCall"}
            names.update(calls)
            body = {"role": "assistant", "content": message["content"], "provider": "anthropic", "model": message["model"],
                    "stopReason": "toolUse" if calls else "stop"}
        else:
            body = {"role": "toolResult", "toolCallId": message["id"], "toolName": names.get(message["id"], "unknown"),
                    "content": [{"type": "text", "text": message["text"]}], "isError": message["failed"]}
        name = f"{number:08x}"
        yield {"type": "message", "id": name, "parentId": parent, "timestamp": message["time"], "message": body}
        parent = name


def without_addresses(texts):
    """The texts with the e-mail addresses of persons replaced, the same address by the same name in all of them."""
    names = {}

    def replaced(found):
        address = found.group(0)
        return address if PUBLIC.search(address) else names.setdefault(address, f"person{len(names) + 1}@example.com")

    return [ADDRESS.sub(replaced, text) for text in texts]


def main():
    options = argparse.ArgumentParser(description="Makes a corpus of real sessions for KeepBench.")
    options.add_argument("directory", help="where the corpus goes; it must not exist, or be empty")
    options.add_argument("--repository", default=REPOSITORY, help="another address of it, or a local copy")
    options.add_argument("--commit", default=COMMIT, help="another state of its branch entire/checkpoints/v1")
    given = options.parse_args()
    if os.path.isdir(given.directory) and os.listdir(given.directory):
        options.error(f"{given.directory} is not empty")
    folder = os.path.join(given.directory, "sessions")
    os.makedirs(folder, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        sessions = compacted_sessions(clone(given.repository, given.commit, scratch), given.commit)
    written, short = collections.Counter(), []
    for session, (lines, at) in sorted(sessions.items(), key=lambda item: (item[1][0][0].get("timestamp") or "", item[0])):
        end = next((k for k in range(at + 1, len(lines)) if is_summary(lines[k])), len(lines))
        before, later = messages(lines[:at]), messages(lines[at + 1:end])
        calls = [block["id"] for m in before if m["role"] == "assistant" for block in m["content"] if block["type"] == "toolCall"]
        before, later = list(paired(before, ())), list(paired(later, calls))
        if len(before) < MESSAGES_MIN:
            short.append(session)
            continue
        cwd = next((entry["cwd"] for entry in lines if entry.get("cwd")), "/work")
        person = re.sub(r"\W", "", cwd.split("/")[2].split("-")[-1]) if cwd.count("/") > 2 else "someone"
        written[person] += 1
        name = f"{person}-{before[0]['time'][:16].replace(':', '')}"
        dumped = lambda values: "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)
        texts = without_addresses([dumped(as_pi(before, session, cwd)), text_of(lines[at]["message"]["content"]) + "\n", dumped(later)])
        for ending, text in zip((".jsonl", ".summary.claude-code.md", ".later.json"), texts):
            with open(os.path.join(folder, name + ending), "w", encoding="utf-8") as file:
                file.write(text)
    for name in ("gold-facts.json", "natural-instructions.json"):
        shutil.copy(os.path.join(HERE, name), given.directory)
    people = ", ".join(f"{count} of {person}" for person, count in sorted(written.items()))
    print(f"{sum(written.values())} sessions ({people}) in {given.directory}; {len(short)} were compacted before {MESSAGES_MIN} messages")


if __name__ == "__main__":
    main()
