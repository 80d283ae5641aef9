// The list below the plot: prompts, replies, tool calls, decisions and compactions, turn by turn.

import { bytes, clock, cost, duration, el, moment, percent, plural, svg, tokens } from "./parts.js";
import { LAYER, VERDICTS } from "./plot.js";

// Number of newest turns that are initially unfolded.
const UNFOLDED_MAX = 12;

// Prompts longer than this many characters may not fit into the heading of their turn and are shown again
// below it.
const REPEATED_FROM = 70;

const STOPS = {
  end_turn: "", max_tokens: "ended by the output limit", max_rounds: "ended by the limit of rounds", refusal: "refused by the model",
  cancelled: "cancelled", failed: "failed", interrupted: "interrupted",
};

const TRIGGERS = {
  manual: "asked for", overflow: "the model refused the length", threshold: "the window filled up", hook: "a hook asked for it",
  must: "the next request might not have fitted",
};

export function story(timeline, { open, unfolded }) {
  const items = [
    ...timeline.rounds.map((round) => ({ at: round.entry, draw: () => roundRow(round, timeline, open) })),
    ...timeline.layers.map((layer) => ({ at: layer.entry, draw: () => layerRow(layer, open) })),
    ...timeline.layers.flatMap((layer) => layer.switched.map((change) => ({ at: change.entry, draw: () => switchRow(layer, change, open) }))),
    ...timeline.hooks.map((hook) => ({ at: hook.entry, draw: () => hookRow(hook, open) })),
    ...timeline.permissions.map((mark) => ({ at: mark.entry, draw: () => permissionRow(mark, open) })),
  ].sort((a, b) => a.at - b.at);
  const turns = timeline.turns.map((turn, at) => ({ turn, from: at === 0 ? -1 : turn.entry, items: [] }));
  if (!turns.length) turns.push({ turn: null, from: -1, items: [] });
  let at = 0;
  for (const item of items) {
    // Items between two turns belong to the later one: hooks see a prompt before it is recorded.
    const isOver = () => turns[at].turn?.end !== null && turns[at].turn?.end < item.at;
    while (at + 1 < turns.length && (turns[at + 1].from <= item.at || isOver())) at += 1;
    turns[at].items.push(item);
  }
  const drawn = turns.map((group, index) => turnSection(group, timeline, open, unfolded, index >= turns.length - UNFOLDED_MAX));
  const left = timeline.rounds_left_out;
  return el("section", { class: "story", "aria-label": "Turns and rounds" },
    left > 0 && el("p", { class: "quiet" }, `${plural(left, "older round")} ${left === 1 ? "is" : "are"} not shown; \`epitome sessions show\` has all.`),
    ...drawn);
}

function turnSection({ turn, items }, timeline, open, unfolded, isNew) {
  if (!turn) return el("div", { class: "turn" }, items.map((item) => item.draw()));
  const rounds = timeline.rounds.filter((round) => round.turn === turn.entry);
  const dollars = rounds.some((round) => round.cost !== null) ? rounds.reduce((all, round) => all + (round.cost ?? 0), 0) : null;
  const facts = [
    clock(turn.began),
    turn.ended ? duration(turn.ended - turn.began) : "running",
    rounds.length && plural(rounds.length, "round"),
    cost(dollars),
    STOPS[turn.stop] ?? turn.stop,
  ].filter(Boolean);
  const body = el("div", { class: "body" });
  let isDrawn = false;
  const details = el("details", {
    class: `turn${turn.command ? " command" : ""}`,
    open: unfolded.get(turn.entry) ?? isNew,
    ontoggle: () => {
      unfolded.set(turn.entry, details.open);
      draw();
    },
  },
  el("summary", { "data-key": `turn${turn.entry}` },
    el("span", { class: "prompt" }, turn.prompt || "(no text)"),
    el("span", { class: "facts" }, facts.join(" · "))),
  body);
  const draw = () => {
    if (isDrawn || !details.open) return;
    isDrawn = true;
    body.append(...[
      !turn.command && el("p", { class: "row said" }, name(turn.entry, open), el("span", { class: "words" }, turn.prompt.length > REPEATED_FROM ? turn.prompt : "the prompt")),
      ...items.map((item) => item.draw()),
    ].filter(Boolean));
    if (!items.length && turn.command) body.append(el("p", { class: "row quiet" }, name(turn.entry, open), el("span", {}, "Nothing in the conversation changed.")));
  };
  draw();
  return details;
}

const name = (entry, open) =>
  el("button", { class: "name", type: "button", "data-key": `e${entry}`, onclick: () => open(entry) }, `e${entry}`);

function roundRow(round, timeline, open) {
  const { usage } = round;
  const calls = timeline.calls.filter((call) => call.entry === round.entry);
  const longest = Math.max(1, ...calls.map((call) => (call.ended ?? call.began) - call.began));
  return el("div", { class: "round" },
    el("div", { class: "row" },
      name(round.entry, open),
      el("span", { class: "words" }, round.text || (calls.length ? el("span", { class: "quiet" }, `asked for ${plural(calls.length, "call")}`) : el("span", { class: "quiet" }, "said nothing"))),
      el("span", { class: "numbers" },
        round.cut && el("span", { class: "tag bad" }, round.cut),
        usage && el("span", { class: "number", title: "tokens in and out" }, `${tokens(usage.input)} in, ${tokens(usage.output)} out`),
        round.cached !== null && share(round.cached, usage),
        el("span", { class: "number money", title: "cost of this call" }, cost(round.cost)),
        el("span", { class: "number time", title: `${round.model}, ${moment(round.began)}` }, duration(round.replied - round.began)))),
    calls.map((call) => callRow(call, longest, open)));
}

