"use strict";
// The last minute of one aggregator, drawn from its events. Nothing is sent, and nothing comes from another host.
const KEPT_S = 60, VERSION = "VERSION", MOST_BARS = 512, MOST_ROWS = 20;
const CLASSES = ["interactive", "default", "background"], SOURCES = ["grpc", "http", "kafka", "redis"];
const find = (id) => document.getElementById(id);
const CALM_S = 2;  // between two drawings, where the system asks for reduced motion
const calm = matchMedia("(prefers-reduced-motion: reduce)"), dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
let colours = {};
function readColours() {
  for (const name of ["text", "soft", "grid", "bad", "empty", "full", "decode", "prompt", "embed", "working", "held", "good"])
    colours[name] = colour(name);
}

// Numbers as people read them.
const count = (value) => value == null ? "–" : value >= 1e6 ? `${(value / 1e6).toFixed(1)} M`
  : value >= 1e4 ? `${(value / 1e3).toFixed(0)} k` : value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
const time = (seconds) => seconds == null ? "–" : seconds >= 10 ? `${seconds.toFixed(0)} s` : seconds >= 1 ? `${seconds.toFixed(1)} s`
  : seconds >= 0.01 ? `${(seconds * 1e3).toFixed(0)} ms` : `${(seconds * 1e3).toFixed(1)} ms`;
const share = (value) => value == null ? "–" : `${(value * 100).toFixed(0)} %`;

// The state. Times are the aggregator's monotonic seconds; `ahead` is how far they are ahead of this page's clock.
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

// Events.
let source = null, retry = 0;
function connect() {
  clearTimeout(retry);
  if (source) source.close();
  source = new EventSource("live");
  source.onmessage = (message) => hear(JSON.parse(message.data));
  source.onerror = () => {
    lose("reconnecting");
    if (source.readyState === EventSource.CLOSED) retry = setTimeout(connect, 2000);
  };
}
function lose(why) {
  const status = find("connection");
  say(status, why);
  status.className = "lost";
}
document.addEventListener("visibilitychange", () => {  // a tab that nobody sees costs nothing
  if (!document.hidden) connect();
  else if (source) source.close();
});

function hear(event) {
  if (event.silent_s != null) return lose(`the aggregator's event loop is silent for ${time(event.silent_s)}`);
  if (event.version !== VERSION) {  // after an upgrade; behind a balancer both versions may answer for a while
    if (pageClock() > 10) location.reload();
    return;
  }
  const offset = event.now - pageClock();
  // An event that came late must not make the bars jump back; a restarted aggregator has another clock.
  const restarted = !!event.history && Math.abs(offset - state.ahead) > 2;
  state.ahead = !state.event || restarted ? offset : Math.max(offset, state.ahead - 0.002);
  state.heardAt = pageClock();
  if (event.history) {
    state.points = event.history;
    state.bars.clear();
    state.steps.clear();
  } else state.points.push(event.point);
  state.points = state.points.filter((point) => point.t > event.now - KEPT_S);
  for (const [replica, task, end, duration, tokens, budget, queries, reason, staged, inStep, decoding, code] of event.batches)
    keep(state.bars, replica, { replica, task, end, duration, tokens, budget, queries, reason, staged, inStep, decoding, code });
  for (const [replica, end, duration, decoding, prompt, embedding] of event.steps)
    keep(state.steps, replica, { replica, end, duration, decoding, prompt, embedding });
  state.event = event;
  if (!state.paused && (!calm.matches || pageClock() - state.shownAt >= CALM_S || event.history)) {
    state.shownAt = pageClock();
    show(event);
  }
  document.documentElement.dataset.events = event.number;
}
function keep(lanes, replica, bar) {
  if (!lanes.has(replica)) lanes.set(replica, []);
  const lane = lanes.get(replica);
  lane.push(bar);
  if (lane.length > MOST_BARS) lane.splice(0, lane.length - MOST_BARS);
}

