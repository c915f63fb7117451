// The page of iof serve. Output is only ever text: it never becomes HTML.
import { EventParser, Store, ansi } from "./store.js";

const $ = (id) => document.getElementById(id);
const ROW = 20;
/** Ranks up to which all cached output is loaded; of more, the last lines of each. */
const WHOLE_RANKS = 64;
const TAIL = 200;

let job = null, store = new Store(), details = { ranks: [], streams: [] }, following = null;
let selected = new Set(), visible = [], scanned = 0, current = -1, follow = true, paused = false, dirty = true;
const rates = new Map();
let firstFailure = null, polled = 0, shownDropped = 0;
// For tests.
window.iof = { get store() { return store; }, get visible() { return visible; } };

/** A list that has elements only for the rows on the screen. */
class VirtualList {
  constructor(element, draw) {
    Object.assign(this, { element, draw, count: 0, rows: new Map() });
    this.space = document.createElement("div");
    this.space.className = "space";
    element.append(this.space);
    element.addEventListener("scroll", () => this.show(), { passive: true });
    new ResizeObserver(() => this.show()).observe(element);
  }
  update(count) {
    this.count = count;
    this.space.style.height = `${count * ROW}px`;
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
    this.show();
  }
  show() {
    const first = Math.max(0, Math.floor(this.element.scrollTop / ROW) - 5);
    const last = Math.min(this.count, Math.ceil((this.element.scrollTop + this.element.clientHeight) / ROW) + 5);
    for (const [index, row] of this.rows) {
      if (index < first || index >= last) { row.remove(); this.rows.delete(index); }
    }
    for (let index = first; index < last; index++) {
      if (this.rows.has(index)) continue;
      const row = this.draw(index);
      row.style.top = `${index * ROW}px`;
      this.rows.set(index, row);
      this.element.append(row);
    }
  }
  reveal(index) {
    const top = index * ROW, { scrollTop, clientHeight } = this.element;
    if (top < scrollTop || top + ROW > scrollTop + clientHeight) this.element.scrollTop = Math.max(0, top - clientHeight / 2);
  }
  end() { this.element.scrollTop = this.count * ROW; }
}

function span(text, name = "") {
  const element = document.createElement("span");
  element.textContent = text;
  element.className = name;
  return element;
}

