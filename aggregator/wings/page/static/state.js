"use strict";
// What the page knows of one aggregator, and how it writes numbers.
const KEPT_S = 60, VERSION = "VERSION", MOST_BARS = 512, MOST_ROWS = 20;
const GAP_S = 2;  // between two points further apart nobody looked
const RECENT_S = 10, RECENT_POINTS = 20;
const SLOW = 2;  // times slower than measured, from which a server is named
const CLASSES = ["interactive", "default", "background"], SOURCES = ["grpc", "http", "kafka", "redis"];
const find = (id) => document.getElementById(id);
const CALM_S = 2;  // between two drawings, where the system asks for reduced motion
const calm = matchMedia("(prefers-reduced-motion: reduce)"), dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const SERVERS = ["server0", "server1", "server2", "server3", "server4", "server5"];  // further ones repeat their colours
let colours = {};
function readColours() {
  for (const name of ["text", "soft", "grid", "bad", "empty", "full", "decode", "prompt", "embed", "working", "held", "good", ...SERVERS])
    colours[name] = colour(name);
}

// Numbers as people read them.
const count = (value) => value == null ? "–" : value >= 1e6 ? `${(value / 1e6).toFixed(1)} M`
  : value >= 1e4 ? `${(value / 1e3).toFixed(0)} k` : value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
function time(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  if (seconds >= 86400) return `${Math.floor(seconds / 86400)} d ${Math.floor(seconds % 86400 / 3600)} h`;
  if (seconds >= 3600) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds % 3600 / 60)} min`;
  if (seconds >= 100) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  if (seconds >= 10) return `${seconds.toFixed(0)} s`;
  if (seconds >= 1) return `${seconds.toFixed(1)} s`;
  return seconds >= 0.01 ? `${(seconds * 1e3).toFixed(0)} ms` : `${(seconds * 1e3).toFixed(1)} ms`;
}
const share = (value) => value == null ? "–" : `${(value * 100).toFixed(0)} %`;
const counted = (number, noun, plural = `${noun}s`) => `${count(number)} ${number === 1 ? noun : plural}`;
function mean(numbers) {
  const known = numbers.filter((number) => number != null);
  return known.length ? known.reduce((sum, number) => sum + number, 0) / known.length : null;
}

// Times are the aggregator's monotonic seconds; `ahead` is how far they are ahead of this page's clock.
const state = { event: null, points: [], bars: new Map(), steps: new Map(), ahead: 0, paused: false, pausedAt: 0, chosen: null, heardAt: 0, shownAt: 0 };
const pageClock = () => performance.now() / 1000;
const now = () => state.paused ? state.pausedAt : pageClock() + state.ahead;

function make(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  if (text != null) element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
function say(element, text) { if (element.textContent !== text) element.textContent = text; }
function fillTable(table, titles, rows) {
  const head = make("tr"), body = make("tbody");
  for (const title of titles) head.append(make("th", title, { scope: "col" }));
  for (const row of rows) {
    const line = make("tr");
    for (const cell of row) line.append(make("td", cell));
    body.append(line);
  }
  const header = make("thead");
  header.append(head);
  table.replaceChildren(header, body);
}