function show(event) {
  const status = find("connection");
  say(status, "live");
  status.className = "live";
  say(find("name"), event.name);
  showProblems(event.problems);
  say(find("bottleneck"), event.bottleneck);
  showStrip(event.work);
  showLanes(event.lanes);
  showPlots(event);
  showScaling(event.scaling);
  showPartitions(event.partitions);
  if (find("batches").closest("details").open) showBatches();
}

let shownProblems = "";
function showProblems(problems) {
  const all = JSON.stringify(problems);
  if (all === shownProblems) return;
  shownProblems = all;
  find("wrong").hidden = !problems.length;
  find("problems").replaceChildren(...problems.map(([text, anchor]) => {
    const item = make("li", `${text} `);
    item.append(make("a", "What to do", { href: `runbook#${anchor}`, "aria-label": `What to do: ${text}` }));
    return item;
  }));
}

function showStrip(work) {
  const strip = find("strip"), all = work.reduce((sum, [, tokens]) => sum + tokens, 0);
  if (strip.children.length !== work.length) strip.replaceChildren(...work.map(([name]) => {
    const item = make("li"), bar = make("div", null, { class: "shares", "aria-hidden": "true" });
    bar.append(make("i"));
    item.append(make("b", name), bar, make("small"));
    return item;
  }));
  work.forEach(([, tokens], place) => {
    const item = strip.children[place], part = all ? tokens / all : 0;
    item.querySelector("i").style.width = `${part * 100}%`;
    say(item.querySelector("small"), `${count(tokens)} tokens, ${share(part)}`);
  });
}

// Lanes: a canvas for each model server.
const lanes = new Map();
function showLanes(described) {
  const names = new Set(described.map((lane) => lane.name));
  for (const [name, lane] of lanes) if (!names.has(name)) { lane.row.remove(); lanes.delete(name); }
  for (const kept of [state.bars, state.steps]) for (const name of kept.keys()) if (!names.has(name)) kept.delete(name);
  for (const lane of described) {
    if (!lanes.has(lane.name)) lanes.set(lane.name, newLane(lane.name));
    const { row, text, canvas } = lanes.get(lane.name), gone = lane.state === "gone";
    row.className = `lane ${lane.state}`;
    say(text.querySelector("b"), lane.name);
    say(text.querySelector(".state"), gone ? "not used" : lane.state);
    const facts = gone ? lane.why : `${lane.model}, ${lane.tasks.join(" and ")}; budget ${count(lane.budget)} tokens, `
      + `${count(lane.tokens_out)} in flight` + (lane.sequences != null ? `, ${lane.sequences} sequence${lane.sequences === 1 ? "" : "s"}` : "");
    say(text.querySelector("small"), facts);
    canvas.setAttribute("aria-label", `Batches of ${lane.name}, ${gone ? "not used" : lane.state}; arrow keys choose one`);
  }
  find("task-keys").hidden = !described.some((lane) => lane.tasks.includes("generate"));
}
function newLane(name) {
  const row = make("div", null, { class: "lane" }), text = make("p"), canvas = make("canvas", null, { tabindex: "0", role: "img" });
  text.append(make("b"), " ", make("span", null, { class: "state" }), make("br"), make("small"));
  row.append(text, canvas);
  find("lanes").append(row);
  canvas.addEventListener("mousemove", (mouse) => choose(name, barAt(name, canvas, mouse.offsetX, mouse.offsetY)));
  canvas.addEventListener("keydown", (key) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[key.key], bars = state.bars.get(name) || [];
    if (!step || !bars.length) return;
    key.preventDefault();
    const place = bars.indexOf(state.chosen);
    choose(name, bars[place < 0 ? bars.length - 1 : Math.min(Math.max(place + step, 0), bars.length - 1)]);
  });
  return { row, text, canvas };
}
function choose(name, bar) {
  if (bar === state.chosen) return;
  state.chosen = bar || null;
  say(find("bar"), bar ? described(bar) : "");
}
const described = (bar) => bar.queries == null
  ? `A step of ${time(bar.duration)}: ${bar.decoding} decoding sequences, ${bar.prompt} tokens of prompts, ${bar.embedding} of embeddings.`
  : `${bar.replica}: ${bar.queries} ${bar.task === "generate" ? "prompts" : "queries"}, ${bar.tokens} of ${bar.budget} tokens `
    + `(${share(bar.tokens / bar.budget)}), sent because ${bar.reason}, ${bar.code ? `failed with ${bar.code} after` : "step"} ${time(bar.duration)}`
    + `${bar.inStep > bar.tokens ? `, shared with others: ${bar.inStep} tokens` : ""}${bar.decoding ? `, beside ${bar.decoding} decoding sequences` : ""}.`;
