#!/usr/bin/env python3
"""Writes table.rs beside this file from litellm's catalogue of models.

    pip download --no-deps litellm==1.109.1 -d /tmp/litellm
    python3 src/models/provider/models/update.py /tmp/litellm/litellm-*.whl

The wheel is only unzipped, never installed: all that is wanted is one JSON file. It is under the MIT licence
as is everything of litellm outside `enterprise/`; this is checked at each run. Which models are in the table,
and in what the catalogue is wrong or behind, is kept by hand below, with the reason beside it.
"""

import json
import pathlib
import re
import sys
import zipfile

CATALOGUE = "litellm/model_prices_and_context_window_backup.json"

# The providers' models that can be given tools, in the order in which a picker shows them. Models that have
# been shut down, that few accounts may call, or that are not made for text are left out.
HOSTED = {
    "anthropic": """claude-sonnet-5-5 claude-opus-5-5 claude-haiku-5-5 claude-fable-5-2 claude-fable-5-1
        claude-sonnet-5 claude-opus-5 claude-fable-5 claude-opus-4-8 claude-opus-4-7 claude-opus-4-6
        claude-sonnet-4-6 claude-haiku-4-5 claude-opus-4-5 claude-sonnet-4-5""",
    "openai": """gpt-6-sol gpt-6-luna gpt-6.2-sol gpt-6.2-astra gpt-6.1-sol gpt-6.1-terra gpt-6-astra
        gpt-5.6-sol gpt-5.6-terra gpt-5.6-luna gpt-5.5 gpt-5.5-pro gpt-5.4 gpt-5.4-mini gpt-5.4-nano
        gpt-5.3-codex gpt-5.2 gpt-5.1 gpt-5 gpt-5-mini gpt-5-nano gpt-4.1 gpt-4.1-mini gpt-4o gpt-4o-mini o3""",
    "gemini": """gemini-3.8-flash gemini-4-argon gemini-pro-latest gemini-flash-latest gemini-flash-lite-latest
        gemini-3.7-flash gemini-3.6-flash gemini-3.5-flash gemini-3.5-flash-lite gemini-3.1-pro-preview
        gemini-3.1-flash-lite gemini-3-flash-preview gemini-2.5-pro gemini-2.5-flash gemini-2.5-flash-lite""",
}

# Open models and others on services that speak a supported wire format. Users configure these providers;
# under these names, the context windows and prices of their models are known.
COMPATIBLE = """deepseek/deepseek-v4-pro deepseek/deepseek-v4-flash moonshot/kimi-k3 moonshot/kimi-k2.7-code
    zai/glm-5.3 zai/glm-5.3-flash minimax/MiniMax-M3 mistral/mistral-large-4 mistral/devstral-latest
    xai/grok-4.7""".split()

# Models that a vendor's own client library names but that the catalogue lacks: until it has them, they are
# treated like the version before.
NOT_YET = {
    "anthropic/claude-fable-5-2": "anthropic/claude-fable-5-1",
    "openai/gpt-6.2-sol": "openai/gpt-6.1-sol",
    "openai/gpt-6.2-astra": "openai/gpt-6-astra",
}

# (fields of the catalogue, reason)
CORRECTIONS = {
    "anthropic/claude-sonnet-4-5": [
        ({"input_cost_per_token_above_200k_tokens": 6e-6, "output_cost_per_token_above_200k_tokens": 2.25e-5,
          "cache_read_input_token_cost_above_200k_tokens": 6e-7, "cache_creation_input_token_cost_above_200k_tokens": 7.5e-6},
         "the catalogue has the price of the wider window, which needs a beta feature, only for the clouds"),
    ],
    "gemini/gemini-4-argon": [
        ({"max_output_tokens": 65_536}, "by inference: the catalogue repeats the window here; all its relatives have this"),
    ],
    "openai/gpt-5.4": [({"max_input_tokens": 922_000}, "by inference: 1,050,000 less a reply of up to 128,000, as newer models are listed")],
    "openai/gpt-5.5": [({"max_input_tokens": 922_000}, "by inference: 1,050,000 less a reply of up to 128,000, as newer models are listed")],
    "openai/gpt-5.5-pro": [({"max_input_tokens": 922_000}, "by inference: 1,050,000 less a reply of up to 128,000, as newer models are listed")],
    "openai/gpt-5.3-codex": [
        ({"supports_none_reasoning_effort": False}, "by inference: it is told of no other model of its line"),
    ],
    # Shutdown dates from OpenAI's client library, which the catalogue has only for the dated names.
    "openai/gpt-4.1": [({"deprecation_date": "2027-01-14"}, "announced for the dated name")],
    "openai/gpt-4.1-mini": [({"deprecation_date": "2027-01-14"}, "announced for the dated name")],
    "openai/gpt-4o": [({"deprecation_date": "2027-01-14"}, "announced for the dated name")],
    "openai/gpt-4o-mini": [({"deprecation_date": "2027-01-14"}, "announced for the dated name")],
}

