// The page's controller: which session and entry are open, what to fetch for them, and live updates.
//
// The fragment selects what is open: #s_… for a session, #s_…/e7 for one of its entries.

import { BANDS, band, bytes, cost, el, linked, moment, percent, plural, shortPath, sum, svg, tokens, when } from "./parts.js";
import { plot } from "./plot.js";
import { story } from "./rounds.js";

const FIND = (id) => document.getElementById(id);
const [LIST, FILTER, SESSION, ENTRY, STATUS] = ["list", "filter", "session", "entry", "status"].map(FIND);

// Milliseconds between two fetches of a session that changes, and of the list.
const READ_AGAIN = 400;
const LIST_AGAIN = 10_000;

const state = {
  sessions: null,
  // Costs of sessions by id, each with the `updated_at` that it was computed for.
  costs: new Map(),
  open: null,
  entry: null,
  timeline: null,
  news: null,
  source: null,
  unfolded: new Map(),
  scale: kept("scale") ?? "time",
};

// Remove the ticket from the address: it has been redeemed, so a copied link would not work.
if (location.search) history.replaceState(null, "", location.pathname + location.hash);

// ── Reading ─────────────────────────────────────────────────────────────────────────────────────────

let calls = 0;

async function call(method, params = {}) {
  calls += 1;
  let response;
  try {
    response = await fetch("rpc", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ jsonrpc: "2.0", id: calls, method, params }),
    });
  } catch {
    throw new Error("Epitome does not answer. It ends when it is idle: `epitome sessions inspect` starts it again.");
  }
  if (!response.ok) throw new Error((await response.text()).trim() || `The answer was ${response.status}.`);
  const { result, error } = await response.json();
  if (error) throw new Error([error.message, error.data?.hint].filter(Boolean).join(" — "));
  return result;
}

function say(sentence, isBad = false) {
  STATUS.textContent = sentence;
  STATUS.classList.toggle("bad", isBad);
}

// ── The list ────────────────────────────────────────────────────────────────────────────────────────

async function readList() {
  try {
    const { sessions, problems } = await call("sessions.list");
    state.sessions = sessions;
    drawList(problems ?? []);
    if (STATUS.classList.contains("bad")) say("");
    await readCosts();
  } catch (error) {
    if (!state.sessions) LIST.replaceChildren(el("li", { class: "empty" }, error.message));
    say(error.message, true);
  }
}

// Costs are fetched one by one, newest session first, so that a long list appears immediately.
const COSTS_MAX = 40;

async function readCosts() {
  for (const { session, updated_at } of (state.sessions ?? []).slice(0, COSTS_MAX)) {
    if (state.costs.get(session)?.at === updated_at) continue;
    try {
      const shown = await call("sessions.show", { session });
      state.costs.set(session, { at: updated_at, cost: shown.cost });
      for (const slot of LIST.querySelectorAll(`[data-session="${CSS.escape(session)}"] .money`)) slot.textContent = cost(shown.cost);
    } catch {
      // Opening the session reports the error.
      state.costs.set(session, { at: updated_at, cost: null });
    }
  }
}

function drawList(problems = []) {
  const wanted = FILTER.value.trim().toLowerCase();
  const fits = (session) => [session.title, session.cwd, session.session, session.model].some((text) => (text ?? "").toLowerCase().includes(wanted));
  const found = (state.sessions ?? []).filter(fits);
  const focused = document.activeElement?.closest?.("[data-session]")?.dataset.session;
  const rows = found.map((session) => el("li", { "data-session": session.session, class: session.session === state.open ? "open" : "" },
    el("a", { href: `#${session.session}`, "aria-current": session.session === state.open ? "page" : null },
      el("span", { class: "title" },
        session.live && el("i", { class: session.running ? "live running" : "live", title: session.running ? "a turn runs" : "open in a client" }),
        session.title ?? "(no title)"),
      el("span", { class: "where", title: session.cwd }, shortPath(session.cwd)),
      el("span", { class: "facts" },
        el("time", { datetime: new Date(session.updated_at).toISOString(), title: moment(session.updated_at) }, when(session.updated_at)),
        ` · ${plural(session.turns, "turn")}`,
        el("span", { class: "money" }, cost(state.costs.get(session.session)?.cost))))));
  for (const { session, message } of problems) rows.push(el("li", { class: "empty bad" }, `${session}: ${message}`));
  if (!rows.length) {
    const sentence = !state.sessions ? "Reading the sessions…" : wanted ? "No session matches." : "There are no sessions yet. They appear here once they have messages.";
    rows.push(el("li", { class: "empty" }, sentence));
  }
  LIST.replaceChildren(...rows);
  if (focused) LIST.querySelector(`[data-session="${CSS.escape(focused)}"] a`)?.focus();
}

