#!/usr/bin/env python3
"""Runs the kits that other people publish against `epitome-compact`, as an agent uses it: messages in, a message out.

    pip install compaction-conformance-kit==0.8.0 conpact==0.1.0 compactbench==0.1.0
    kits.py conformance [SEEDS]            # its own sessions, five rounds
    kits.py agent [SEEDS]                  # its facts within a session of an agent of about 150 kB, five rounds
    kits.py compint --corpus DIR           # the 15 constraints of COMPINT in 20 real sessions
    kits.py compactbench --suites DIR      # the suites are in the repository of compactbench, in benchmarks/public

`EPITOME_COMPACT` names the program. If nothing is gained (status 3), the conversation stays as it is and counts whole.

Two ways over several rounds: *whole*, where the agent keeps the session and passes all of it (pi, Claude Code, opencode, Codex), and
*message only*, where nothing is left of it but the last message (a request with `--to messages`).
"""

import argparse
import importlib.util
import json
import os
import random
import re
import statistics
import subprocess
from pathlib import Path

PROGRAM = os.environ.get("EPITOME_COMPACT", "epitome-compact")
ROUNDS = 5


def compacted(messages, *options):
    """The message for a conversation in OpenAI's form; `None` if nothing is gained."""
    command = [PROGRAM, "--from", "openai", *options]
    run = subprocess.run(command, input=json.dumps({"messages": messages}), capture_output=True, text=True, timeout=60)
    if run.returncode == 3:
        return None
    if run.returncode:
        raise SystemExit(run.stderr)
    return run.stdout.rstrip("\n")


def text_of(messages):
    return "\n".join((m.get("content") or "") + json.dumps(m.get("tool_calls", "")) for m in messages)


def say(role, text):
    return {"role": role, "content": text}


def call(number, text, name, arguments, result):
    function = {"name": name, "arguments": json.dumps(arguments)}
    calls = [{"id": f"c{number}", "type": "function", "function": function}]
    return [{**say("assistant", text), "tool_calls": calls}, {**say("tool", result), "tool_call_id": f"c{number}"}]


def rounds(messages, between, whole):
    """What is left of the conversation after each round. `between` is said before each further one."""
    said = list(messages)
    for number in range(ROUNDS):
        left = compacted(said)
        yield left or text_of(said)
        kept = said if whole or left is None else [say("user", left)]
        said = [*kept, *between(number)]


def log(dice, lines):
    words = ["let", "pub fn", "match", "use", "test", "ok", "warn:"], ["queue", "cache", "view", "log"]
    line = lambda at: f"{at:4} {dice.choice(words[0])} {dice.choice('abcdefgh')}{dice.randrange(10**6)}_{dice.choice(words[1])} = {dice.randrange(10**9)};"
    return "\n".join(map(line, range(lines)))


def survival(name, sessions, between):
    from compaction_kit.runner import _probe_all

    for way, whole in (("whole", True), ("message only", False)):
        kept, sizes = [[] for _ in range(ROUNDS)], [[] for _ in range(ROUNDS)]
        for messages, canaries in sessions:
            for number, left in enumerate(rounds(messages, between, whole)):
                found = _probe_all(canaries, left)
                kept[number].append(sum(found.values()) / len(found))
                sizes[number].append(len(left))
        percents = " ".join(f"{100 * statistics.mean(share):.0f}" for share in kept)
        sizes = " ".join(f"{statistics.mean(size):.0f}" for size in sizes)
        print(f"{name}, {way}: {percents} % by round; characters {sizes}", flush=True)


def conformance(seeds):
    from compaction_kit.corpus import build_random_session
    from compaction_kit.generated import build_generated_session

    go_on = lambda _: [say("assistant", "Understood. " + "Working on the next item of the plan now. " * 60), say("user", "Please continue.")]
    for name, build in (("random", build_random_session), ("generated", build_generated_session)):
        built = [build(seed) for seed in range(1, seeds + 1)]
        roles = lambda turn: "assistant" if turn.role == "assistant" else "user"
        # The first text of the system is sent beside the conversation.
        turns = lambda session: session.turns[session.turns[0].role == "system" :]
        sessions = [([say(roles(turn), turn.text) for turn in turns(session)], facts) for session, facts in built]
        survival(name, sessions, go_on)


def agent(seeds):
    """The kit's facts, said by the user, said by the agent, or only in a tool's result, between results of tools."""
    from compaction_kit.corpus import build_random_session

    def session(seed, by):
        built, facts = build_random_session(seed)
        dice, messages = random.Random(seed), []
        for at, turn in enumerate(built.turns[1:]):
            if turn.role == "assistant":
                file = f"src/mod{at}.rs"
                messages += call(at, f"Looking at {file}.", "read", {"path": file}, log(dice, 60))
                messages.append(say("assistant", turn.text))
            elif turn.canary_id and by == "agent":
                messages += [say("user", "Go on."), say("assistant", turn.text)]
            elif turn.canary_id and by == "tool":
                result = f"{log(dice, 30)}\n{turn.text}\n{log(dice, 30)}"
                messages += [say("user", "Go on."), *call(at, "", "read", {"path": f"docs/note{at}.md"}, result)]
            else:
                messages.append(say("user", turn.text))
        return messages, facts

    def between(number):
        test = call(f"f{number}", "Running.", "bash", {"command": "cargo test"}, log(random.Random(number), 120))
        return [say("user", "Please continue with the next item."), *test, say("assistant", "Done."), say("user", "And then?")]

    for by in ("user", "agent", "tool"):
        survival(by, [session(seed, by) for seed in range(1, seeds + 1)], between)


