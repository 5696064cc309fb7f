/* One step, beside the tree: its overview, findings, source, diff to its parent, and the conversation. */
import { all, find, h, steers, toast } from "./common.js";

export class StepDrawer {
  constructor({ api, state, act, onClose }) {
    Object.assign(this, { api, state, act, onClose });
    this.element = find("#drawer");
    this.body = find("#drawer-body");
    this.tabs = find("#tabs");
    this.number = null;
    this.tab = "Overview";
    this.asked = 0; // number of requests so far: only the answer to the last one is shown
    this.markup = "";
    find("#drawer-close").addEventListener("click", () => this.close(true));
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.number && !find("dialog[open]")) this.close(true);
    });
    this.tabs.addEventListener("keydown", (event) => {
      const buttons = all("button", this.tabs);
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      const next = buttons[(buttons.indexOf(document.activeElement) + move + buttons.length) % buttons.length];
      next.click();
      next.focus();
    });
  }

  open(number) {
    if (this.number === number) return;
    this.before = this.number === null ? document.activeElement : this.before;
    this.number = number;
    this.actionsKey = "";
    find("#drawer-title").textContent = `Step ${number}`;
    this.say("loading …");
    this.tabs.replaceChildren();
    this.element.hidden = false;
    find("#drawer-title").focus({ preventScroll: true });
    if (this.state.status) this.showActions(this.state.status);
    this.refresh();
  }

  close(byUser) {
    if (this.number === null) return;
    this.number = null;
    this.asked++;
    this.markup = "";
    this.element.hidden = true;
    this.body.replaceChildren();
    if (byUser) {
      this.onClose();
      this.before?.focus?.({ preventScroll: true });
    }
  }

  say(text) {
    this.markup = "";
    this.body.replaceChildren(h("p", { class: "soft" }, text));
  }

  async refresh() {
    const number = this.number;
    const asked = ++this.asked;
    let text;
    try {
      const response = await fetch(`${this.api}/steps/${number}`);
      text = await response.text();
      if (!response.ok) throw new Error(response.status === 400 ? JSON.parse(text).error : response.statusText);
    } catch (error) {
      if (asked === this.asked && !this.markup) this.say(error.message); // keep what is shown if the server is down
      return;
    }
    if (asked !== this.asked || text === this.markup) return; // another step was opened, or nothing changed
    this.markup = text;
    const scroll = this.body.scrollTop;
    // The server's templates escape all untrusted texts; the content security policy forbids inline scripts.
    this.body.innerHTML = text;
    const parts = all("[data-tab]", this.body);
    const names = parts.map((part) => part.dataset.tab);
    if (!names.includes(this.tab)) this.tab = "Overview";
    if (names.join() !== all("button", this.tabs).map((button) => button.textContent).join()) {
      this.tabs.replaceChildren(...names.map((name) => h("button", { role: "tab", type: "button", id: `tab-${name}`, "aria-controls": `part-${name}`, click: () => this.show(name) }, name)));
    }
    for (const part of parts) {
      part.id = `part-${part.dataset.tab}`;
      part.setAttribute("role", "tabpanel");
      part.setAttribute("aria-labelledby", `tab-${part.dataset.tab}`);
    }
    const copy = find("[data-copy-source]", this.body);
    copy?.addEventListener("click", async () => {
      await navigator.clipboard.writeText(find(".source", this.body).textContent);
      toast("The source is copied");
    });
    this.show(this.tab);
    this.body.scrollTop = scroll;
  }

  show(name) {
    this.tab = name;
    for (const part of all("[data-tab]", this.body)) part.hidden = part.dataset.tab !== name;
    for (const button of all("button", this.tabs)) {
      const on = button.textContent === name;
      button.setAttribute("aria-selected", String(on));
      button.tabIndex = on ? 0 : -1;
    }
  }

  showActions(status) {
    const step = this.state.steps.get(this.number);
    if (!steers || !step) return;
    const { pinned, closed } = status.steering;
    const key = JSON.stringify([this.number, step.open, step.ms, step.profiled, pinned, closed]);
    if (key === this.actionsKey) return;
    this.actionsKey = key;
    const button = (text, kind, data, title) => h("button", { title, "data-act": kind, click: () => this.act(kind, data) }, text);
    const number = this.number;
    const buttons = [];
    if (!step.open) {
      buttons.push(pinned === number ? button("Release the pin", "pin", { step: 0 }) : button("Go on here", "pin", { step: number }, "Pin: search only below this step"));
      buttons.push(closed.includes(number) ? button("Open the branch", "open", { step: number }) : button("Close the branch", "close", { step: number }, "Choose no further step below this one"));
      if (step.ms && !step.profiled) buttons.push(button("Profile", "profile", { step: number }, "Find out where its time goes"));
    }
    find("#step-actions").replaceChildren(...buttons);
  }
}
