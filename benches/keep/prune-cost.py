#!/usr/bin/env python3
"""What pruning old tool results saves: simulates the prices of recorded sessions with the rules of src/core/compaction/prune.rs.

    prune-cost.py CORPUS [CORPUS ...] [--window TOKENS] [--read R] [--write W] [--answer A]

A CORPUS is a directory as for `cargo bench --bench keep`. Four characters count as a token. Prices are relative to that of a token
which the provider has not cached: R for reading one from the cache, W for writing one to it, A for one of an answer. The defaults are
Anthropic's; with --write 1 they are those of a provider that takes nothing for writing. Prints one line for each rule: the costs in
millions of uncached tokens, the number of summaries, and the number of batches.
"""
import argparse
import glob
import json
import os

FRAME = 15_000  # instructions and tools
DUE = 0.8  # part of the window at which a compaction is due
KEPT_PART = 0.1  # part of the window that a compaction quotes
MESSAGE, SUMMARY = 9_000, 3_000  # tokens of the message of a compaction, and of the summary in it
KEEP_RECENT, MIN_CHARS, KEEP_CHARS = 6, 1_000, 300  # the settings of pruning
READ, WRITE, ANSWER = 0.1, 1.25, 5.0


def length(content):
    if isinstance(content, str):
        return len(content)
    calls = (part.get("arguments") or part.get("input") for part in content)
    return sum(len(part.get("text") or "") for part in content) + sum(len(json.dumps(call)) for call in calls if call)


def sessions(corpus):
    """The messages of each session, before and after the point where its agent compacted it: (role, characters)."""
    for path in sorted(glob.glob(os.path.join(corpus, "sessions", "*.jsonl"))):
        entries = (json.loads(line) for line in open(path, encoding="utf-8"))
        messages = [entry["message"] for entry in entries if entry.get("type") == "message"]
        later = path[: -len(".jsonl")] + ".later.json"
        if os.path.exists(later):
            messages += (json.loads(line) for line in open(later, encoding="utf-8") if line.strip())
        yield [(m.get("role"), length(m.get("content") or m.get("text") or "")) for m in messages]


def simulate(messages, prices, window, batch_min, below):
    """Returns the cost, the summaries and the batches. No batch for the price with `batch_min` None, none against an overflow with
    `below` None."""
    read, write, answer = prices
    view, cost, cached, summaries, batches = [], 0.0, 0, 0, 0

    def used(from_=0):
        return (FRAME if from_ == 0 else 0) + sum(entry["tokens"] for entry in view[from_:])

    for role, characters in messages:
        tokens = characters / 4
        is_reply = role == "assistant"
        is_result = role not in ("user", "assistant")
        if is_reply:
            total = used()
            cost += read * min(cached, total) + write * max(0, total - cached) + answer * tokens
            cached = total
        view.append({"tokens": tokens, "can_be_cut": is_result and characters > MIN_CHARS})
        if not is_reply:
            continue
        cuts = [at for at, entry in enumerate(view[:-KEEP_RECENT]) if entry["can_be_cut"]]
        freed = sum(view[at]["tokens"] - KEEP_CHARS / 4 for at in cuts)
        is_due = used() >= window * DUE
        saves_price = batch_min is not None and freed >= batch_min
        is_enough = below is not None and freed >= window * below and used() - freed <= window * (DUE - below)
        if cuts and (saves_price or (is_due and is_enough)):
            for at in cuts:
                view[at] = {"tokens": KEEP_CHARS / 4, "can_be_cut": False}
            cached = min(cached, FRAME + sum(entry["tokens"] for entry in view[: cuts[0]]))
            batches += 1
        elif is_due:
            cost += read * used() + answer * SUMMARY
            while view and used(1) > window * KEPT_PART:
                view.pop(0)
            view.insert(0, {"tokens": MESSAGE, "can_be_cut": False})
            cached = FRAME
            summaries += 1
    return cost, summaries, batches


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", nargs="+")
    parser.add_argument("--window", type=int, default=200_000)
    for name, price in ("read", READ), ("write", WRITE), ("answer", ANSWER):
        parser.add_argument(f"--{name}", type=float, default=price)
    options = parser.parse_args()
    recorded = [messages for corpus in options.corpus for messages in sessions(corpus)]
    prices = options.read, options.write, options.answer
    print(f"{len(recorded)} sessions, a window of {options.window}, prices {prices}")
    rules = [("no pruning", None, None), ("only against an overflow", None, 0.1)]
    rules += [(f"batches of {batch_min}", batch_min, 0.1) for batch_min in (10_000, 20_000, 30_000, 40_000, 60_000)]
    rules += [(f"only against an overflow, {below:.0%} below", None, below) for below in (0.02, 0.05, 0.2, 0.3)]
    for name, batch_min, below in rules:
        sums = zip(*(simulate(messages, prices, options.window, batch_min, below) for messages in recorded))
        cost, summaries, batches = map(sum, sums)
        print(f"{name:42} {cost / 1e6:8.2f} {summaries:5} {batches:5}")


if __name__ == "__main__":
    main()
