"use strict";
// Plots: uPlot, each with its latest values as a table.
const plots = new Map();
const line = (label, stroke, value, more = {}) => ({ label, stroke: () => colours[stroke] || stroke, value: (_, number) => value(number), width: 1.5, points: { show: false }, ...more });
const PALETTE = { grpc: "working", http: "good", kafka: "held", redis: "decode" };
const P50 = { dash: [4, 4], width: 1 }, P99 = { width: 2 };
const SERIES = {
  queued: { value: count, lines: CLASSES.map((name, place) => [name, ["working", "good", "held"][place], (point) => point.queued[place]]) },
  oldest: { value: time, lines: [["oldest", "working", (point) => point.oldest_s]] },
  queries: { value: count, lines: [["arrive", "held", (point) => point.arrived], ["answered", "working", (point) => point.answered]] },
  tokens: { value: count, lines: [["arrive", "held", (point) => point.arrived_tokens], ["answered", "working", (point) => point.answered_tokens]] },
  losses: { value: count, lines: [["refused", "bad", (point) => point.refused], ["expired", "held", (point) => point.expired]] },
  coalesced: { value: count, lines: [["coalesced", "good", (point) => point.coalesced]] },
  latency: { value: time, log: true, lines: [...SOURCES.flatMap((name) => [[`${name} p50`, PALETTE[name], (point) => point.latency[name]?.[1] || null, P50], [`${name} p99`, PALETTE[name], (point) => point.latency[name]?.[2] || null, P99]]), ["target, sla.latency_s", "bad", () => state.event.slo_s, { dash: [2, 3] }]] },
  parts: { value: time, lines: [["rest", "soft", (point) => part(point, 6)], ["inference", "working", (point) => part(point, 5)], ["batched", "good", (point) => part(point, 4)], ["queued", "held", (point) => part(point, 3)]], stacked: true },
  sequences: { value: count, needs: "generation", lines: [["running", "decode", (point) => point.generation?.running]] },
  kv: { value: share, needs: "generation", lines: [["KV cache", "decode", (point) => point.generation?.kv]], most: 1 },
  tokentimes: { value: time, log: true, needs: "generation", lines: [["first token p50", "prompt", (point) => point.generation?.first_p50 || null, P50], ["first token p99", "prompt", (point) => point.generation?.first_p99 || null, P99],
    ["between tokens p50", "decode", (point) => point.generation?.between_p50 || null, P50], ["between tokens p99", "decode", (point) => point.generation?.between_p99 || null, P99]] },
};
function part(point, place) {  // of all sources, by their requests
  let sum = 0, all = 0;
  for (const values of Object.values(point.latency)) { sum += values[0] * values[place]; all += values[0]; }
  return all ? sum / all : null;
}
function axes(value, seconds = true) {
  const look = { stroke: () => colours.soft, grid: { stroke: () => colours.grid, width: 1 }, ticks: { show: false }, font: "12px system-ui" };
  return [{ ...look, values: (_, values) => values.map((at) => seconds ? `${at} s` : count(at)), size: 26 },
    { ...look, values: (_, values) => values.map((at) => at == null ? "" : value(at)), size: 64 }];
}
// Points further apart have one without values between them: that time is not drawn.
function spaced(points) {
  return points.flatMap((point, place) => place && point.t - points[place - 1].t > GAP_S
    ? [{ t: (point.t + points[place - 1].t) / 2, gap: true }, point] : [point]);
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
  const hooks = { ready: [(plot) => showLatest(plot, data[0].length - 1)] };  // which is after the page's first look at it
  shown.plot = new uPlot({ ...size, cursor: { drag: { x: false, y: false } }, hooks, ...options }, data, shown.place);
}
function showLatest(plot, place) {  // in the legend, unless the mouse is over the plot
  if (!(plot.cursor.left >= 0)) plot.setLegend({ idx: place });
}
function showPlots(event) {
  for (const [id, { needs }] of Object.entries(SERIES)) find(id).hidden = !state.points.some((point) => point[needs || "queued"]);
  const points = spaced(state.points), xs = points.map((point) => point.t - event.now);
  for (const [id, { value, lines: every, stacked, most, log }] of Object.entries(SERIES)) {
    if (find(id).hidden) continue;
    const lines = every.filter(([, , read]) => id !== "latency" || state.points.some((point) => read(point) != null));
    const values = lines.map(([, , read]) => points.map((point) => point.gap ? null : read(point) ?? null));
    const idle = !lines.some(([name, , read]) => !name.startsWith("target") && state.points.some((point) => read(point)));
    find(id).classList.toggle("idle", idle);  // folded into one line
    if (idle && plots.has(id)) continue;
    const shown = plots.get(id);
    if (shown && shown.plot.series.length !== lines.length + 1) {  // a source came or went
      shown.plot.destroy();
      shown.plot = null;
    }
    let drawn = values;
    if (stacked) {
      const below = points.map(() => 0);
      drawn = values.map((row) => row.map((number, place) => number == null ? null : (below[place] += number)));
    }
    if (shown) shown.values = values;
    if (!shown?.plot) newPlot(id, values, {
      scales: { x: { time: false, range: [-KEPT_S, 0] }, y: log
        ? { distr: 3, range: (_, low, high) => high > 0 ? uPlot.rangeLog(low, high, 10, true) : [0.001, 1] }
        : { range: (_, low, high) => [0, most || (high > 0 ? high * 1.1 : 1)] } },
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
  const idle = [...document.querySelectorAll("figure.idle:not([hidden]) figcaption")].map((caption) => caption.textContent);
  find("idle").hidden = !idle.length;
  say(find("idle"), `Nothing in the last minute: ${idle.join("; ")}.`);
  showCurve(event.lanes.filter((lane) => lane.curve));
}

// The curve that the first server measured, with the steps of all that share its model, a colour for each.
function showCurve(measured) {
  const figure = find("curve");
  figure.hidden = !measured.length;
  if (!measured.length) return;
  const lane = measured[0], [floor, fixed, perToken] = lane.curve, alike = measured.filter((each) => each.model === lane.model);
  const dots = alike.map((each) => (state.bars.get(each.name) || []).filter((bar) => !bar.code).slice(-100).map((bar) => [bar.inStep, bar.duration]));
  const most = Math.max(lane.budget * 1.2, lane.point * 1.5, ...dots.flat().map(([tokens]) => tokens));
  const marks = Array.from({ length: 60 }, (_, place) => [Math.round(most * place / 59), null, -1]);
  const all = [...dots.flatMap((own, server) => own.map(([tokens, duration]) => [tokens, duration, server])), ...marks].sort((a, b) => a[0] - b[0]);
  const data = [all.map(([tokens]) => tokens), all.map(([tokens]) => Math.max(floor, fixed + perToken * tokens)),
    ...alike.map((_, server) => all.map(([, duration, of]) => of === server ? duration : null))];
  state.curve = lane;
  const names = alike.map((each) => each.name).join(), shown = plots.get("curve");
  if (shown && shown.names !== names) {
    shown.plot.destroy();
    shown.plot = null;
  }
  if (!shown?.plot) newPlot("curve", [], {
    padding: [38, 10, 0, 0],  // room for the names of the two lines, above what is drawn
    legend: { live: false },
    scales: { x: { time: false }, y: { range: (_, low, high) => [0, high * 1.1] } },
    axes: axes(time, false),
    series: [{ label: "tokens" }, line("as measured", "soft", time), ...alike.map(({ name }) => {
      const stroke = () => colours[serverColour(name)];
      return { label: name, stroke, paths: () => null, points: { show: true, size: 5, fill: stroke, stroke } };
    })],
    hooks: { draw: [nameLines] },
  }, data);
  else shown.plot.setData(data);
  plots.get("curve").names = names;
  const { details, table } = plots.get("curve");
  if (details.open) fillTable(table, ["", "tokens", "step"], [
    ["saturation point", count(lane.point), time(Math.max(floor, fixed + perToken * lane.point))], ["token budget", count(lane.budget), ""],
    ...alike.flatMap(({ name }, server) => dots[server].slice(-5).reverse().map(([tokens, duration]) => [name, tokens, time(duration)]))]);
}
function nameLines(plot) {
  const draw = plot.ctx, ratio = devicePixelRatio || 1, { left, top, width, height } = plot.bbox;
  for (const [tokens, label, stroke, row] of [[state.curve.point, "saturation point", "soft", 0], [state.curve.budget, "token budget", "held", 1]]) {
    const x = plot.valToPos(tokens, "x", true), foot = top - (20 - 16 * row) * ratio;
    draw.save();
    draw.strokeStyle = draw.fillStyle = colours[stroke];
    draw.setLineDash([4 * ratio, 4 * ratio]);
    draw.beginPath();
    draw.moveTo(x, foot);
    draw.lineTo(x, top + height);
    draw.stroke();
    draw.font = `${12 * ratio}px system-ui`;
    const isRight = x + draw.measureText(label).width + 8 * ratio > left + width;
    draw.textAlign = isRight ? "right" : "left";
    draw.fillText(label, x + (isRight ? -5 : 5) * ratio, foot);
    draw.restore();
  }
}