function barAt(name, canvas, x, y) {
  const at = now() - shownSpan() * (1 - x / canvas.clientWidth), twoRows = (state.steps.get(name) || []).length > 0;
  const bars = twoRows && y > canvas.clientHeight / 2 ? state.steps.get(name) : state.bars.get(name) || [];
  return bars.findLast((bar) => bar.end - bar.duration <= at && at <= bar.end + 0.05);
}
let bySteps = KEPT_S;
function shownSpan() { return Number(find("span").value) || bySteps; }
function measureSpan() {  // a bar of the median length is about 8 pixels wide
  const lengths = [...state.bars.values(), ...state.steps.values()].flatMap((bars) => bars.slice(-50).map((bar) => bar.duration)).sort((a, b) => a - b);
  const median = lengths[lengths.length >> 1], first = lanes.values().next().value;
  if (!median || !first) return;
  const wanted = median * first.canvas.clientWidth / 8;
  bySteps = [5, 10, 20, 40, 60].find((span) => span >= wanted) || 60;
}
function mix(from, to, part) {
  const parts = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const [a, b] = [parts(from), parts(to)];
  return `rgb(${a.map((value, place) => Math.round(value + (b[place] - value) * part)).join(" ")})`;
}
let hatch = null;
function newHatch() {
  const tile = make("canvas");
  tile.width = tile.height = 6;
  const draw = tile.getContext("2d");
  draw.strokeStyle = dark.matches ? "#0008" : "#fff9";
  draw.lineWidth = 1.5;
  draw.beginPath();
  for (const shift of [-6, 0, 6]) { draw.moveTo(shift, 6); draw.lineTo(shift + 6, 0); }
  draw.stroke();
  return draw.createPattern(tile, "repeat");
}
function drawLane(name, canvas) {
  const ratio = devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (!width) return;
  if (canvas.width !== Math.round(width * ratio)) { canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio); }
  const draw = canvas.getContext("2d"), span = shownSpan(), end = now(), x = (at) => width * (1 - (end - at) / span);
  draw.setTransform(ratio, 0, 0, ratio, 0, 0);
  draw.clearRect(0, 0, width, height);
  draw.strokeStyle = colours.grid;
  const every = span > 20 ? 10 : span > 5 ? 2 : 1;
  draw.beginPath();
  for (let at = Math.ceil((end - span) / every) * every; at < end; at += every) { draw.moveTo(x(at), 0); draw.lineTo(x(at), height); }
  draw.stroke();
  const steps = state.steps.get(name) || [], half = steps.length ? height / 2 - 1 : height;
  for (const bar of state.bars.get(name) || []) {
    const left = x(bar.end - bar.duration), wide = Math.max(1, x(bar.end) - left - 0.5);
    if (left + wide < 0) continue;
    draw.fillStyle = bar.code ? colours.bad : mix(colours.empty, colours.full, Math.min(1, bar.tokens / Math.max(1, bar.budget)));
    draw.fillRect(left, 2, wide, half - 4);
    if (bar.staged) { draw.fillStyle = hatch; draw.fillRect(left, 2, wide, half - 4); }
    if (bar === state.chosen) { draw.strokeStyle = colours.text; draw.lineWidth = 2; draw.strokeRect(left, 2, wide, half - 4); draw.lineWidth = 1; }
  }
  for (const step of steps) {
    const left = x(step.end - step.duration), wide = Math.max(1, x(step.end) - left - 0.5), all = step.decoding + step.prompt + step.embedding;
    if (left + wide < 0 || !all) continue;
    let top = height / 2 + 1;
    for (const [part, name] of [[step.decoding, "decode"], [step.prompt, "prompt"], [step.embedding, "embed"]]) {
      const high = (height / 2 - 3) * part / all;
      draw.fillStyle = colours[name];
      draw.fillRect(left, top, wide, high);
      top += high;
    }
  }
}
let drawnAt = 0;
function frame() {
  requestAnimationFrame(frame);
  const passed = pageClock() - drawnAt;
  if (state.paused || document.hidden || passed < (calm.matches ? CALM_S : 0.04)) return;
  drawnAt = pageClock();
  for (const [name, lane] of lanes) drawLane(name, lane.canvas);
  if (state.event && pageClock() - state.heardAt > 3) lose(`no event for ${time(pageClock() - state.heardAt)}`);
}
function showBatches() {
  const rows = [...state.bars.values()].flat().sort((a, b) => b.end - a.end).slice(0, MOST_ROWS);
  fillTable(find("batches"), ["server", "task", "ended", "step", "queries", "tokens", "fill", "reason", "staged", "failed"], rows.map((bar) => [
    bar.replica, bar.task, `${(state.event.now - bar.end).toFixed(1)} s ago`, time(bar.duration), bar.queries, bar.tokens,
    share(bar.tokens / bar.budget), bar.reason, bar.staged ? "yes" : "", bar.code]));
}

