/* The list of steps: only the rows in view exist. */
import { h, ms, times, words } from "./common.js";

const ROW = 34;

export class StepList {
  constructor(element, filter, { state, onOpen }) {
    Object.assign(this, { element, filter, state, onOpen });
    this.space = element.firstElementChild;
    this.rows = [];
    this.active = 0; // the number of a step
    this.box = { top: 0, height: element.clientHeight }; // cached: reading them in `paint` forces a layout
    element.addEventListener("scroll", () => {
      this.box.top = element.scrollTop;
      this.paint();
    });
    new ResizeObserver(() => {
      this.box.height = element.clientHeight;
      this.paint();
    }).observe(element);
    filter.addEventListener("input", () => this.update());
    element.addEventListener("keydown", (event) => {
      const move = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
      if (move) this.move(this.place() + move);
      else if (event.key === "Home") this.move(0);
      else if (event.key === "End") this.move(this.rows.length - 1);
      else if (event.key === "Enter" && this.place() >= 0) this.onOpen(this.active);
      else return;
      event.preventDefault();
    });
  }

  update(status) {
    if (status) this.best = status.best?.n;
    const wanted = this.filter.value.trim().toLowerCase();
    const matches = (step) => !wanted || `${step.n} ${step.s} ${step.by || ""} ${step.plan || ""} ${step.a}`.toLowerCase().includes(wanted);
    this.rows = [...this.state.steps.values()].filter(matches).sort((a, b) => b.n - a.n);
    this.element.setAttribute("aria-label", `${this.rows.length} steps`);
    this.space.style.height = `${Math.max(3, this.rows.length) * ROW}px`;
    this.paint();
  }

  /* The index of the active row; -1 if there is none. */
  place() {
    return this.rows.findIndex((step) => step.n === this.active);
  }

  move(to) {
    if (!this.rows.length) return;
    const index = Math.max(0, Math.min(this.rows.length - 1, to));
    this.active = this.rows[index].n;
    const top = index * ROW;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    if (top + ROW > this.element.scrollTop + this.element.clientHeight) this.element.scrollTop = top + ROW - this.element.clientHeight;
    this.paint();
  }

  paint() {
    const first = Math.max(0, Math.floor(this.box.top / ROW) - 4);
    const last = Math.min(this.rows.length, first + Math.ceil(this.box.height / ROW) + 8);
    const shown = this.rows.slice(first, last);
    const key = JSON.stringify([first, this.active, this.best, this.rows.length, shown]);
    if (key === this.key) return;
    this.key = key;
    this.space.replaceChildren(...shown.map((step, k) => this.row(step, first + k)));
    if (shown.some((step) => step.n === this.active)) this.element.setAttribute("aria-activedescendant", `row-${this.active}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  row(step, index) {
    const from = step.a === "seed" ? "new design" : `${step.a} ${step.p}${step.donor ? ` + ${step.donor}` : ""}`;
    const active = step.n === this.active;
    const attributes = {
      class: `step-row${active ? " active" : ""}${step.n === this.best ? " best" : ""}`, style: { top: `${index * ROW}px` },
      id: `row-${step.n}`, role: "option", "aria-selected": String(active), "aria-posinset": index + 1, "aria-setsize": this.rows.length,
      click: () => { this.move(index); this.onOpen(step.n); },
    };
    return h("div", attributes,
      h("b", {}, `${step.n === this.best ? "★ " : ""}${step.n}`), h("span", { class: "soft" }, from),
      h("span", {}, h("span", { class: `badge ${step.open ? "open" : step.s}` }, step.open && step.s !== "passed" ? `${words(step.s)} …` : words(step.s))),
      h("span", { class: "number" }, step.ms ? ms(step.ms).replace(" ms", "") : ""), h("span", { class: "number" }, step.x ? times(step.x) : ""),
      h("span", { class: "soft cut" }, step.by || ""), h("span", { class: "cut" }, step.plan || ""));
  }
}