def compint(corpus):
    """Each constraint in COMPINT's own wording, before the first, the middle and the last message of the user."""
    folder = importlib.util.find_spec("conpact").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("constraints", Path(folder, "constraints.py"))
    constraints = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(constraints)
    even = lambda text: re.sub(r"\s+", " ", text).lower()
    paths = sorted(Path(corpus, "sessions").glob("*.jsonl"))[:20]
    for tokens in ("20000", "10000", "5000"):
        kept = of = 0
        lost = []
        for path in paths:
            lines = [json.loads(line) for line in path.open(encoding="utf-8")]
            by_user = [at for at, line in enumerate(lines) if line.get("message", {}).get("role") == "user"]
            for place in (by_user[0], by_user[len(by_user) // 2], by_user[-1]):
                # All of them in one session each would help each other, so each is alone.
                for constraint in constraints.SCS:
                    said = constraints.render_sc(constraint["sc"], False, True)
                    changed = json.loads(json.dumps(lines[place]))
                    content = changed["message"]["content"]
                    old = content if isinstance(content, str) else "\n".join(part.get("text", "") for part in content)
                    changed["message"]["content"] = [{"type": "text", "text": f"{said}\n{old}"}]
                    session = [*lines[:place], changed, *lines[place + 1 :]]
                    text = "".join(json.dumps(line) + "\n" for line in session)
                    command = [PROGRAM, "--from", "pi", "--max-tokens", tokens]
                    run = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60)
                    of += 1
                    is_kept = run.returncode == 3 or even(said) in even(run.stdout)
                    kept += is_kept
                    if not is_kept:
                        lost.append(f"{path.stem} {constraint['id']}")
        print(f"COMPINT, {tokens} tokens: {kept} of {of} word for word in {len(paths)} sessions {lost[:5]}", flush=True)


def compactbench(suites):
    """What of a case can be looked up in the message, in the cases as they are and with a tool's result after each prompt."""
    from compactbench.dsl import DifficultyLevel, load_suite
    from compactbench.engine import derive_case_seed, generate_case
    from compactbench.engine.errors import GenerationError
    from compactbench.scoring.checks import run_check

    def hardest(template, seed):
        try:
            return generate_case(template, seed, DifficultyLevel.ELITE)
        except GenerationError:
            return generate_case(template, seed, DifficultyLevel.HARD)

    looked_up = {"contains_normalized", "set_match", "exact"}
    for suite in sorted({path.parent for path in Path(suites).glob("*/*.yaml")}):
        for results in (False, True):
            kept, cases, refused, sizes = [], 0, 0, []
            for template in load_suite(suite):
                for slot in range(2):
                    seed = derive_case_seed(f"{suite.name}@1.0.0", "default", slot)
                    case = hardest(template, seed)
                    dice, messages = random.Random(slot), []
                    for at, turn in enumerate(case.transcript.turns):
                        messages.append(say(turn.role.value, turn.content))
                        if results and turn.role.value == "user":
                            messages += call(at, "", "read", {"path": f"src/m{at}.rs"}, log(dice, 60))
                    left = compacted(messages, "--max-tokens", "20000")
                    cases, refused = cases + 1, refused + (left is None)
                    left = left or text_of(messages)
                    sizes.append(len(left) / len(text_of(messages)))
                    for item in case.evaluation_items:
                        expected = item.expected
                        if expected["check"] in looked_up:
                            if expected["check"] == "exact":
                                expected = {"check": "contains_normalized", "value": expected["value"]}
                            kept.append(run_check(expected, left))
            name = f"{suite.name}{', with results of tools' if results else ''}"
            share = f"{sum(kept):.0f} of {len(kept)} kept, nothing gained in {refused} of {cases} cases"
            print(f"{name}: {share}, size {100 * statistics.mean(sizes):.0f} %", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kit", choices=["conformance", "agent", "compint", "compactbench"])
    parser.add_argument("seeds", nargs="?", type=int, default=3)
    parser.add_argument("--corpus")
    parser.add_argument("--suites")
    arguments = parser.parse_args()
    match arguments.kit:
        case "conformance":
            conformance(arguments.seeds)
        case "agent":
            agent(arguments.seeds)
        case "compint":
            compint(arguments.corpus)
        case "compactbench":
            compactbench(arguments.suites)


main()
