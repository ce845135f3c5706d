"use strict";
// A lane, which is a canvas, for each model server.
const lanes = new Map();
const serverColour = (name) => SERVERS[[...lanes.keys()].indexOf(name) % SERVERS.length] || "soft";
function showLanes(described) {
  const names = new Set(described.map((lane) => lane.name));
  for (const [name, lane] of lanes) if (!names.has(name)) { lane.row.remove(); lanes.delete(name); }
  for (const kept of [state.bars, state.steps]) for (const name of kept.keys()) if (!names.has(name)) kept.delete(name);
  for (const lane of described) {
    if (!lanes.has(lane.name)) lanes.set(lane.name, newLane(lane.name));
    const { row, text, canvas } = lanes.get(lane.name), gone = lane.state === "gone", slow = !gone && lane.scale >= SLOW;
    row.className = `lane ${lane.state}`;
    text.querySelector(".dot").style.background = `var(--${serverColour(lane.name)})`;
    text.querySelector(".slow").hidden = !slow;
    if (slow) say(text.querySelector(".slow"), `${lane.scale.toFixed(1)} times slower than measured`);
    say(text.querySelector("b"), lane.name);
    say(text.querySelector(".state"), gone ? "not used" : lane.state);
    const facts = gone ? lane.why : `${lane.model}, ${lane.tasks.join(" and ")}; budget ${counted(lane.budget, "token")}, `
      + `${count(lane.tokens_out)} in flight` + (lane.sequences != null ? `, ${counted(lane.sequences, "sequence")}` : "");
    say(text.querySelector("small"), facts);
    canvas.setAttribute("aria-label", `Batches of ${lane.name}, ${gone ? "not used" : lane.state}${slow ? ", slow" : ""}; arrow keys choose one`);
  }
  find("task-keys").hidden = !described.some((lane) => lane.tasks.includes("generate"));
}
function newLane(name) {
  const row = make("div", null, { class: "lane" }), text = make("p"), canvas = make("canvas", null, { tabindex: "0", role: "img" });
  text.append(make("span", null, { class: "dot", "aria-hidden": "true" }), make("b"), " ", make("span", null, { class: "state" }), " ",
    make("span", null, { class: "slow" }), make("br"), make("small"));
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
  ? `A step of ${time(bar.duration)}: ${counted(bar.decoding, "decoding sequence")}, ${counted(bar.prompt, "token")} of prompts, ${bar.embedding} of embeddings.`
  : `${bar.replica}: ${bar.task === "generate" ? counted(bar.queries, "prompt") : counted(bar.queries, "query", "queries")}, ${bar.tokens} of ${bar.budget} tokens `
    + `(${share(bar.tokens / bar.budget)}), sent because ${bar.reason}, ${bar.code ? `failed with ${bar.code} after` : "step"} ${time(bar.duration)}`
    + `${bar.inStep > bar.tokens ? `, shared with others: ${bar.inStep} tokens` : ""}${bar.decoding ? `, beside ${counted(bar.decoding, "decoding sequence")}` : ""}.`;
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
  fillTable(find("batches"), ["server", "fill", "step", "tokens", "queries", "failed", "ended", "reason", "staged", "task"], rows.map((bar) => [
    bar.replica, share(bar.tokens / bar.budget), time(bar.duration), bar.tokens, bar.queries, bar.code,
    `${(state.event.now - bar.end).toFixed(1)} s ago`, bar.reason, bar.staged ? "yes" : "", bar.task]));
}

