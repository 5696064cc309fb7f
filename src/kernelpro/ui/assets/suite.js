/* One bench: fast_p, the distribution of speed-ups, outcomes by kind, and a link to the run of each row. */
import { compare, duration, find, h, look, money, ms, onLook, read, share, showTiles, sortable, speedColour, times, words } from "./common.js";
import { bars, curves } from "./plain.js";

const view = { rows: [], key: "problem", down: false, charts: {} };
const EDGES = [0.25, 0.5, 0.71, 1, 1.41, 2, 2.83, 4, 5.66, 8, 16];

function line(row) {
  const name = row.run ? h("a", { class: "strong", href: `/runs/${encodeURIComponent(row.run.root)}/${encodeURIComponent(row.run.id)}` }, row.problem) : h("span", { class: "strong" }, row.problem);
  return h("tr", {}, h("td", { class: "grow" }, name, row.status !== "passed" && row.reason ? h("div", { class: "soft small cut", title: row.reason }, row.reason) : null),
    h("td", {}, h("span", { class: `badge ${row.status}` }, words(row.status))),
    h("td", { class: "number" }, row.speedup ? [h("b", { class: row.speedup > 1 ? "fast" : "" }, times(row.speedup)), h("div", { class: "soft small" }, `over ${words(row.base)}`)] : ""),
    h("td", { class: "number" }, row.ms ? ms(row.ms) : ""), h("td", { class: "number" }, row.of_floor ? share(row.of_floor) : ""),
    h("td", { class: "soft" }, `${row.author}${row.language ? ` (${row.language})` : ""}`), h("td", { class: "number" }, duration(row.seconds)), h("td", { class: "number" }, money(row.dollars)));
}

function showRows() {
  const text = find("#filter").value.trim().toLowerCase();
  const rows = view.rows.filter((row) => !text || `${row.problem} ${row.status} ${row.author} ${row.language}`.toLowerCase().includes(text))
    .sort((a, b) => (view.key === "problem" ? a.problem.localeCompare(b.problem, "en", { numeric: true }) * (view.down ? -1 : 1) : compare(a[view.key], b[view.key], view.down)));
  find("#rows tbody").replaceChildren(...rows.map(line));
}

function draw() {
  const colours = look();
  const scored = view.rows.filter((row) => row.scored);
  const speedups = scored.map((row) => row.speedup).filter(Boolean).sort((a, b) => a - b);
  const chart = (name) => {
    view.charts[name] ||= echarts.init(find(`#chart-${name}`), null, { renderer: "canvas" });
    view.charts[name].resize();
    return view.charts[name];
  };
  const most = Math.max(2, ...speedups) * 1.05;
  const at = Array.from({ length: 121 }, (_, k) => (most * k) / 120);
  const curve = at.map((p) => [p, scored.length ? speedups.filter((value) => value > p).length / scored.length : 0]);
  chart("fast").setOption(curves(colours, [{ name: "share", points: curve }], "p, times as fast as the hardest baseline", "share of problems", { step: false }), true);
  const bins = [[0, EDGES[0]], ...EDGES.slice(0, -1).map((edge, k) => [edge, EDGES[k + 1]]), [EDGES[EDGES.length - 1], Infinity]];
  const counts = bins.map(([low, high]) => speedups.filter((value) => value >= low && value < high).length);
  const [first, last] = [counts.findIndex(Boolean), counts.findLastIndex(Boolean)];
  const shown = bins.map((bin, k) => [bin, counts[k]]).slice(Math.max(0, first), last + 1);
  const name = ([low, high]) => (high === Infinity ? `≥${low}` : low ? `${low}–${high}` : `<${high}`);
  chart("spread").setOption(bars(colours, shown.map(([bin]) => name(bin)), shown.map(([, value]) => value), "speed-up", "problems", shown.map(([[low, high]]) => speedColour(Math.sqrt((low || 0.1) * Math.min(high, 32)), colours.speeds))), true);
}

async function load() {
  const bench = await read(`/api/suites/${encodeURIComponent(document.body.dataset.bench)}`);
  view.rows = bench.rows;
  find("#about").textContent = [bench.evaluated, bench.target && `on ${bench.target}`, bench.machines.join("; ")].filter(Boolean).join(" · ") || "in progress";
  const scored = view.rows.filter((row) => row.scored);
  const passed = scored.filter((row) => row.speedup);
  const share1 = scored.length ? passed.filter((row) => row.speedup > 1).length / scored.length : 0;
  const mean = passed.length ? Math.exp(passed.reduce((sum, row) => sum + Math.log(row.speedup), 0) / passed.length) : 0;
  const total = (name) => view.rows.reduce((sum, row) => sum + row[name], 0);
  showTiles(find("#tiles"), [
    ["Geomean speed-up", times(mean), `over the hardest baseline, ${passed.length} kernels`],
    ["fast₁", share(share1), "faster than the hardest baseline", share1],
    ["Correct", scored.length ? share(passed.length / scored.length) : "–", `${passed.length} of ${scored.length}`, scored.length ? passed.length / scored.length : 0],
    ["Problems", String(view.rows.length), `${view.rows.length - scored.length} not scored`],
    ["Device time", duration(total("seconds"))],
    ["Cost", money(total("dollars"))],
  ]);
  const kinds = new Map();
  for (const row of view.rows) kinds.set(row.status, (kinds.get(row.status) || 0) + 1);
  find("#outcomes").replaceChildren(...[...kinds].sort((a, b) => b[1] - a[1]).map(([status, number]) => h("li", {}, h("button", { class: "plain", title: "Show only these", click: () => { find("#filter").value = status; showRows(); } }, h("span", { class: `badge ${status}` }, words(status))),
    h("span", { class: "meter" }, h("i", { style: { width: `${(100 * number) / view.rows.length}%`, background: `var(--state-${status.replaceAll("_", "-").replaceAll(" ", "-")}, var(--soft))` } })), h("b", { class: "number" }, String(number)))));
  showRows();
  draw();
  document.body.dataset.ready = "yes";
}
sortable(find("#rows"), view.key, view.down, (key, down) => { Object.assign(view, { key, down }); showRows(); });
find("#filter").addEventListener("input", showRows);
onLook(draw);
load();