# The smallest prefix that is cached, where the catalogue doesn't say. Inferred from reports about these
# services; no request depends on it.
CACHE_MIN = {"openai": 1024, "gemini": 4096}
CACHE_MIN_OLD_GEMINI = 2048

EFFORTS = ["None", "Minimal", "Low", "Medium", "High", "XHigh", "Max"]
# Names of constants in abilities.rs.
LADDERS = {
    ("None", "Low", "Medium", "High"): "NONE_TO_HIGH",
    ("None", "Low", "Medium", "High", "XHigh"): "NONE_TO_XHIGH",
    ("None", "Low", "Medium", "High", "XHigh", "Max"): "NONE_TO_MAX",
    ("Minimal", "Low", "Medium", "High"): "MINIMAL_TO_HIGH",
    ("Low", "Medium", "High"): "LOW_TO_HIGH",
    ("Low", "Medium", "High", "XHigh"): "LOW_TO_XHIGH",
    ("Low", "Medium", "High", "XHigh", "Max"): "LOW_TO_MAX",
}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    wheel = pathlib.Path(sys.argv[1])
    version = wheel.name.split("-")[1]
    with zipfile.ZipFile(wheel) as files:
        licences = [files.read(name).decode() for name in files.namelist() if name.endswith("/licenses/LICENSE")]
        if not any("MIT License" in text and "outside of the above" in text for text in licences):
            sys.exit("the wheel's licence is not the one that was read: look at it before using its data")
        catalogue = json.loads(files.read(CATALOGUE))
    names = [f"{provider}/{name}" for provider, listed in HOSTED.items() for name in listed.split()]
    rows = [row(name, catalogue) for name in names + COMPATIBLE]
    ladders = sorted({ladder for ladder in LADDERS.values() if any(f"&{ladder})" in text for text in rows)})
    alone = "".join(re.findall(r"&\[(.*?)\]", "".join(rows)))
    efforts = [effort if effort != "None" else "None as Nothing" for effort in EFFORTS if named(effort) in alone]
    head = HEAD.format(version=version, ladders=", ".join(ladders), efforts=", ".join(efforts), count=len(rows))
    target = pathlib.Path(__file__).with_name("table.rs")
    target.write_text(head + "".join(rows) + "];\n")
    print(f"{target}: {len(rows)} models of litellm {version}; now run cargo fmt and cargo test -p epitome-provider models")


HEAD = """//! Models and what is known of them. Generated by `update.py` from the catalogue of litellm {version} (MIT, \u00a9
//! Berri AI) and its own corrections: change those, not this.

use super::{{KnownModel, model}};
use crate::abilities::Effort::{{{efforts}}};
use crate::abilities::{{{ladders}}};

#[rustfmt::skip]
pub(super) const KNOWN: [KnownModel; {count}] = [
"""


def entry(name, catalogue):
    """The catalogue's entry with the corrections."""
    provider, plain = name.split("/", 1)
    found = catalogue.get(plain) if provider in ("anthropic", "openai") else catalogue.get(name)
    if found is None:
        sys.exit(f"{name} is not in the catalogue")
    if found.get("supports_function_calling") is not True:
        sys.exit(f"{name} takes no tools")
    found = dict(found)
    for fields, _reason in CORRECTIONS.get(name, []):
        if all(found.get(field) == value for field, value in fields.items()):
            print(f"the correction {fields} of {name} is not needed any more")
        found.update(fields)
    return found