const isFailed = (rank) => ["failed", "killed", "failed to start", "not finalized"].includes(rank.state);
const size = (bytes) => {
  for (const unit of ["B", "KB", "MB"]) {
    if (bytes < 1000) return `${bytes < 10 && unit !== "B" ? bytes.toFixed(1) : Math.round(bytes)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} GB`;
};

const ranks = new VirtualList($("ranks"), (index) => {
  const rank = details.ranks[index], row = document.createElement("div");
  row.className = `row${selected.has(rank.rank) ? " selected" : ""}`;
  const last = store.last.get(rank.rank);
  const state = isFailed(rank) ? "bad" : rank.state === "running" ? "good" : "";
  const text = last ? ansi(last.text).map(([part]) => part).join("") : "";
  const rate = rates.get(rank.rank)?.rate;
  row.append(span(rank.rank), span(rank.state, state), span(rank.exit_code ?? "", state), span(rate ? `${size(rate)}/s` : ""), span(rank.host), span(text));
  row.title = `rank ${rank.rank}, pid ${rank.pid} on ${rank.host}`;
  row.addEventListener("click", (event) => choose(rank.rank, event));
  return row;
});

const lines = new VirtualList($("lines"), (index) => {
  const line = visible[index], row = document.createElement("div");
  row.className = `line ${line.channel ?? ""}${line.gap ? " gap" : ""}${isMatch(line) ? " match" : ""}${index === current ? " current" : ""}`;
  row.append(span(`[${line.rank ?? "job"}] `, "tag"));
  const parts = line.gap ? [[`⚠ ${line.text}`, ""]] : ansi(line.text);
  row.append(...parts.map(([text, name]) => span(text, name)));
  row.title = line.time ? new Date(line.time / 1e6).toISOString() : "";
  return row;
});

const searched = () => $("search").value.toLowerCase();
const isMatch = (line) => searched() !== "" && line.text.toLowerCase().includes(searched());

function isShown(line) {
  const channel = line.channel === undefined || $(line.channel)?.checked !== false;
  const rank = selected.size === 0 || selected.has(line.rank);
  return channel && rank && (!$("only").checked || searched() === "" || isMatch(line));
}

/** Shows what has changed, a few times a second. */
function render() {
  if (!dirty || paused) return;
  dirty = false;
  if (store.sort() || store.dropped !== shownDropped) scanned = 0;
  shownDropped = store.dropped;
  if (scanned === 0) visible = [];
  for (; scanned < store.lines.length; scanned++) {
    if (isShown(store.lines[scanned])) visible.push(store.lines[scanned]);
  }
  lines.update(visible.length);
  if (follow) lines.end();
  ranks.update(details.ranks.length);
  const lost = store.lost ? `, ${store.lost} bytes lost` : "";
  const dropped = store.dropped ? `, ${store.dropped} older lines dropped` : "";
  $("counts").textContent = `${visible.length} of ${store.lines.length} lines${dropped}${lost}`;
  const states = new Map();
  for (const rank of details.ranks) states.set(rank.state, (states.get(rank.state) ?? 0) + 1);
  const exit = store.exit ?? details.exit_code;
  $("summary").textContent = job ? `${job.job}: ${[...states].map(([state, count]) => `${count} ${state}`).join(", ")}${exit != null ? `; exit code ${exit}` : ""}` : "No job";
}

/** Filters again. */
function refilter() { scanned = 0; current = -1; dirty = true; }

function choose(rank, event = {}) {
  if (event.shiftKey && selected.size) {
    const from = [...selected].at(-1);
    for (let next = Math.min(from, rank); next <= Math.max(from, rank); next++) selected.add(next);
  } else if (event.ctrlKey || event.metaKey) selected.has(rank) ? selected.delete(rank) : selected.add(rank);
  else selected = new Set([rank]);
  const ids = selected.size === 1 ? ["stdout", "stderr", "stddiag"] : [];
  $("downloads").replaceChildren(...ids.map((channel) => {
    const link = document.createElement("a");
    link.textContent = `⤓ ${channel}`;
    link.href = `jobs/${encodeURIComponent(job.job)}/ranks/${rank}/${channel}?${engine()}`;
    link.download = `${job.job}.${rank}.${channel}`;
    return link;
  }));
  refilter();
}

function all() { selected.clear(); $("downloads").replaceChildren(); refilter(); }

/** Shows the rank that failed first, at its last line. */
function showFailure() {
  if (firstFailure === null) { say("no rank has failed"); return; }
  choose(firstFailure);
  setFollow(true);
  ranks.reveal(details.ranks.findIndex((rank) => rank.rank === firstFailure));
  paused = false;
  render();
}

function nextMatch() {
  const found = visible.findIndex((line, index) => index > current && isMatch(line));
  current = found < 0 ? visible.findIndex(isMatch) : found;
  setFollow(false);
  lines.update(visible.length);
  if (current >= 0) lines.reveal(current);
}

function setFollow(on) { follow = on; $("follow").setAttribute("aria-pressed", on); if (on) lines.end(); }
function setPaused(on) { paused = on; $("pause").setAttribute("aria-pressed", on); dirty = true; }
function say(text) { $("status").textContent = text; }

const engine = () => (job.engine ? `engine=${job.engine}` : "");
const wait = (time) => new Promise((done) => setTimeout(done, time));

/** Reads the events of a run until it ends; after a cut, goes on behind what the store has. */
async function followJob(chosen, abort) {
  const mine = new Store();
  store = mine;
  const query = new URLSearchParams(chosen.engine ? { engine: chosen.engine } : {});
  if (chosen.procs > WHOLE_RANKS) query.set("tail", TAIL);
  for (let pause = 250; !abort.signal.aborted; pause = Math.min(5000, pause * 2)) {
    try {
      const headers = mine.streams.size ? { "Last-Event-ID": mine.lastEventId(chosen.run) } : {};
      const response = await fetch(`jobs/${encodeURIComponent(chosen.job)}/events?${query}`, { headers, signal: abort.signal });
      if (response.status === 401) { say("open the URL that iof serve printed"); return; }
      if (response.status === 410 || response.status === 404) { say("the job is over"); return; }
      if (response.ok) {
        say("connected");
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(), parser = new EventParser();
        for (let part = await reader.read(); !part.done; part = await reader.read()) {
          pause = 250;
          for (const [name, event] of parser.push(part.value)) mine.apply(name, event);
          dirty = true;
          if (mine.exit !== undefined) { say("the job has ended"); return; }
        }
      }
    } catch (error) {
      if (abort.signal.aborted) return;
    }
    say("connection lost: trying again");
    await wait(pause);
  }
}

function open(chosen) {
  following?.abort();
  following = new AbortController();
  job = chosen;
  details = { ranks: [], streams: [] };
  firstFailure = null;
  rates.clear();
  all();
  location.hash = encodeURIComponent(chosen.job);
  followJob(chosen, following);
  pollJob();
}

async function pollJobs() {
  try {
    const { jobs } = await (await fetch("jobs")).json();
    $("jobs").replaceChildren(...jobs.filter((found) => found.job !== null).map((found) => {
      const button = document.createElement("button");
      button.textContent = `${found.job} (${found.procs})`;
      button.title = `${found.command}, ${found.state}, engine ${found.engine}`;
      button.setAttribute("aria-current", found.run === job?.run);
      button.addEventListener("click", () => open(found));
      return button;
    }));
    const named = jobs.find((found) => found.job !== null && encodeURIComponent(found.job) === location.hash.slice(1));
    const next = named ?? (job ? undefined : jobs.find((found) => found.job !== null));
    // A later run of the job is another one.
    if (next && next.run !== job?.run) open(next);
  } catch { /* The status tells of a lost connection. */ }
}

async function pollJob() {
  if (!job) return;
  try {
    const response = await fetch(`jobs/${encodeURIComponent(job.job)}?${engine()}`);
    const found = response.ok ? await response.json() : null;
    if (found?.run !== job.run) return;
    const time = performance.now(), produced = new Map();
    for (const stream of found.streams) produced.set(stream.rank, (produced.get(stream.rank) ?? 0) + stream.produced);
    for (const [rank, bytes] of produced) {
      const before = rates.get(rank);
      rates.set(rank, { bytes, rate: before ? ((bytes - before.bytes) * 1000) / (time - polled) : 0 });
    }
    polled = time;
    found.ranks.sort((one, other) => one.rank - other.rank);
    details = found;
    // The job's exit code is that of the rank that failed first.
    const failed = found.ranks.filter(isFailed);
    firstFailure ??= (failed.find((rank) => rank.exit_code === found.exit_code) ?? failed[0])?.rank ?? null;
    dirty = true;
  } catch { /* The status tells of a lost connection. */ }
}

function save() {
  const text = visible.map((line) => `[${line.rank ?? "job"}] ${line.text}\n`).join("");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  link.download = `${job?.job ?? "iof"}.txt`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function move(step) {
  const at = details.ranks.findIndex((rank) => selected.has(rank.rank));
  const next = details.ranks[Math.min(details.ranks.length - 1, Math.max(0, at + step))];
  if (next) { choose(next.rank); ranks.reveal(details.ranks.indexOf(next)); }
}

const KEYS = {
  "/": () => $("search").focus(), n: nextMatch, f: () => setFollow(!follow), p: () => setPaused(!paused),
  e: showFailure, a: all, ArrowUp: () => move(-1), ArrowDown: () => move(1),
};
document.addEventListener("keydown", (event) => {
  if (event.target === $("search")) {
    if (event.key === "Enter") nextMatch();
    if (event.key === "Escape") { $("search").value = ""; refilter(); $("search").blur(); }
    return;
  }
  if (event.ctrlKey || event.altKey || event.metaKey || !KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
for (const id of ["search", "only", "stdout", "stderr", "stddiag"]) $(id).addEventListener("input", refilter);
$("all").addEventListener("click", all);
$("failure").addEventListener("click", showFailure);
$("follow").addEventListener("click", () => setFollow(!follow));
$("pause").addEventListener("click", () => setPaused(!paused));
$("save").addEventListener("click", save);
// Who scrolls up does not want to be taken to the end.
$("lines").addEventListener("wheel", (event) => { if (event.deltaY < 0) setFollow(false); }, { passive: true });
setInterval(render, 200);
setInterval(() => { if (!document.hidden) pollJobs(); }, 3000);
setInterval(() => { if (!document.hidden) pollJob(); }, 2000);
pollJobs();
