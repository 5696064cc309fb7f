/* Several runs side by side: the best speed-up of each, its time and its cost. */
import { all, count, duration, find, h, look, money, ms, onLook, pill, read, share, times, toast, words } from "./common.js";
import { curves } from "./plain.js";

let [runs, by, chart] = [[], "step", null];

function points(run) {
  const settled = run.steps.filter((step) => !step.open).sort((a, b) => a.n - b.n);
  let [best, usd] = [0, 0];
  const found = [];
  settled.forEach((step, k) => {
    usd += step.usd || 0;
    const better = (step.x || 0) > best;
    best = Math.max(best, step.x || 0);
    const x = by === "step" ? step.n : by === "money" ? usd : run.seconds[step.n];
    if (best && x !== undefined && (better || k === settled.length - 1 || k % Math.ceil(settled.length / 400) === 0)) found.push([x, best]);
  });
  return found;
}

function draw() {
  if (!runs.length) return;
  chart ||= echarts.init(find("#chart"), null, { renderer: "canvas" });
  chart.resize();
  const across = { step: "candidates", time: "seconds of work", money: "dollars" }[by];
  chart.setOption(curves(look(), runs.map((run) => ({ name: run.facts.id, points: points(run), mark: 1 })), across, "best speed-up"), true);
}

const ROWS = [
  ["Run", (run) => h("a", { class: "strong", href: `/runs/${encodeURIComponent(run.root)}/${encodeURIComponent(run.facts.id)}` }, run.facts.id)],
  ["State", (run) => pill(run.status.state, run.status.died)],
  ["Task", (run) => run.facts.task],
  ["Target", (run) => run.facts.target],
  ["Author", (run) => run.facts.author],
  ["Policy", (run) => run.facts.policy],
  ["Best speed-up", (run) => h("b", {}, run.status.best ? times(run.status.best.x) : "–"), (run) => run.status.best?.x, true],
  ["Hardest baseline", (run) => words(run.status.best?.base || "–")],
  ["Time of the best", (run) => ms(run.status.best?.ms), (run) => run.status.best?.ms, false],
  ["Of the floor", (run) => (run.status.best && run.status.floor_ms ? share(run.status.floor_ms / run.status.best.ms) : "–"), (run) => run.status.best && run.status.floor_ms / run.status.best.ms, true],
  ["Found at step", (run) => String(run.status.best?.n ?? "–"), (run) => run.status.best?.n, false],
  ["Steps", (run) => count(run.steps.length)],
  ["Passed", (run) => { const settled = run.steps.filter((step) => !step.open); return settled.length ? share(settled.filter((step) => step.ms).length / settled.length) : "–"; }, (run) => run.steps.filter((step) => step.ms).length / (run.steps.length || 1), true],
  ["Time of work", (run) => duration(run.status.spent.wall_seconds), (run) => run.status.spent.wall_seconds, false],
  ["Device time", (run) => duration(run.status.spent.device_seconds), (run) => run.status.spent.device_seconds, false],
  ["Cost", (run) => money(run.status.spent.dollars), (run) => run.status.spent.dollars, false],
];

function table() {
  const body = ROWS.map(([title, cell, value, high]) => {
    const values = value ? runs.map(value) : [];
    const known = values.filter((item) => item !== undefined && item !== null);
    const best = runs.length > 1 && new Set(known).size > 1 ? (high ? Math.max(...known) : Math.min(...known)) : null;
    return h("tr", {}, h("th", { scope: "row" }, title), runs.map((run, k) => h("td", { class: best !== null && values[k] === best ? "winner-cell" : "" }, cell(run))));
  });
  find("#compared").replaceChildren(h("tbody", {}, body));
}

for (const button of all("[data-by]")) {
  button.addEventListener("click", () => {
    by = button.dataset.by;
    for (const other of all("[data-by]")) other.setAttribute("aria-pressed", String(other === button));
    draw();
  });
}
onLook(draw);
addEventListener("DOMContentLoaded", async () => {
  try {
    if (!new URLSearchParams(location.search).get("run")) throw new Error("Choose runs in the list first.");
    ({ runs } = await read(`/api/compare${location.search}`));
    table();
    draw();
  } catch (error) {
    find("#about").textContent = error.message;
    toast(error.message, true);
  }
  document.body.dataset.ready = "yes";
});
