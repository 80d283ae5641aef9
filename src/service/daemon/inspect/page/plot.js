// The plot: the context over time and, on the same axis below it, model and tool activity with durations and
// costs.

import { BANDS, band, clock, cost, day, duration, el, hour, percent, plural, sum, svg, tokens } from "./parts.js";

const LEFT = 60;
const RIGHT = 18;
const TOP = 40;
const AREA = 210;
const ROW = 9;
const ROWS_MAX = 5;

// Pauses longer than PAUSE_SHARE of the working time are shortened to it; all pauses together take at most
// PAUSES_SHARE.
const PAUSE_SHARE = 0.03;
const PAUSES_SHARE = 0.15;

const VERDICTS = { nothing: "nothing asked", done: "done", refused: "refused", failed: "failed", skipped: "skipped" };

export function plot(timeline, { width, scale, open }) {
  const inner = width - LEFT - RIGHT;
  const axis = scale === "rounds" ? byRound(timeline, inner) : byTime(timeline, inner);
  const x = (at) => LEFT + axis.place(at);
  const largest = Math.max(1000, ...timeline.meter.map((point) => sum(point.kinds)));
  const size = timeline.window?.size;
  // A window far larger than the content would flatten the plot, so it is left out of the scale.
  const most = size && largest > size * 0.3 ? Math.max(size, largest) * 1.04 : largest * 1.15;
  const y = (count) => TOP + AREA - (count / most) * AREA;

  const root = svg("svg", {
    class: "plot", width, viewBox: `0 0 ${width} 100`, role: "img", tabindex: 0,
    "aria-label": `Tokens in context over time: ${tokens(sum(timeline.context))} now. Arrow keys go from point to point, Enter opens the entry.`,
  });
  const back = svg("g", { class: "scale" });
  const layers = svg("g");
  root.append(back, layers);

  for (const step of ticks(most)) {
    back.append(svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(step), y2: y(step) }));
    back.append(svg("text", { class: "tick", x: LEFT - 8, y: y(step) + 3.5, "text-anchor": "end" }, tokens(step)));
  }
  layers.append(areas(timeline, x, y), pauses(axis));
  if (size && size <= most) {
    layers.append(svg("line", { class: "window", x1: LEFT, x2: width - RIGHT, y1: y(size), y2: y(size) }));
    layers.append(svg("text", { class: "tick", x: LEFT + 4, y: y(size) + 13 }, `window ${tokens(size)}`));
  }

  let bottom = TOP + AREA + 10;
  const lane = (name, height, draw) => {
    const group = svg("g", { class: "lane" });
    group.append(svg("text", { class: "tick", x: LEFT - 8, y: bottom + height / 2 + 3.5, "text-anchor": "end" }, name));
    group.append(svg("line", { class: "ground", x1: LEFT, x2: width - RIGHT, y1: bottom + height + 0.5, y2: bottom + height + 0.5 }));
    draw(group, bottom);
    layers.append(group);
    bottom += height + 9;
  };
  const bar = (group, from, to, top, height, kind, title, entry) => {
    const left = x(from);
    group.append(svg("rect", {
      class: `bar ${kind}`, x: left, y: top, width: Math.max(1.5, x(to) - left), height,
      onclick: entry === null || entry === undefined ? null : () => open(entry),
    }, svg("title", {}, title)));
  };

  lane("model", 12, (group, top) => {
    for (const round of timeline.rounds) {
      bar(group, round.began, round.replied, top, 12, round.cut ? "model cut" : "model",
        `round ${round.number}, ${round.model}, ${duration(round.replied - round.began)}${round.cut ? `: ${round.cut}` : ""}`, round.entry);
    }
    for (const layer of timeline.layers.filter((layer) => layer.usage)) {
      bar(group, layer.began, layer.at, top, 12, "summary", `summary by ${layer.by}, ${duration(layer.at - layer.began)}`, layer.entry);
    }
  });
  if (timeline.rounds.some((round) => round.cached !== null)) {
    lane("cached", 22, (group, top) => {
      for (const round of timeline.rounds.filter((round) => round.cached !== null)) {
        const height = Math.max(1, 22 * round.cached);
        bar(group, round.began, round.ended, top, 22, "uncached", `${percent(round.cached)} from the cache`, round.entry);
        bar(group, round.began, round.ended, top + 22 - height, height, "cached",
          `${percent(round.cached)} of ${tokens(round.usage.input)} tokens from the cache`, round.entry);
      }
    });
  }
  const dearest = Math.max(0, ...timeline.rounds.map((round) => round.cost ?? 0), ...timeline.layers.map((layer) => layer.cost ?? 0));
  if (dearest > 0) {
    lane("cost", 22, (group, top) => {
      for (const paid of [...timeline.rounds, ...timeline.layers].filter((paid) => paid.cost)) {
        const height = Math.max(1, 22 * (paid.cost / dearest));
        bar(group, paid.began, paid.replied ?? paid.at, top + 22 - height, height, paid.number ? "cost" : "cost summary", cost(paid.cost), paid.entry);
      }
    });
  }
  if (timeline.calls.length) {
    const { rows, count } = packed(timeline.calls, axis.now, x);
    lane("tools", count * ROW, (group, top) => {
      timeline.calls.forEach((call, at) => {
        bar(group, call.began, call.ended ?? axis.now, top + rows[at] * ROW, ROW - 2, `call ${call.status ?? "open"}`,
          `${call.title}: ${call.status ?? "running"}, ${duration((call.ended ?? axis.now) - call.began)}`, call.outcome ?? call.entry);
      });
    });
  }
  const said = [
    ...timeline.hooks.map((hook) => ({ ...hook, kind: hook.verdict, title: `${hook.hook} at ${hook.event}${hook.asked ? ` asked to ${hook.asked}` : ""}: ${VERDICTS[hook.verdict] ?? hook.verdict}` })),
    ...timeline.permissions.map((mark) => ({ ...mark, kind: mark.decision, title: `${mark.decision}: ${mark.told}` })),
  ];
  if (said.length) {
    lane("decisions", 12, (group, top) => {
      for (const mark of said) {
        const at = x(mark.at);
        group.append(svg("path", {
          class: `mark ${mark.kind}`, d: `M${at} ${top + 1}l4.5 5l-4.5 5l-4.5 -5z`, onclick: () => open(mark.entry),
        }, svg("title", {}, mark.title)));
      }
    });
  }
  layers.append(flags(timeline, x, bottom - 9, width, open));
  layers.append(times(axis, bottom, width));
  const height = bottom + 20;
  root.setAttribute("viewBox", `0 0 ${width} ${height}`);
  root.setAttribute("height", height);
  const figure = el("div", { class: "figure" }, root);
  cursor(figure, root, timeline, x, y, bottom - 9, width, open);
  return figure;
}