// Plots: uPlot, each with its latest values as a table.
const plots = new Map();
const line = (label, stroke, value, more = {}) => ({ label, stroke: () => colours[stroke] || stroke, value: (_, number) => value(number), width: 1.5, points: { show: false }, ...more });
const PALETTE = { grpc: "working", http: "good", kafka: "held", redis: "decode" };
const SERIES = {
  queued: { value: count, lines: CLASSES.map((name, place) => [name, ["working", "good", "held"][place], (point) => point.queued[place]]) },
  oldest: { value: time, lines: [["oldest", "working", (point) => point.oldest_s]] },
  requests: { value: count, lines: [["queries arrive", "held", (point) => point.arrived], ["requests answered", "working", (point) => point.answered]] },
  tokens: { value: count, lines: [["arrive", "held", (point) => point.arrived_tokens], ["answered", "working", (point) => point.answered_tokens]] },
  losses: { value: count, lines: [["refused", "bad", (point) => point.refused], ["expired", "held", (point) => point.expired], ["coalesced", "good", (point) => point.coalesced]] },
  latency: { value: time, lines: [...SOURCES.flatMap((name) => [[`${name} p50`, PALETTE[name], (point) => point.latency[name]?.[1], { dash: [4, 4] }], [`${name} p99`, PALETTE[name], (point) => point.latency[name]?.[2]]]), ["target", "bad", () => state.event.slo_s, { dash: [2, 3] }]] },
  parts: { value: time, lines: [["rest", "soft", (point) => part(point, 6)], ["inference", "working", (point) => part(point, 5)], ["batched", "good", (point) => part(point, 4)], ["queued", "held", (point) => part(point, 3)]], stacked: true },
  sequences: { value: count, needs: "generation", lines: [["running", "decode", (point) => point.generation?.running]] },
  kv: { value: share, needs: "generation", lines: [["KV cache", "decode", (point) => point.generation?.kv]], most: 1 },
  tokentimes: { value: time, needs: "generation", lines: [["first token p50", "prompt", (point) => point.generation?.first_p50 || null, { dash: [4, 4] }], ["first token p99", "prompt", (point) => point.generation?.first_p99 || null],
    ["between tokens p50", "decode", (point) => point.generation?.between_p50 || null, { dash: [4, 4] }], ["between tokens p99", "decode", (point) => point.generation?.between_p99 || null]] },
};
function part(point, place) {  // of all sources, by their requests
  let sum = 0, all = 0;
  for (const values of Object.values(point.latency)) { sum += values[0] * values[place]; all += values[0]; }
  return all ? sum / all : null;
}
function axes(value, seconds = true) {
  const look = { stroke: () => colours.soft, grid: { stroke: () => colours.grid, width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return [{ ...look, values: (_, values) => values.map((at) => seconds ? `${at} s` : count(at)), size: 26 },
    { ...look, values: (_, values) => values.map((at) => value(at)), size: 58 }];
}
function newPlot(id, values, options, data) {
  const figure = find(id);
  if (!plots.has(id)) {
    const place = make("div", null, { class: "plot", "aria-hidden": "true" }), details = make("details"), table = make("table");
    const region = make("div", null, { class: "scroll", tabindex: "0", role: "region", "aria-label": figure.querySelector("figcaption").textContent });
    region.append(table);
    details.append(make("summary", "As a table"), region);
    figure.append(place, details);
    plots.set(id, { place, table, details, values });
    new ResizeObserver(() => { if (place.clientWidth) plots.get(id).plot?.setSize({ width: place.clientWidth, height: 190 }); }).observe(place);
  }
  const shown = plots.get(id), size = { width: Math.max(200, shown.place.clientWidth), height: 190 };
  shown.plot = new uPlot({ ...size, cursor: { drag: { x: false, y: false } }, ...options }, data, shown.place);
}
function showLatest(plot, place) {  // in the legend, unless the mouse is over the plot
  if (!(plot.cursor.left >= 0)) plot.setLegend({ idx: place });
}
function showPlots(event) {
  for (const [id, { needs }] of Object.entries(SERIES)) find(id).hidden = !state.points.some((point) => point[needs || "queued"]);
  const xs = state.points.map((point) => point.t - event.now);
  for (const [id, { value, lines: every, stacked, most }] of Object.entries(SERIES)) {
    if (find(id).hidden) continue;
    const lines = every.filter(([, , read]) => id !== "latency" || state.points.some((point) => read(point) != null));
    const values = lines.map(([, , read]) => state.points.map((point) => read(point) ?? null));
    const shown = plots.get(id);
    if (shown && shown.plot.series.length !== lines.length + 1) {  // a source came or went
      shown.plot.destroy();
      shown.plot = null;
    }
    let drawn = values;
    if (stacked) {
      const below = state.points.map(() => 0);
      drawn = values.map((row) => row.map((number, place) => number == null ? null : (below[place] += number)));
    }
    if (shown) shown.values = values;
    if (!shown?.plot) newPlot(id, values, {
      scales: { x: { time: false, range: [-KEPT_S, 0] }, y: { range: (_, low, high) => [0, most || (high > 0 ? high * 1.1 : 1)] } },
      axes: axes(value),
      series: [{ label: "time", value: (_, at) => at == null ? "" : `${at.toFixed(1)} s` }, ...lines.map(([label, stroke, , more], place) => line(label, stroke,
        value, { ...more, value: (plot, number, series, at) => at == null ? "–" : value(plots.get(id).values[series - 1][at]), ...(stacked ? { fill: () => `${colours[stroke]}40` } : {}) }))],
    }, [xs, ...drawn]);
    else shown.plot.setData([xs, ...drawn]);
    showLatest(plots.get(id).plot, xs.length - 1);
    const { details, table } = plots.get(id);
    if (details.open) fillTable(table, ["seconds ago", ...lines.map(([label]) => label)],
      xs.map((at, place) => [(-at).toFixed(1), ...values.map((row) => value(row[place]))]).slice(-MOST_ROWS).reverse());
  }
  showCurve(event.lanes.filter((lane) => lane.curve));
}

// The curve of the first server that has one, with the steps of all that share its model.
function showCurve(measured) {
  const figure = find("curve");
  figure.hidden = !measured.length;
  if (!measured.length) return;
  const lane = measured[0], [floor, fixed, perToken] = lane.curve;
  const dots = measured.filter((each) => each.model === lane.model).flatMap((each) => (state.bars.get(each.name) || []).filter((bar) => !bar.code).slice(-100))
    .map((bar) => [bar.inStep, bar.duration]);
  const most = Math.max(lane.budget * 1.2, lane.point * 1.5, ...dots.map(([tokens]) => tokens));
  const marks = Array.from({ length: 60 }, (_, place) => [Math.round(most * place / 59), null]);
  const all = [...dots, ...marks].sort((a, b) => a[0] - b[0]);
  const data = [all.map(([tokens]) => tokens), all.map(([tokens]) => Math.max(floor, fixed + perToken * tokens) * lane.scale), all.map(([, duration]) => duration)];
  state.curve = lane;
  if (!plots.has("curve")) newPlot("curve", [], {
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, high * 1.1] } },
    axes: axes(time, false),
    series: [{ label: "tokens", value: (_, tokens) => count(tokens) }, line("measured curve", "soft", time),
      line("step", "working", time, { paths: () => null, points: { show: true, size: 5, fill: () => colours.working, stroke: () => colours.working } })],
    hooks: { draw: [(plot) => {
      for (const [tokens, label, stroke, down] of [[state.curve.point, "saturation point", "soft", 0], [state.curve.budget, "token budget", "held", 1]]) {
        const x = plot.valToPos(tokens, "x", true), draw = plot.ctx, ratio = devicePixelRatio || 1;
        draw.save();
        draw.strokeStyle = draw.fillStyle = colours[stroke];
        draw.setLineDash([4 * ratio, 4 * ratio]);
        draw.beginPath();
        draw.moveTo(x, plot.bbox.top);
        draw.lineTo(x, plot.bbox.top + plot.bbox.height);
        draw.stroke();
        draw.font = `${12 * ratio}px system-ui`;
        const left = x + draw.measureText(label).width + 8 * ratio > plot.bbox.left + plot.bbox.width;
        draw.textAlign = left ? "right" : "left";
        draw.fillText(label, x + (left ? -5 : 5) * ratio, plot.bbox.top + (14 + 16 * down) * ratio);
        draw.restore();
      }
    }] },
  }, data);
  else plots.get("curve").plot.setData(data);
  const { details, table } = plots.get("curve");
  if (details.open) fillTable(table, ["", "tokens", "step"], [
    ["saturation point", count(lane.point), time(data[1][data[0].findIndex((tokens) => tokens >= lane.point)])], ["token budget", count(lane.budget), ""],
    ...dots.slice(-MOST_ROWS).reverse().map(([tokens, duration]) => ["step", tokens, time(duration)])]);
}