// ── A session ───────────────────────────────────────────────────────────────────────────────────────

let reading = null;
let again = false;

async function readSession() {
  const session = state.open;
  if (!session) return;
  if (reading) { again = true; return; }
  reading = session;
  const began = performance.now();
  try {
    const timeline = await call("sessions.timeline", { session });
    if (session === state.open) {
      state.timeline = timeline;
      drawSession();
      follow();
      if (STATUS.classList.contains("bad")) say("");
    }
  } catch (error) {
    if (session === state.open && !state.timeline) {
      SESSION.replaceChildren(back(), el("p", { class: "empty bad" }, error.message));
    }
    say(error.message, true);
  }
  // The longer a session takes to fetch, the less often it is fetched.
  const pause = Math.max(READ_AGAIN, 3 * (performance.now() - began));
  setTimeout(() => {
    const other = reading !== state.open;
    reading = null;
    if (again || other) { again = false; readSession(); }
  }, session === state.open ? pause : 0);
}

const back = () => el("a", { class: "back", href: "#" }, "All sessions");

function drawSession() {
  const { timeline } = state;
  if (!timeline) return;
  const focused = SESSION.contains(document.activeElement) ? document.activeElement.dataset.key ?? document.activeElement.getAttribute("class") : null;
  document.title = `${timeline.title ?? timeline.session} · Epitome`;
  const width = Math.max(320, SESSION.clientWidth - parseFloat(getComputedStyle(SESSION).paddingLeft) - parseFloat(getComputedStyle(SESSION).paddingRight));
  const isEmpty = !timeline.rounds.length && !timeline.layers.length;
  SESSION.replaceChildren(
    back(),
    heading(timeline),
    meter(timeline),
    isEmpty
      ? el("p", { class: "empty" }, timeline.in_turn ? "The model has not answered yet." : "Nothing was answered here yet: the plot begins with the first reply.")
      : el("section", { class: "over", "aria-label": "Over time" },
        el("header", {}, el("h2", {}, "Context over time"), scaleChoice()),
        plot(timeline, { width, scale: state.scale, open: openEntry })),
    el("div", { id: "now" }),
    story(timeline, { open: openEntry, unfolded: state.unfolded }),
  );
  drawNews();
  if (focused) SESSION.querySelector(`[data-key="${CSS.escape(focused)}"], .${CSS.escape(focused.split(" ")[0])}`)?.focus({ preventScroll: true });
}

function scaleChoice() {
  const choice = (scale, words, title) => el("button", {
    type: "button", title, "data-key": `scale-${scale}`, "aria-pressed": String(state.scale === scale),
    onclick: () => { state.scale = scale; keep("scale", scale); drawSession(); },
  }, words);
  return el("div", { class: "choice", role: "group", "aria-label": "Scale" },
    choice("time", "time", "By time, with pauses shortened"), choice("rounds", "rounds", "Rounds of equal width"));
}

function heading(timeline) {
  const cached = timeline.spent.input > 0 ? timeline.spent.cache_read / timeline.spent.input : null;
  const compactions = timeline.layers.filter((layer) => layer.kind === "compacted");
  const facts = [
    ["model", timeline.model ?? "none chosen"],
    ["mode", timeline.mode.replace("_", " ")],
    ["rounds", String(timeline.rounds.length + timeline.rounds_left_out)],
    ["compactions", compactions.length ? `${compactions.length}${compactions.some((layer) => !layer.holds) ? `, ${compactions.filter((layer) => !layer.holds).length} undone` : ""}` : "none"],
    ["tokens", `${tokens(timeline.spent.input)} in, ${tokens(timeline.spent.output)} out`],
    ["cached", cached === null ? "–" : percent(cached)],
    ["cost", cost(timeline.cost) || "not known"],
  ];
  return el("header", { class: "head" },
    el("h1", {}, timeline.title ?? "(no title)", timeline.in_turn && el("span", { class: "tag running" }, "running")),
    el("p", { class: "where" }, timeline.cwd, el("span", { class: "quiet" }, ` · ${timeline.session}`)),
    timeline.goal && el("p", { class: "goal" }, el("b", {}, "Goal "), timeline.goal),
    el("dl", {}, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))));
}

