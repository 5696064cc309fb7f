/* The list of runs: filtered, sorted, and refreshed every two seconds. */
import { ago, all, compare, count, duration, find, h, pill, read, share, sortable, sparkline, times, words } from "./common.js";

const table = find("#runs");
const chosen = new Set();
const view = { key: "created", down: true, rows: [] };
const values = {
  id: (row) => row.id, state: (row) => row.state, speedup: (row) => row.speedup, created: (row) => row.created,
  candidates: (row) => (row.limits?.candidates ? row.spent.candidates / row.limits.candidates : null), wall: (row) => row.spent?.wall_seconds,
};

function budget(row) {
  const used = [["candidates", count], ["dollars", (value) => `$${value.toFixed(2)}`], ["wall_seconds", duration]]
    .filter(([name]) => row.limits[name]).map(([name, text]) => [row.spent[name] / row.limits[name], `${text(row.spent[name])} of ${text(row.limits[name])}${name === "candidates" ? " candidates" : ""}`])
    .sort((a, b) => b[0] - a[0])[0];
  if (!used) return h("span", { class: "soft" }, `${row.spent.candidates} candidates`);
  return h("div", { class: "budget", title: share(used[0]) }, h("span", {}, used[1]), h("div", { class: `meter${used[0] >= 1 ? " full" : ""}` }, h("i", { style: { width: `${100 * Math.min(1, used[0])}%` } })));
}

function line(row) {
  const name = `${row.root}/${row.id}`;
  if (row.error) return h("tr", {}, h("td", {}), h("td", { colspan: 7, class: "fault" }, `${row.id}: ${row.error}`));
  const box = h("input", { type: "checkbox", "aria-label": `Compare ${row.id}`, change: () => {
    if (box.checked) chosen.add(name);
    else chosen.delete(name);
    showChoice();
  } });
  box.checked = chosen.has(name);
  const address = `/runs/${encodeURIComponent(row.root)}/${encodeURIComponent(row.id)}`;
  return h("tr", { class: row.state }, h("td", { class: "pick" }, box),
    h("td", { class: "grow" }, h("a", { class: "strong", href: address }, row.id), h("div", { class: "soft small cut" }, `${row.task} · ${row.target} · ${row.author} · ${row.policy}`)),
    h("td", { "data-label": "state" }, pill(row.state, row.died)),
    h("td", { class: "number", "data-label": "best" }, row.speedup ? [h("b", { class: row.speedup > 1 ? "fast" : "" }, times(row.speedup)), h("div", { class: "soft small" }, row.compiler ? "compiler's own" : `over ${words(row.base)}`)] : h("span", { class: "soft" }, "–")),
    h("td", { class: "curve" }, sparkline(row.curve), h("span", { class: "soft small" }, `${row.steps} steps, ${row.passed} passed`)),
    h("td", { "data-label": "budget" }, budget(row)), h("td", { class: "number", "data-label": "time" }, duration(row.spent.wall_seconds)),
    h("td", { class: "soft nowrap", "data-label": "started", title: new Date(1000 * row.created).toLocaleString("en-GB") }, ago(Date.now() / 1000 - row.created)));
}

function showChoice() {
  const link = find("#compare");
  link.setAttribute("aria-disabled", String(chosen.size < 2));
  link.textContent = chosen.size ? `Compare ${chosen.size}` : "Compare";
  link.href = `/compare?${[...chosen].map((name) => `run=${encodeURIComponent(name)}`).join("&")}`;
}

let shown = "";
function show() {
  const text = find("#filter").value.trim().toLowerCase();
  const state = find("#state").value;
  const rows = view.rows
    .filter((row) => (!state || row.state === state) && (!text || `${row.id} ${row.task} ${row.author} ${row.state} ${row.target} ${row.policy}`.toLowerCase().includes(text)))
    .sort((a, b) => compare(values[view.key](a), values[view.key](b), view.down));
  find("#none").hidden = view.rows.length > 0;
  table.hidden = !view.rows.length;
  const key = JSON.stringify(rows) + Math.floor(Date.now() / 60000);
  if (key === shown) return; // nothing changed: redrawing would lose the keyboard focus
  shown = key;
  const focus = document.activeElement?.closest?.("tr")?.querySelector("a")?.textContent;
  const kind = document.activeElement?.tagName;
  find("tbody", table).replaceChildren(...rows.map(line));
  if (focus) all("a.strong", table).filter((link) => link.textContent === focus).forEach((link) => (kind === "INPUT" ? link.closest("tr").querySelector("input") : link).focus());
}

async function refresh() {
  try {
    view.rows = (await read("/api/runs")).runs;
    show();
    find("#link").hidden = true;
  } catch {
    find("#link").hidden = false;
    find("#link").className = "chip link bad";
    find("#link").textContent = "reconnecting…";
  }
  document.body.dataset.ready = "yes";
  setTimeout(refresh, document.hidden ? 10000 : 2000);
}

sortable(table, view.key, view.down, (key, down) => {
  Object.assign(view, { key, down });
  show();
});
find("#filter").addEventListener("input", show);
find("#state").addEventListener("change", show);
find("#compare").addEventListener("click", (event) => { if (chosen.size < 2) event.preventDefault(); });
refresh();