// ── The areas ───────────────────────────────────────────────────────────────────────────────────────

function areas(timeline, x, y) {
  const points = timeline.meter;
  const group = svg("g", { class: "areas" });
  if (!points.length) return group;
  const floor = points.map(() => 0);
  for (const kind of BANDS) {
    const lower = [...floor];
    points.forEach((point, at) => { floor[at] += band(point.kinds, kind); });
    if (points.every((point) => band(point.kinds, kind) === 0)) continue;
    const up = points.map((point, at) => `${x(point.at).toFixed(1)},${y(floor[at]).toFixed(1)}`);
    const down = points.map((point, at) => `${x(point.at).toFixed(1)},${y(lower[at]).toFixed(1)}`).reverse();
    group.append(svg("polygon", { class: `band ${kind.id}`, points: [...up, ...down].join(" ") }));
  }
  const top = points.map((point, at) => `${x(point.at).toFixed(1)},${y(floor[at]).toFixed(1)}`);
  group.append(svg("polyline", { class: "top", points: top.join(" ") }));
  return group;
}

const LAYER = { compacted: "compaction", pruned: "pruning", mutated: "history by a hook", edited: "edit" };

// Compactions and other layers: a line through all lanes, labelled with the token counts or the kind.
function flags(timeline, x, bottom, width, open) {
  const group = svg("g");
  const marks = [];
  for (const layer of timeline.layers) {
    const words = layer.before === null ? LAYER[layer.kind] : `${tokens(layer.before)} → ${tokens(layer.after)}`;
    marks.push({ at: layer.at, entry: layer.entry, words, kind: `${layer.kind}${layer.holds ? "" : " gone"}`, title: layer.told });
    for (const change of layer.switched) {
      marks.push({ at: change.at, entry: change.entry, words: change.to, kind: change.to, title: `e${layer.entry} ${change.to}` });
    }
  }
  marks.sort((a, b) => a.at - b.at);
  const ends = [-Infinity, -Infinity];
  for (const mark of marks) {
    const at = x(mark.at);
    const words = mark.words.length * 6.4 + 14;
    // Near the right margin a label is left of its line.
    const right = at + words > width;
    const from = right ? at - words : at;
    const free = ends.findIndex((end) => from >= end);
    const row = free === -1 ? null : free;
    const flag = svg("g", { class: `flag ${mark.kind}`, onclick: () => open(mark.entry) }, svg("title", {}, mark.title));
    // A flag without room for its label is drawn below the labels of the others.
    const top = row === null ? TOP - 2 : TOP - 10 - row * 14;
    flag.append(svg("line", { x1: at, x2: at, y1: top, y2: bottom }));
    flag.append(svg("circle", { cx: at, cy: top, r: 3.5 }));
    if (row !== null) {
      flag.append(svg("text", { x: at + (right ? -8 : 8), y: TOP - 6.5 - row * 14, "text-anchor": right ? "end" : "start" }, mark.words));
      ends[row] = from + words;
    }
    group.append(flag);
  }
  return group;
}

