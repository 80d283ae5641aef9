// Helpers of the page: DOM elements and formatted numbers. Conversation text is only ever inserted as text
// nodes.

const SVG = "http://www.w3.org/2000/svg";

// Creates an element with attributes (`on…` are listeners) and children; strings become text, null and false
// are skipped.
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

// Kinds of content in a context, from the bottom of the plot to the top.
export const BANDS = [
  { id: "frame", name: "system and tools", of: ["system", "tools"] },
  { id: "instructions", name: "instructions", of: ["instructions"] },
  { id: "summaries", name: "summaries and tables", of: ["summaries", "facts"] },
  { id: "person", name: "your messages", of: ["person"] },
  { id: "replies", name: "replies and calls", of: ["replies", "calls"] },
  { id: "thinking", name: "thinking", of: ["thinking"] },
  { id: "outcomes", name: "tool results", of: ["outcomes"] },
  { id: "attached", name: "images, documents", of: ["attached"] },
  { id: "hooks", name: "added context", of: ["hooks"] },
];

export const band = (kinds, { of }) => of.reduce((sum, kind) => sum + (kinds[kind] ?? 0), 0);

export const sum = (kinds) => Object.values(kinds).reduce((all, tokens) => all + tokens, 0);

export function tokens(count) {
  if (count < 1000) return String(count);
  if (count < 99_950) return `${(count / 1000).toFixed(1)}k`;
  if (count < 999_500) return `${Math.round(count / 1000)}k`;
  return `${(count / 1e6).toFixed(2)}M`;
}

export function bytes(count) {
  if (count < 1000) return `${count} B`;
  if (count < 1e6) return `${(count / 1000).toFixed(count < 1e4 ? 1 : 0)} kB`;
  return `${(count / 1e6).toFixed(1)} MB`;
}

export function duration(ms) {
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 48 * 60) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.round(minutes / 1440)} days`;
}

export function cost(dollars) {
  if (dollars === null || dollars === undefined) return "";
  if (dollars > 0 && dollars < 0.01) return `$${dollars.toFixed(4)}`;
  return `$${dollars.toFixed(dollars < 1 ? 3 : 2)}`;
}

export const percent = (share) =>
  share > 0 && share < 0.01 ? "< 1 %" : `${Math.round(share * 100)} %`;

const CLOCK = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const HOUR = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
const DAY = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export const clock = (at) => CLOCK.format(at);
export const hour = (at) => HOUR.format(at);
export const day = (at) => DAY.format(at);
export const moment = (at) => FULL.format(at);

// Formats a time relative to now.
export function when(at, now = Date.now()) {
  const ago = now - at;
  if (ago < 60_000) return "just now";
  if (ago < 3_600_000) return `${Math.floor(ago / 60_000)} min ago`;
  const same = new Date(at).toDateString() === new Date(now).toDateString();
  return same ? hour(at) : `${day(at)}, ${hour(at)}`;
}

export const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;

// Shortens a path to its last two components.
export function shortPath(path) {
  const parts = path.split("/").filter(Boolean);
  return parts.length > 3 ? `…/${parts.slice(-2).join("/")}` : path;
}

// Text in which entry names are links.
export function linked(text, open) {
  const nodes = [];
  let last = 0;
  for (const found of text.matchAll(/\be(\d{1,9})\b/g)) {
    nodes.push(text.slice(last, found.index));
    nodes.push(el("button", { class: "name", type: "button", onclick: () => open(Number(found[1])) }, found[0]));
    last = found.index + found[0].length;
  }
  nodes.push(text.slice(last));
  return nodes;
}