// How full the context window is, by kind of content.
function meter(timeline) {
  const { window, used } = timeline;
  const counted = sum(timeline.context);
  const size = Math.max(window?.size ?? 0, used, counted, 1);
  const bar = svg("svg", { class: "meter", viewBox: "0 0 1000 14", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("rect", { class: "free", width: 1000, height: 14 }));
  // The parts are our own token counts, scaled so that their sum matches the provider's count.
  const fit = counted > 0 ? used / counted : 0;
  let at = 0;
  for (const kind of BANDS) {
    const width = (band(timeline.context, kind) * fit / size) * 1000;
    if (width > 0) bar.append(svg("rect", { class: `band ${kind.id}`, x: at, width, height: 14 }));
    at += width;
  }
  if (window) bar.append(svg("rect", { class: "reserve", x: 1000 - (window.reserve / size) * 1000, width: (window.reserve / size) * 1000, height: 14 }));
  // Every kind that ever appears in the plot gets a legend entry, even if it is 0 now.
  const ever = (kind) => timeline.meter.some((point) => band(point.kinds, kind) > 0);
  const rows = BANDS.filter(ever).map((kind) => [kind, band(timeline.context, kind)]);
  const words = window ? [el("b", {}, tokens(used)), ` of ${tokens(window.size)} tokens in context`] : [el("b", {}, tokens(used)), " tokens in context; the window of this model is not known"];
  return el("section", { class: "fill", "aria-label": "Context" },
    el("p", {}, words, window && el("span", { class: "quiet" }, ` · ${percent(used / window.size)} · ${tokens(window.reserve)} kept free for the reply`)),
    bar,
    el("ul", { class: "legend" }, rows.map(([kind, count]) => el("li", { class: count ? "" : "gone" }, el("i", { class: `swatch ${kind.id}` }), kind.name, el("span", { class: "number" }, tokens(count))))));
}

// ── What is new ─────────────────────────────────────────────────────────────────────────────────────

function follow() {
  if (state.source) return;
  const source = new EventSource(`events?session=${encodeURIComponent(state.open)}&from=${state.timeline.next}`);
  state.source = source;
  source.addEventListener("news", (event) => {
    if (state.source !== source) return;
    state.news = JSON.parse(event.data);
    drawNews();
    if (state.news.next > (state.timeline?.next ?? 0)) readSession();
  });
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED && state.source === source) {
      say("The page is not updated automatically at the moment: reload it to try again.", true);
    }
  });
}

function drawNews() {
  const slot = FIND("now");
  if (!slot) return;
  const { news } = state;
  const running = [...(news?.running ?? [])];
  const rows = [
    news?.spoken && el("p", {}, el("b", {}, news.spoken.thinking ? "thinking" : "saying"), " ", el("span", { class: "spoken-now" }, `…${news.spoken.text}`)),
    running.length > 0 && el("p", {}, el("b", {}, "running"), ` ${plural(running.length, "call")}`),
    news?.compacting && el("p", {}, el("b", {}, "compacting"), " a summary is being written"),
    news?.asking?.length > 0 && el("p", {}, el("b", {}, "waiting"), " a permission prompt is open"),
    news?.notice && el("p", { class: "quiet" }, news.notice),
  ].filter(Boolean);
  slot.hidden = !rows.length;
  slot.replaceChildren(...rows);
}

// ── An entry ────────────────────────────────────────────────────────────────────────────────────────

const SEEN = { whole: "in the model's view, unchanged", changed: "in the model's view, changed", left: "not in the model's view any more", never: "never shown to the model" };

function openEntry(entry) {
  location.hash = `${state.open}/e${entry}`;
}

