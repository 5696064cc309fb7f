/* The list of steps: only the rows in view exist. */
import { h, ms, times, words } from "./common.js";

const ROW = 34;

export class StepList {
  constructor(element, filter, { state, onOpen }) {
    Object.assign(this, { element, filter, state, onOpen });
    this.space = element.firstElementChild;
    this.rows = [];
    this.active = -1;
    this.box = { top: 0, height: element.clientHeight }; // reading them while painting would lay out the page
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
      if (move) this.move(this.active + move);
      else if (event.key === "Home") this.move(0);
      else if (event.key === "End") this.move(this.rows.length - 1);
      else if (event.key === "Enter" && this.rows[this.active]) this.onOpen(this.rows[this.active].n);
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

  move(to) {
    this.active = Math.max(0, Math.min(this.rows.length - 1, to));
    const top = this.active * ROW;
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    if (top + ROW > this.element.scrollTop + this.element.clientHeight) this.element.scrollTop = top + ROW - this.element.clientHeight;
    this.paint();
  }

  paint() {
    const first = Math.max(0, Math.floor(this.box.top / ROW) - 4);
    const last = Math.min(this.rows.length, first + Math.ceil(this.box.height / ROW) + 8);
    const shown = this.rows.slice(first, last);
    const key = JSON.stringify([first, this.active, this.best, shown]);
    if (key === this.key) return;
    this.key = key;
    this.space.replaceChildren(...shown.map((step, k) => this.row(step, first + k)));
    const current = this.rows[this.active];
    if (current) this.element.setAttribute("aria-activedescendant", `row-${current.n}`);
  }

  row(step, index) {
    const from = step.a === "seed" ? "new design" : `${step.a} ${step.p}${step.donor ? ` + ${step.donor}` : ""}`;
    return h("div", { class: `step-row${index === this.active ? " active" : ""}${step.n === this.best ? " best" : ""}`, id: `row-${step.n}`, role: "option", "aria-selected": String(index === this.active), style: { top: `${index * ROW}px` }, click: () => { this.active = index; this.onOpen(step.n); } },
      h("b", {}, `${step.n === this.best ? "★ " : ""}${step.n}`), h("span", { class: "soft" }, from),
      h("span", {}, h("span", { class: `badge ${step.open ? "open" : step.s}` }, step.open && step.s !== "passed" ? `${words(step.s)} …` : words(step.s))),
      h("span", { class: "number" }, step.ms ? ms(step.ms).replace(" ms", "") : ""), h("span", { class: "number" }, step.x ? times(step.x) : ""),
      h("span", { class: "soft cut" }, step.by || ""), h("span", { class: "cut" }, step.plan || ""));
  }
}