def row(name, catalogue):
    like = NOT_YET.get(name)
    if like and name.removeprefix("gemini/").split("/", 1)[-1] in catalogue:
        print(f"{name} is in the catalogue now: take it out of NOT_YET")
    provider = name.split("/")[0]
    of = entry(like or name, catalogue)
    text = f'    model("{name}", {grouped(of["max_input_tokens"])}, {grouped(of["max_output_tokens"])})'
    price = per_million(of, "input_cost_per_token")
    read = per_million(of, "cache_read_input_token_cost", price)
    # Where cache writes have no separate price, they cost the same as input.
    write = per_million(of, "cache_creation_input_token_cost", price)
    text += f'.costs([{number(price)}, {number(per_million(of, "output_cost_per_token"))}, {number(read)}, {number(write)}])'
    text += long_tier(name, of, price, read, write)
    if of.get("supports_vision"):
        text += ".sees()"
    # Services that copy Chat Completions have no common form for documents.
    if of.get("supports_pdf_input") and provider in HOSTED:
        text += ".reads()"
    text += thinking(name, provider, of)
    cache_min = of.get("prompt_cache_min_tokens") or CACHE_MIN.get(provider)
    if "gemini-2.5" in name and not of.get("prompt_cache_min_tokens"):
        cache_min = CACHE_MIN_OLD_GEMINI
    if cache_min:
        text += f".caches_from({grouped(cache_min)})"
    if of.get("deprecation_date"):
        text += f'.until("{of["deprecation_date"]}")'
    return text + "," + (f" // as {like.split('/')[1]}" if like else "") + "\n"


def long_tier(name, of, price, read, write):
    """Above some tokens of input, all tokens of a request cost a multiple."""
    sizes = {int(size) for field in of for size in re.findall(r"^input_cost_per_token_above_(\d+)k_tokens$", field)}
    if not sizes:
        return ""
    if len(sizes) > 1:
        sys.exit(f"{name} has several tiers, and the table has room for one")
    above = sizes.pop()
    times = lambda field, base: round(per_million(of, f"{field}_above_{above}k_tokens") / base, 6)
    of_input = times("input_cost_per_token", price)
    for field, base in [("cache_read_input_token_cost", read), ("cache_creation_input_token_cost", write)]:
        if of.get(f"{field}_above_{above}k_tokens") and times(field, base) != of_input:
            sys.exit(f"{name}: cached input has another factor than input")
    of_output = times("output_cost_per_token", per_million(of, "output_cost_per_token"))
    return f".long({grouped(above * 1000)}, {number(of_input)}, {number(of_output)})"


def thinking(name, provider, of):
    if provider not in HOSTED or not of.get("supports_reasoning"):
        return ""
    has = lambda what: of.get(f"supports_{what}_reasoning_effort")
    efforts = {"Low", "Medium", "High"}
    if provider == "anthropic":
        if not of.get("supports_adaptive_thinking"):
            return ".budget(true)"
        if not of.get("thinking_always_on"):
            efforts.add("None")
    elif provider == "gemini":
        # The catalogue only says which models lack MINIMAL. The rest is inferred from the names: budgets
        # before version 3, which only the larger models can't set to zero, and MINIMAL only for flash models.
        if "-2.5-" in name:
            return f".budget({'false' if '-pro' in name else 'true'})"
        if "flash" in name and "latest" not in name and has("minimal") is not False:
            efforts.add("Minimal")
    else:
        efforts |= {effort for effort in ("None", "Minimal") if has(effort.lower())}
        if has("low") is False:
            efforts.remove("Low")
    efforts |= {effort for effort in ("XHigh", "Max") if has(effort.lower())}
    ladder = tuple(effort for effort in EFFORTS if effort in efforts)
    if ladder in LADDERS:
        return f".efforts(&{LADDERS[ladder]})"
    return ".efforts(&[" + ", ".join(named(effort) for effort in ladder) + "])"


def named(effort):
    """As the table has it: None is another thing in Rust."""
    return "Nothing" if effort == "None" else effort


def per_million(of, field, default=None):
    """Dollars for a million tokens."""
    value = of.get(field)
    if value is None:
        if default is None:
            sys.exit(f"there is no {field}")
        return default
    return round(value * 1_000_000, 6)


def number(value):
    return repr(float(value))


def grouped(value):
    return f"{int(value):,}".replace(",", "_")


if __name__ == "__main__":
    main()
