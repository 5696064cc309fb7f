/* Code that all pages share: elements from text, numbers in words, requests, colours, sortable tables.
 * Texts of candidates, models and users reach the page only through `h` and `visible`, as text nodes. */

export const find = (selector, inside = document) => inside.querySelector(selector);
export const all = (selector, inside = document) => [...inside.querySelectorAll(selector)];
export const steers = document.body.dataset.steers === "yes";

/* Replace control characters (terminal escapes too) and changes of the writing direction by visible ones. */
export const visible = (text) =>
  String(text).replace(/[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g, (c) => {
    const code = c.charCodeAt(0);
    return code < 32 ? String.fromCharCode(0x2400 + code) : code === 127 ? "\u2421" : "\ufffd";
  });

/* An element. Attributes with a function as value become listeners; strings among the children become text. */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (key === "style") for (const [property, to] of Object.entries(value)) element.style.setProperty(property, to);
    else if (value === true) element.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false)
    .map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

// --- numbers in words --------------------------------------------------------------------------------------

export const ms = (value) => (value ? `${Number(value.toPrecision(4))} ms` : "–");
export const times = (value) => (value ? `${value >= 100 ? value.toFixed(0) : value.toFixed(2)}×` : "–");
export const share = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
export const money = (value) => (value ? `$${value < 1 ? value.toFixed(3) : value.toFixed(2)}` : "$0");
const groups = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
export const count = (value) => groups.format(value).replaceAll(",", "\u202f");
export function duration(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}
export function ago(seconds) {
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}
const timeOfDay = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
export const clock = (seconds) => timeOfDay.format(1000 * seconds);
export const words = (state) => state.replaceAll("_", " ");

// --- requests ----------------------------------------------------------------------------------------------

export async function read(address) {
  const response = await fetch(address);
  const data = await response.json();
  if (!response.ok) throw new Error(data.error || response.statusText);
  return data;
}

export async function send(address, data) {
  const response = await fetch(address, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(data) });
  if (response.headers.get("content-type") !== "application/json") throw new Error((await response.text()).trim() || response.statusText);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error || response.statusText);
  return answer;
}

export function toast(text, bad = false) {
  const note = h("div", { class: bad ? "toast bad" : "toast" }, text);
  find("#toasts").append(note);
  setTimeout(() => note.remove(), 5000);
}

// --- looks -------------------------------------------------------------------------------------------------

/* The look of the report's charts, with colours for speed-ups and for several series. */
export function look() {
  const style = getComputedStyle(document.documentElement);
  const speeds = [0, 1, 2, 3, 4].map((k) => KernelProCharts.colour(style, `speed-${k}`));
  return {
    ...KernelProCharts.look(), speeds, speed: (ratio) => (ratio ? speedColour(ratio, speeds) : null),
    series: [1, 2, 3, 4, 5, 6, 0, 7].map((k) => KernelProCharts.colour(style, `part-${k}`)),
  };
}
export const onLook = (redraw) => {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(redraw, 120);
  });
};

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
/* The colour of a speed-up: 0.5x to 8x on a logarithmic scale of five colours. */
export function speedColour(ratio, colours) {
  const at = Math.max(0, Math.min(0.999, (Math.log2(ratio) + 1) / 4)) * (colours.length - 1);
  const [low, high] = [channels(colours[Math.floor(at)]), channels(colours[Math.floor(at) + 1])];
  const part = at - Math.floor(at);
  return `rgb(${low.map((value, k) => Math.round(value + part * (high[k] - value))).join(",")})`;
}

/* A curve of a few values, as wide as its cell. */
export function sparkline(values) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 120 28");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  if (values.length > 1) {
    const high = Math.max(...values, 1);
    const points = values.map((value, k) => [(120 * k) / (values.length - 1), 26 - (24 * value) / high]);
    const line = points.map(([x, y], k) => (k ? `H${x.toFixed(1)}V${y.toFixed(1)}` : `M${x.toFixed(1)} ${y.toFixed(1)}`)).join("");
    for (const [kind, d] of [["area", `${line}V28H0Z`], ["line", line]]) {
      const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
      path.setAttribute("class", kind);
      path.setAttribute("d", d);
      svg.append(path);
    }
  }
  return svg;
}

export const pill = (state, died) =>
  h("span", { class: `pill ${died ? "died" : state}` }, died ? "process died" : state);

/* Turn the heads of a table into buttons that call `sorted(key, down)`. */
export function sortable(table, key, down, sorted) {
  const heads = all("th[data-sort]", table);
  const mark = () => heads.forEach((head) => head.setAttribute("aria-sort", head.dataset.sort !== key ? "none" : down ? "descending" : "ascending"));
  for (const head of heads) {
    const button = h("button", { class: "sort", type: "button", click: () => {
      down = head.dataset.sort === key ? !down : head.classList.contains("number") || head.dataset.sort === "created";
      key = head.dataset.sort;
      mark();
      sorted(key, down);
    } }, head.textContent);
    head.replaceChildren(button);
  }
  mark();
}
export const compare = (a, b, down) => {
  if (a === b) return 0;
  if (a === null || a === undefined) return 1;
  if (b === null || b === undefined) return -1;
  return (a < b ? -1 : 1) * (down ? -1 : 1);
};

// --- changes -----------------------------------------------------------------------------------------------

export const setText = (element, text) => {
  if (element.textContent !== text) element.textContent = text;
};

const shown = new WeakMap();
/* Replace the children of an element if `key` differs from the last call. */
export function replaceIfChanged(element, key, children) {
  if (shown.get(element) === key) return;
  shown.set(element, key);
  element.replaceChildren(...children());
}

/* One tile for each [title, value, text below, share of a bar]. Only tiles that changed are redrawn. */
export function showTiles(element, tiles) {
  while (element.children.length < tiles.length) element.append(h("div", { class: "tile" }));
  tiles.forEach(([title, value, below, bar], k) => replaceIfChanged(element.children[k], JSON.stringify([title, value, below, bar]), () => [
    h("dt", {}, title),
    h("dd", {}, value, below ? h("div", { class: "below" }, below) : null,
      bar === undefined ? null : h("div", { class: `meter${bar >= 1 ? " full" : ""}`, "aria-hidden": "true" }, h("i", { style: { width: `${100 * Math.min(1, bar)}%` } }))),
  ]));
}