function times(axis, top, width) {
  const group = svg("g", { class: "times" });
  let last = -Infinity;
  let shown = null;
  for (const { at, place, words } of axis.ticks) {
    const left = LEFT + place;
    const label = words ?? clock(at);
    if (left - last < 72 || left > width - RIGHT - 20 || label === shown) continue;
    last = left;
    shown = label;
    group.append(svg("line", { class: "grid", x1: left, x2: left, y1: top - 9, y2: top - 4 }));
    group.append(svg("text", { class: "tick", x: left, y: top + 8, "text-anchor": "middle" }, label));
  }
  return group;
}

// Areas are paler in pauses.
function pauses(axis) {
  const group = svg("g");
  for (const { place, width, ms } of axis.pauses) {
    group.append(svg("rect", { class: "pause", x: LEFT + place, y: TOP, width, height: AREA }, svg("title", {}, `nothing for ${duration(ms)}`)));
    const words = duration(ms);
    if (width > words.length * 6) group.append(svg("text", { class: "tick", x: LEFT + place + width / 2, y: TOP + AREA - 6, "text-anchor": "middle" }, words));
  }
  return group;
}

// The cursor, moved by pointer or arrow keys: shows the context at that point.
function cursor(figure, root, timeline, x, y, bottom, width, open) {
  const points = timeline.meter;
  if (!points.length) return;
  const line = svg("line", { class: "cursor", y1: TOP, y2: bottom, visibility: "hidden" });
  root.append(line);
  const tip = el("div", { class: "tip", hidden: true });
  figure.append(tip);
  let at = points.length - 1;
  const show = (index) => {
    at = Math.max(0, Math.min(points.length - 1, index));
    const point = points[at];
    const left = x(point.at);
    line.setAttribute("x1", left);
    line.setAttribute("x2", left);
    line.setAttribute("visibility", "visible");
    const rows = BANDS.map((kind) => ({ kind, count: band(point.kinds, kind) })).filter((row) => row.count > 0).reverse();
    tip.replaceChildren(
      el("p", {}, el("b", {}, tokens(sum(point.kinds))), ` ${point.side === "before" ? "before" : "behind"} e${point.entry}, ${clock(point.at)}`),
      ...rows.map(({ kind, count }) => el("p", { class: "row" }, el("i", { class: `swatch ${kind.id}` }), el("span", {}, kind.name), el("span", { class: "number" }, tokens(count)))),
    );
    tip.hidden = false;
    const box = figure.getBoundingClientRect().width;
    const place = left * (box / width);
    tip.style.left = `${Math.max(4, place + 14 + 220 > box ? place - 14 - tip.offsetWidth : place + 14)}px`;
  };
  const hide = () => { tip.hidden = true; line.setAttribute("visibility", "hidden"); };
  root.addEventListener("pointermove", (event) => {
    const box = root.getBoundingClientRect();
    const here = (event.clientX - box.left) * (width / box.width);
    let nearest = 0;
    points.forEach((point, index) => {
      if (Math.abs(x(point.at) - here) <= Math.abs(x(points[nearest].at) - here)) nearest = index;
    });
    show(nearest);
  });
  root.addEventListener("pointerleave", hide);
  root.addEventListener("blur", hide);
  root.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -points.length, End: points.length }[event.key];
    if (step) { event.preventDefault(); show(tip.hidden ? points.length - 1 : at + step); }
    if (event.key === "Enter") open(points[at].entry);
    if (event.key === "Escape") hide();
  });
}

