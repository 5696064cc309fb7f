/* The page of a run: follows its stream, keeps its state, and passes changes to the views. */
import { all, find, look, onLook, send, steers, toast } from "./common.js";
import { TreeView } from "./tree.js";
import { StepDrawer } from "./drawer.js";
import { Dialogs } from "./dialogs.js";
import { StepList } from "./steplist.js";
import * as panels from "./panels.js";

const { root, run, hints } = document.body.dataset;
const api = `/api/runs/${encodeURIComponent(root)}/${encodeURIComponent(run)}`;
const LOG_LINES = 300;
const LARGE = 1500; // number of points in the chart beyond which failures are thinned out

const state = { steps: new Map(), seconds: {}, status: null, process: {}, by: "step", offset: 0, ready: false };
const request = (data) => send(`${api}/requests`, data);

const drawer = new StepDrawer({ api, state, act: steer, onClose: () => { history.replaceState(null, "", location.pathname); tree.select(null); } });
const tree = new TreeView(find("#tree"), find("#tree-over"), find("#tree-tip"), {
  onOpen: (n) => { location.hash = `step-${n}`; },
  onSay: (text) => { find("#tree-said").textContent = text; },
});
const list = new StepList(find("#steps"), find("#step-filter"), { state, onOpen: (n) => { location.hash = `step-${n}`; } });
const dialogs = new Dialogs({ api, request, state });

// --- steering ------------------------------------------------------------------------------------------------

async function steer(kind, data = {}) {
  try {
    await request({ kind, ...data });
    toast({ pin: data.step ? `The search continues at step ${data.step}` : "The pin is released", close: `The branch of step ${data.step} is closed`,
      open: `The branch of step ${data.step} is open again`, profile: `Step ${data.step} will be profiled`, withdraw_hint: "The hint is withdrawn",
      resume: "The run is being resumed" }[kind] || "Done");
  } catch (error) {
    toast(error.message, true);
  }
}

for (const button of all("#actions [data-do]")) {
  button.addEventListener("click", () => {
    const kind = button.dataset.do;
    if (kind === "resume") return steer("resume");
    if (kind === "stop") {
      return dialogs.confirm("Stop the run?", "The process stops at once, as with Ctrl-C. Everything so far is saved; work in progress is repeated when the run is resumed.", "Stop", () => request({ kind: "stop" }));
    }
    if (kind === "finish") {
      return dialogs.confirm("Finish the run?", "No further step is chosen. The finalists are judged at full length, and the run ends with its winner.", "Finish", () => request({ kind: "stop", finish: true }));
    }
    dialogs.open(kind, drawer.number || 0);
  });
}
if (!steers) find("#actions").hidden = true;
if (hints === "no") find('[data-do="hint"]').title = "Only LLM agents read hints";

// --- the stream ----------------------------------------------------------------------------------------------

function setLink(text, kind) {
  const chip = find("#link");
  chip.hidden = false;
  chip.textContent = text;
  chip.className = `chip link ${kind}`;
}

let cursor = "";

/* The browser reconnects by itself and sends the cursor. If it gives up, a new stream starts at the cursor. */
function follow() {
  const source = new EventSource(`${api}/stream?after=${cursor}`);
  source.addEventListener("open", () => setLink("live", "good"));
  source.addEventListener("error", () => {
    setLink(source.readyState === EventSource.CLOSED ? "connection closed" : "reconnecting…", "bad");
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
  });
  source.addEventListener("batch", (event) => {
    cursor = event.lastEventId;
    receive(JSON.parse(event.data));
  });
  source.addEventListener("gone", (event) => {
    source.close();
    setLink("gone", "bad");
    find("#actions").hidden = true;
    tree.live = false;
    panels.showGone(JSON.parse(event.data));
  });
}

let dirty = { steps: [], lines: [] };
let drawing = 0;

function receive(batch) {
  for (const step of batch.steps || []) state.steps.set(step.n, step);
  Object.assign(state.seconds, batch.seconds || {});
  state.process = batch.process;
  if (batch.status) {
    state.status = batch.status;
    state.offset = batch.status.now - Date.now() / 1000;
    state.ready = true;
  }
  dirty.steps.push(...(batch.steps || []));
  dirty.lines.push(...(batch.lines || []));
  if (dirty.lines.length > LOG_LINES) dirty.lines = dirty.lines.slice(-LOG_LINES);
  if (!drawing) drawing = requestAnimationFrame(draw);
  if (document.hidden) draw(); // a hidden tab has no frames: draw now, so that nothing piles up
}

