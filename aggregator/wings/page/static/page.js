"use strict";
// The last minute of one aggregator, drawn from its events. Nothing is sent, and nothing comes from another host.
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
  say(find("name"), `${event.name}, version ${event.release}, up for ${time(event.up_s)}`);
  document.title = `tokenbatch ${event.name}`;
  showNumbers(event);
  showProblems(event.problems);
  say(find("bottleneck"), event.bottleneck);
  showWork(event);
  showLanes(event.lanes);
  showPlots(event);
  showScaling(event.scaling);
  showPartitions(event);
  if (find("batches").closest("details").open) showBatches();
}

// Four numbers.
function showNumbers(event) {
  const points = state.points.slice(-RECENT_POINTS / 2), last = state.points.at(-1);
  say(find("number-rate"), count(mean(points.map((point) => point.answered))));
  say(find("detail-rate"), `${count(mean(points.map((point) => point.arrived)))} arrive`);
  // Of callers, who wait for each answer; where there are none, of the brokers' records.
  const sources = SOURCES.filter((name) => last?.latency[name]);
  const callers = sources.filter((name) => name === "grpc" || name === "http");
  const worst = (callers.length ? callers : sources).sort((a, b) => last.latency[b][2] - last.latency[a][2])[0];
  say(find("number-p99"), worst ? time(last.latency[worst][2]) : "–");
  const target = event.slo_s == null ? "" : `; target ${time(event.slo_s)}`;
  say(find("detail-p99"), worst ? `of ${worst}, p50 ${time(last.latency[worst][1])}${target}` : "nothing was answered in the last second");
  const batches = [...state.bars.values()].flat().filter((bar) => !bar.code && bar.end > event.now - RECENT_S);
  const [tokens, budgets] = batches.reduce(([tokens, budgets], bar) => [tokens + bar.tokens, budgets + bar.budget], [0, 0]);
  say(find("number-fill"), budgets ? share(tokens / budgets) : "–");
  say(find("detail-fill"), `${counted(batches.length, "batch", "batches")} in ${RECENT_S} s`);
  say(find("number-waiting"), count(last ? last.queued.reduce((sum, part) => sum + part, 0) : null));
  const [records] = event.left, oldest = last?.oldest_s ? `the oldest for ${time(last.oldest_s)}` : "";
  say(find("detail-waiting"), [oldest, records ? `and ${counted(records, "record")} unread` : ""].filter(Boolean).join(", ") || "nothing waits");
}
function drainTime(tokens) {  // at the mean rate of the last seconds
  const rate = mean(state.points.slice(-RECENT_POINTS).map((point) => point.answered_tokens));
  return rate ? tokens / rate : null;
}

let shownProblems = "";
function showProblems(problems) {
  const all = JSON.stringify(problems);
  if (all === shownProblems) return;
  shownProblems = all;
  for (const [id, severity] of [["problems", "problem"], ["notices", "notice"]]) {
    const found = problems.filter(([, , each]) => each === severity);
    (id === "problems" ? find("wrong") : find(id)).hidden = !found.length;
    find(id).replaceChildren(...found.map(([text, anchor]) => {
      const item = make("li", `${text} `), words = severity === "problem" ? "What to do" : "Why";
      item.append(make("a", words, { href: `runbook#${anchor}`, "aria-label": `${words}: ${text}` }));
      return item;
    }));
  }
}

function showWork({ work, most }) {
  const [queued, computing, completing] = work.map(([, tokens]) => tokens), held = queued + computing + completing;
  const gauge = find("gauge-held");
  [["queue", queued], ["servers", computing], ["completion", completing]].forEach(([name, tokens]) => {
    gauge.querySelector(`.${name}`).style.width = `${Math.min(100, tokens / most.held * 100)}%`;
  });
  gauge.querySelector("em").style.left = `${most.background / most.held * 100}%`;
  gauge.classList.toggle("over", held >= most.background);
  const parts = `${count(queued)} in the queue, ${count(computing)} at model servers, ${count(completing)} in completion`;
  say(find("text-held"), `${count(held)} of ${counted(most.held, "token")}, ${share(most.held ? held / most.held : 0)}: ${parts}`);
  find("gauge-servers").querySelector("i").style.width = `${most.computing ? Math.min(100, computing / most.computing * 100) : 0}%`;
  say(find("text-servers"), `${count(computing)} of the ${counted(most.computing, "token")} that fit the batches that run and those behind them`);
}

function showScaling(models) {
  fillTable(find("scaling"), ["model", "required", "serving", "arriving tokens/s", "backlog tokens", "R, tokens/s of a server", "M, servers for memory"],
    models.map((each) => [each.model, each.required == null ? "not known yet" : each.required.toFixed(2), each.serving,
      count(each.arriving_tokens_per_s), count(each.backlog_tokens), count(each.pod_tokens_per_s), each.memory_pods.toFixed(1)]));
}
function showPartitions({ partitions, left: [records, tokens] }) {
  find("partitions-section").hidden = !partitions;
  if (!partitions) return;
  const drain = drainTime(tokens);
  say(find("left"), !records ? "No record is left." : `${counted(records, "record")} of about ${counted(Math.round(tokens), "token")} left`
    + (drain == null ? "; nothing is answered at present." : `: about ${time(drain)} at the rate of the last ${RECENT_S} s.`));
  fillTable(find("partitions"), ["partition", "records left", "waits", "tokens left", "not committed, records"],
    partitions.map(([topic, number, lag, tokens, span, paused]) => [`${topic}/${number}`, count(lag), paused ? "yes" : "", count(tokens), count(span)]));
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
const atLoad = JSON.parse(find("first").textContent);  // null: the aggregator's event loop did not answer
if (atLoad) { hear(atLoad); measureSpan(); }
connect();
requestAnimationFrame(frame);