// Share of the input read from the cache, as a small bar.
function share(cached, usage) {
  const title = `${tokens(usage.cache_read)} of ${tokens(usage.input)} tokens read from the cache, ${tokens(usage.cache_write)} written to it`;
  const bar = svg("svg", { class: "share", viewBox: "0 0 40 8", width: 40, height: 8, "aria-hidden": "true" },
    svg("rect", { class: "uncached", width: 40, height: 8, rx: 2 }), svg("rect", { class: "cached", width: 40 * cached, height: 8, rx: 2 }));
  return el("span", { class: "number cache", title }, bar, ` ${percent(cached)}`, el("span", { class: "spoken" }, " cached"));
}

// The title without the tool's name, which is shown next to it.
const titleOf = ({ name, title }) => (title === name ? "" : title.startsWith(`${name} `) ? title.slice(name.length + 1) : title);

function callRow(call, longest, open) {
  const took = (call.ended ?? call.began) - call.began;
  const width = Math.max(2, 90 * (took / longest));
  const size = call.status === null ? "" : call.whole_bytes === null
    ? bytes(call.bytes)
    : `${bytes(call.bytes)} of ${bytes(call.whole_bytes)}, cut on arrival`;
  return el("div", { class: `row call ${call.status ?? "open"}` },
    name(call.outcome ?? call.entry, open),
    el("span", { class: "words" }, el("code", {}, call.name), " ", titleOf(call),
      call.changed_by && el("span", { class: "tag" }, `changed by ${call.changed_by}`)),
    el("span", { class: "numbers" },
      call.status !== "completed" && el("span", { class: `tag ${call.status ?? "open"}` }, call.status ?? "running"),
      el("span", { class: `number${call.whole_bytes === null ? "" : " cut"}`, title: `${tokens(call.tokens)} tokens` }, size),
      svg("svg", { class: "took", viewBox: "0 0 90 6", width: 90, height: 6, "aria-hidden": "true" }, svg("rect", { width, height: 6, rx: 2 })),
      el("span", { class: "number time" }, call.ended === null ? "…" : duration(took))));
}

function layerRow(layer, open) {
  const { account } = layer;
  const parts = account ? [
    account.kept.entries && `${plural(account.kept.entries, "entry").replace("entrys", "entries")} kept`,
    account.masked.entries && `${account.masked.entries} shortened`,
    account.summarised.entries && `${account.summarised.entries} summarised`,
    account.quoted?.length && `${account.quoted.length} quoted`,
    account.facts && `${plural(account.facts, "line")} from the log`,
    account.left_out?.length && `${account.left_out.length} without room`,
  ] : [layer.masks && `${layer.masks} shortened`];
  const facts = [
    TRIGGERS[layer.trigger],
    layer.focus && `with a view to: ${layer.focus}`,
    ...parts,
    layer.by && (layer.kind === "compacted" ? `summary by ${layer.by}` : `by ${layer.by}`),
    account?.fallback && `no model's summary: ${account.fallback}`,
  ].filter(Boolean);
  return el("div", { class: `row layer ${layer.kind}${layer.holds ? "" : " gone"}` },
    name(layer.entry, open),
    el("span", { class: "words" },
      el("b", {}, LAYER[layer.kind] ?? layer.kind), " ",
      layer.before !== null && el("span", { class: "change" }, `${tokens(layer.before)} → ${tokens(layer.after)} tokens`),
      !layer.holds && el("span", { class: "tag" }, "undone"),
      layer.inside !== null && layer.holds && el("span", { class: "tag" }, `inside e${layer.inside}`),
      el("span", { class: "quiet" }, facts.join(" · ") || layer.told)),
    el("span", { class: "numbers" },
      layer.usage && el("span", { class: "number" }, `${tokens(layer.usage.input)} in, ${tokens(layer.usage.output)} out`),
      el("span", { class: "number money" }, cost(layer.cost)),
      el("span", { class: "number time" }, layer.usage ? duration(layer.at - layer.began) : clock(layer.at))));
}

function switchRow(layer, change, open) {
  return el("div", { class: `row layer ${change.to}` },
    name(change.entry, open),
    el("span", { class: "words" }, el("b", {}, change.to), ` the ${LAYER[layer.kind] ?? layer.kind} e${layer.entry}`),
    el("span", { class: "numbers" }, el("span", { class: "number time" }, clock(change.at))));
}

function hookRow(hook, open) {
  return el("div", { class: `row hook ${hook.verdict}` },
    name(hook.entry, open),
    el("span", { class: "words" },
      el("b", {}, hook.hook), ` at ${hook.event}`, hook.asked && ` asked to ${hook.asked}`,
      el("span", { class: `tag ${hook.verdict}` }, VERDICTS[hook.verdict] ?? hook.verdict),
      hook.remarks.map((remark) => el("span", { class: "quiet remark" }, remark))),
    el("span", { class: "numbers" }, el("span", { class: "number" }, hook.end), el("span", { class: "number time" }, duration(hook.milliseconds))));
}

function permissionRow(mark, open) {
  const words = {
    allowed: "allowed for this session", forgotten: "revoked", let: "allowed", denied: "not allowed", mode: "mode",
  }[mark.decision] ?? mark.decision;
  return el("div", { class: `row permission ${mark.decision}` },
    name(mark.entry, open),
    el("span", { class: "words" }, el("b", {}, words), ` ${mark.told}`),
    el("span", { class: "numbers" }, el("span", { class: "number time" }, clock(mark.at))));
}