// ── The axis ────────────────────────────────────────────────────────────────────────────────────────

// A linear time axis with shortened pauses.
function byTime(timeline, width) {
  const busy = [];
  const add = (from, to) => busy.push([from, Math.max(from, to)]);
  for (const round of timeline.rounds) add(round.began, round.ended);
  for (const call of timeline.calls) add(call.began, call.ended ?? call.began);
  for (const layer of timeline.layers) { add(layer.began, layer.at); layer.switched.forEach((change) => add(change.at, change.at)); }
  for (const mark of [...timeline.hooks, ...timeline.permissions]) add(mark.at, mark.at);
  for (const point of timeline.meter) add(point.at, point.at);
  if (!busy.length) add(Date.now() - 1000, Date.now());
  busy.sort((a, b) => a[0] - b[0]);
  const merged = [];
  for (const [from, to] of busy) {
    const last = merged.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else merged.push([from, to]);
  }
  const working = Math.max(1, merged.reduce((all, [from, to]) => all + to - from, 0));
  const longest = working * Math.min(PAUSE_SHARE, PAUSES_SHARE / merged.length);
  // Stretches of time as [from, to, drawn length, is a shortened pause].
  const stretches = [];
  merged.forEach(([from, to], at) => {
    if (at > 0) {
      const before = merged[at - 1][1];
      stretches.push([before, from, Math.min(from - before, longest), from - before > longest]);
    }
    stretches.push([from, to, to - from, false]);
  });
  return axisOf(stretches, width, timeline);
}

// An axis on which all rounds have the same width, so that short ones stay readable.
function byRound(timeline, width) {
  const edges = new Set();
  for (const round of timeline.rounds) edges.add(round.began);
  for (const turn of timeline.turns) edges.add(turn.began);
  const last = Math.max(...timeline.meter.map((point) => point.at), ...timeline.rounds.map((round) => round.ended), 0);
  const sorted = [...edges].sort((a, b) => a - b);
  if (!sorted.length) return byTime(timeline, width);
  const stretches = sorted.map((from, at) => [from, sorted[at + 1] ?? Math.max(last, from + 1), 1, false]);
  const axis = axisOf(stretches, width, timeline);
  axis.ticks = timeline.rounds.map((round) => ({ at: round.began, place: axis.place(round.began), words: `round ${round.number}` }));
  return axis;
}

function axisOf(stretches, width, timeline) {
  const all = Math.max(1e-9, stretches.reduce((drawn, [, , part]) => drawn + part, 0));
  const places = [];
  let done = 0;
  for (const [from, to, part, isPause] of stretches) {
    places.push({ from, to, place: (done / all) * width, width: (part / all) * width, isPause });
    done += part;
  }
  const place = (at) => {
    let [low, high] = [0, places.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (places[middle].from <= at) low = middle;
      else high = middle - 1;
    }
    const found = places[low];
    const share = found.to > found.from ? (at - found.from) / (found.to - found.from) : 0;
    return found.place + Math.max(0, Math.min(1, share)) * found.width;
  };
  const end = places.at(-1).to;
  let today = null;
  const marks = timeline.turns.length ? timeline.turns.map((turn) => turn.began) : [places[0].from];
  const spread = end - places[0].from > 6 * 3_600_000;
  const ticks = marks.map((at) => {
    const isNew = day(at) !== today;
    today = day(at);
    return { at, place: place(at), words: spread ? (isNew ? `${day(at)}, ${hour(at)}` : hour(at)) : clock(at) };
  });
  const pauses = places.filter((part) => part.isPause && part.width > 3).map((part) => ({ place: part.place, width: part.width, ms: part.to - part.from }));
  return { place, ticks, pauses, now: end };
}

function ticks(most) {
  const rough = most / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((times) => times * power).find((step) => step >= rough);
  const steps = [];
  for (let at = 0; at <= most; at += step) steps.push(at);
  return steps;
}

// Assigns calls to rows so that concurrent calls don't overlap.
function packed(calls, now, x) {
  const ends = [];
  const rows = calls.map((call) => {
    const left = x(call.began);
    let row = ends.findIndex((end) => end <= left);
    if (row < 0) row = ends.length < ROWS_MAX ? ends.length : ROWS_MAX - 1;
    ends[row] = Math.max(x(call.ended ?? now), left + 2.5);
    return row;
  });
  return { rows, count: Math.max(1, ends.length) };
}

export { LAYER, VERDICTS, plural };