function showScaling(models) {
  fillTable(find("scaling"), ["model", "arriving tokens/s", "backlog tokens", "R, tokens/s of a server", "M, servers for memory", "required", "serving"],
    models.map((each) => [each.model, count(each.arriving_tokens_per_s), count(each.backlog_tokens), count(each.pod_tokens_per_s), each.memory_pods.toFixed(1),
      each.required == null ? "not known yet" : each.required.toFixed(2), each.serving]));
}
function showPartitions(partitions) {
  find("partitions-section").hidden = !partitions;
  if (partitions) fillTable(find("partitions"), ["topic", "partition", "lag, records", "lag, tokens", "not committed, records", "paused"],
    partitions.map(([topic, number, lag, tokens, span, paused]) => [topic, number, count(lag), count(tokens), count(span), paused ? "yes" : ""]));
}

function look() {
  readColours();
  hatch = newHatch();
  const fills = find("fills"), draw = fills.getContext("2d");
  for (let x = 0; x < fills.width; x++) { draw.fillStyle = mix(colours.empty, colours.full, x / fills.width); draw.fillRect(x, 0, 1, fills.height); }
  for (const { plot } of plots.values()) plot.redraw();
}
function pause() {
  state.pausedAt = now();
  state.paused = !state.paused;
  const button = find("pause");
  say(button, state.paused ? "Go on" : "Pause");
  button.setAttribute("aria-pressed", state.paused);
  if (!state.paused && state.event) show(state.event);
}
find("pause").addEventListener("click", pause);
find("batches").closest("details").addEventListener("toggle", () => { if (state.event) showBatches(); });
dark.addEventListener("change", look);
setInterval(measureSpan, 2000);
look();
connect();
requestAnimationFrame(frame);
