/* Dialogs that collect a request, send it, and show the reason if it is refused. */
import { all, find, read, send, toast } from "./common.js";

export class Dialogs {
  constructor({ api, request, state }) {
    Object.assign(this, { api, request, state });
    for (const dialog of all("dialog")) {
      const form = find("form", dialog);
      form.addEventListener("submit", (event) => {
        if (event.submitter?.value === "cancel") return;
        event.preventDefault();
        this.submit(dialog, form);
      });
    }
    find("#answer-check").addEventListener("click", () => this.check());
    find('#dialog-answer [name="text"]').addEventListener("input", () => this.say(find("#dialog-answer"), ""));
  }

  say(dialog, text, good = false) {
    const fault = find(".fault", dialog);
    fault.textContent = text;
    fault.classList.toggle("good", good);
  }

  show(dialog) {
    this.say(dialog, "");
    dialog.showModal();
  }

  open(kind, step) {
    const dialog = find(`#dialog-${kind}`);
    find("form", dialog).reset();
    if (kind === "paste") find('[name="parent"]', dialog).value = step;
    if (kind === "budget") {
      for (const input of all("input", dialog)) input.disabled = !this.state.status?.limits[input.name];
    }
    this.show(dialog);
  }

  confirm(title, text, action, act) {
    const dialog = find("#dialog-confirm");
    find("#dialog-confirm-title").textContent = title;
    find("#dialog-confirm-text").textContent = text;
    find("[data-send]", dialog).textContent = action;
    this.act = act;
    this.show(dialog);
  }

  async answer(key) {
    const dialog = find("#dialog-answer");
    try {
      const question = await read(`${this.api}/question?key=${encodeURIComponent(key)}`);
      this.key = key;
      find("#dialog-answer-title").textContent = key;
      find("#answer-question").textContent = question.text;
      find("#answer-question").scrollTop = 0;
      find("#answer-checked").textContent = question.checked ? "the format is checked before the answer is accepted" : "the run checks the format";
      find("form", dialog).reset();
      this.show(dialog);
      find('[name="text"]', dialog).focus();
    } catch (error) {
      toast(error.message, true);
    }
  }

  async check() {
    const dialog = find("#dialog-answer");
    try {
      await send(`${this.api}/question`, { key: this.key, text: find('[name="text"]', dialog).value, check: true });
      this.say(dialog, "The format is valid.", true);
    } catch (error) {
      this.say(dialog, error.message);
    }
  }

  async submit(dialog, form) {
    const fields = Object.fromEntries(new FormData(form));
    const number = (name, scale = 1) => scale * (Number(fields[name]) || 0);
    const acts = {
      "dialog-hint": () => this.request({ kind: "hint", text: fields.text }),
      "dialog-budget": () => this.request({ kind: "add_budget", candidates: number("candidates"), dollars: number("dollars"), tokens: number("tokens"), wall_seconds: number("wall_seconds", 60), device_seconds: number("device_seconds", 60) }),
      "dialog-paste": () => this.request({ kind: "paste", source: fields.source, parent: number("parent"), note: fields.note }),
      "dialog-confirm": () => this.act(),
      "dialog-answer": () => send(`${this.api}/question`, { key: this.key, text: fields.text }),
    };
    const done = { "dialog-hint": "Authors of later steps will read the hint", "dialog-budget": "The budget is raised before the next step", "dialog-paste": "Your kernel is the next step", "dialog-answer": "The answer was sent to the run", "dialog-confirm": "Requested" };
    const button = find("[data-send]", dialog);
    button.disabled = true;
    try {
      await acts[dialog.id]();
      dialog.close();
      toast(done[dialog.id]);
    } catch (error) {
      this.say(dialog, error.message);
    } finally {
      button.disabled = false;
    }
  }
}