function draw() {
  cancelAnimationFrame(drawing);
  drawing = 0;
  const { steps, lines } = dirty;
  dirty = { steps: [], lines: [] };
  const status = state.status;
  tree.live = status ? status.state === "running" : true;
  tree.update(steps, status && { best: status.best?.n || 0, pinned: status.steering.pinned, closed: status.steering.closed });
  panels.appendLog(find("#log"), lines, LOG_LINES);
  if (!status) return;
  panels.showState(status, state.process, steer);
  panels.showSummary(find("#tiles"), status, state.steps);
  panels.showActivity(find("#activity"), status, state.offset);
  panels.showQuestions(status, (key) => dialogs.answer(key));
  panels.showSteering(status, steer);
  panels.showAccount(find("#account"), status);
  panels.showCosts(find("#costs"), status);
  list.update(status);
  panels.showLegend(find("#legend"), state.steps, status);
  if (steps.length) {
    chartSoon();
    if (drawer.number && steps.some((step) => step.n === drawer.number)) drawer.refresh();
  }
  drawer.showActions(status);
  document.body.dataset.ready = "yes";
}
setInterval(() => state.status && panels.showElapsed(state.offset), 1000);

// --- the chart -----------------------------------------------------------------------------------------------

let chart = null;
let chartDue = 0;
let [chartCost, chartKey] = [0, ""];
const chartSoon = () => { chartDue ||= setTimeout(drawChart, chart ? Math.max(1000, 20 * chartCost) : 0); };

function points() {
  const settled = [...state.steps.values()].filter((step) => !step.open).sort((a, b) => a.n - b.n);
  const every = Math.max(1, Math.ceil(settled.length / LARGE));
  let [best, usd] = [null, 0];
  const kept = [];
  settled.forEach((step, k) => {
    usd += step.usd || 0;
    const better = step.c && (best === null || step.c < best);
    if (better) best = step.c;
    if (better || k % every === 0) kept.push({ step: step.n, seconds: state.seconds[step.n] ?? null, state: step.s, ms: step.c || null, best_ms: best, dollars: usd });
  });
  return kept;
}

function drawChart() {
  chartDue = 0;
  const place = find("#chart-progress");
  const status = state.status;
  const progress = points();
  if (!status || !progress.length || document.hidden) return;
  const key = JSON.stringify([progress.map((point) => [point.step, point.ms, point.dollars, state.by === "time" && point.seconds]), status.baselines, status.floor_ms, status.best?.n, state.by, place.clientWidth, place.clientHeight, look().ink]);
  if (key === chartKey) return; // a step was saved again without changes to the chart
  chartKey = key;
  const start = performance.now();
  chart ||= echarts.init(place, null, { renderer: "canvas" });
  const wanted = new Set(progress.map((point) => point.step));
  const steps = [...wanted].map((n) => panels.asReportStep(state.steps.get(n), status));
  const baselines = Object.entries(status.baselines).map(([name, value]) => ({ name, label: name.replace("PyTorch ", ""), comparable_ms: value }));
  if (chart.getWidth() !== place.clientWidth || chart.getHeight() !== place.clientHeight) chart.resize();
  chart.setOption(KernelProCharts.progress({ steps, progress, baselines, floor_ms: status.floor_ms }, { ...look(), height: place.clientHeight, width: place.clientWidth }, state.by), true);
  chartCost = performance.now() - start;
  if (!chart.listens) {
    chart.listens = true;
    chart.on("click", (event) => { if (event.data?.number) location.hash = `step-${event.data.number}`; });
  }
}

for (const button of all("[data-by]")) {
  button.addEventListener("click", () => {
    state.by = button.dataset.by;
    for (const other of all("[data-by]")) other.setAttribute("aria-pressed", String(other === button));
    drawChart();
  });
}

// --- the rest ------------------------------------------------------------------------------------------------

for (const button of all("[data-tree]")) {
  button.addEventListener("click", () => {
    tree.moved = true;
    find("#follow").checked = false;
    ({ best: () => tree.select(state.status?.best?.n || 0, { centre: true }), in: () => tree.zoomBy(1.25), out: () => tree.zoomBy(0.8), fit: () => tree.fit() })[button.dataset.tree]();
  });
}
find("#only-passed").addEventListener("change", (event) => tree.setOnlyPassed(event.target.checked));
find("#follow").addEventListener("change", (event) => {
  tree.moved = !event.target.checked;
  tree.stale = true;
  tree.paint();
});
find("#tree").addEventListener("pointerup", () => { find("#follow").checked = !tree.moved; });

function openTarget() {
  const target = /^#step-(\d+)$/.exec(location.hash);
  if (!target) return drawer.close(false);
  drawer.open(Number(target[1]));
  tree.select(Number(target[1]));
}
function dress() {
  tree.look = look();
  tree.resize(); // the device pixel ratio may have changed
  drawChart();
  list.paint();
}
panels.watchLog(find("#log"));
addEventListener("hashchange", openTarget);
document.addEventListener("visibilitychange", () => { if (!document.hidden) { drawChart(); tree.paint(); } });
onLook(dress);
dress();
follow();
openTarget();
window.kernelpro = { state, tree, receive }; // for the console, and for tests