async function readEntry() {
  const { open, entry } = state;
  if (entry === null) {
    ENTRY.hidden = true;
    ENTRY.replaceChildren();
    return;
  }
  ENTRY.hidden = false;
  try {
    const looked = await call("sessions.entry", { session: open, entry: `e${entry}` });
    if (state.entry === entry && state.open === open) drawEntry(looked);
  } catch (error) {
    if (state.entry === entry) ENTRY.replaceChildren(close(), el("p", { class: "empty bad" }, error.message));
  }
}

const close = () => el("a", { class: "close", href: `#${state.open}`, "aria-label": "Close" }, "×");

function drawEntry(looked) {
  const next = state.timeline?.next ?? Infinity;
  const step = (entry, words) => el("a", entry >= 0 && entry < next ? { href: `#${state.open}/e${entry}` } : { "aria-disabled": "true" }, words);
  ENTRY.replaceChildren(
    el("header", {},
      el("h2", {}, `e${looked.entry} `, el("span", { class: "quiet" }, looked.kind.replaceAll("_", " "))),
      el("nav", {}, step(looked.entry - 1, "‹"), step(looked.entry + 1, "›"), close())),
    el("p", { class: "quiet" }, moment(looked.at)),
    el("p", { class: `seen ${looked.seen}` }, SEEN[looked.seen], looked.by !== null && [", since ", ...linked(`e${looked.by}`, openEntry)]),
    el("section", { class: "why" }, el("h3", {}, "Why"), el("p", {}, linked(looked.why, openEntry))),
    ...looked.blocks.map((block) => el("section", { class: "block" },
      el("h3", {}, block.label, el("span", { class: "number" }, bytes(block.bytes))),
      el("pre", { tabindex: 0 }, block.text || "(empty)"),
      block.cut && el("p", { class: "quiet" }, `Its beginning; all ${bytes(block.bytes)} are in the log.`))),
    looked.blocks_left_out > 0 && el("p", { class: "quiet" }, `${plural(looked.blocks_left_out, "more text")} of this entry ${looked.blocks_left_out === 1 ? "is" : "are"} in the log.`) || "",
  );
  ENTRY.scrollTop = 0;
}

// ── Where one is ────────────────────────────────────────────────────────────────────────────────────

function go() {
  const [, session, entry] = location.hash.match(/^#(s_[0-9a-f]{20})(?:\/e(\d{1,15}))?$/) ?? [];
  const before = state.open;
  state.open = session ?? null;
  state.entry = entry === undefined ? null : Number(entry);
  document.body.dataset.view = !session ? "list" : entry === undefined ? "session" : "entry";
  if (state.open !== before) {
    state.source?.close();
    Object.assign(state, { source: null, timeline: null, news: null, unfolded: new Map() });
    document.title = "Epitome";
    if (state.open) {
      SESSION.replaceChildren(back(), el("p", { class: "empty" }, "Reading the session…"));
      readSession();
    } else {
      SESSION.replaceChildren(el("p", { class: "empty" }, "Choose a session to see what filled its context, what was compacted, and why."));
    }
    SESSION.scrollTop = 0;
    drawList();
  }
  const wasHidden = ENTRY.hidden;
  readEntry();
  if (wasHidden !== ENTRY.hidden) requestAnimationFrame(drawSession);
}

function kept(name) {
  try { return localStorage.getItem(`epitome-${name}`); } catch { return null; }
}

function keep(name, value) {
  try { localStorage.setItem(`epitome-${name}`, value); } catch { /* It is chosen again next time. */ }
}

addEventListener("hashchange", go);
addEventListener("keydown", (event) => {
  if (event.target instanceof HTMLInputElement) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && state.entry !== null) location.hash = state.open;
  if (event.key === "/") { event.preventDefault(); FILTER.focus(); }
  if (event.key === "j" || event.key === "k") {
    const at = (state.sessions ?? []).findIndex(({ session }) => session === state.open);
    const next = (state.sessions ?? [])[at + (event.key === "j" ? 1 : -1)];
    if (next) location.hash = next.session;
  }
});
FILTER.addEventListener("input", () => drawList());
let drawn = null;
new ResizeObserver(() => {
  clearTimeout(drawn);
  drawn = setTimeout(drawSession, 80);
}).observe(SESSION);
setInterval(() => { if (!document.hidden) readList(); }, LIST_AGAIN);
drawNews();
readList();
go();
if (!state.open) SESSION.replaceChildren(el("p", { class: "empty" }, "Choose a session to see what filled its context, what was compacted, and why."));
