/* The parts of a run's page that are drawn from its status. */
import { clock, count, duration, find, h, money, ms, replaceIfChanged, setText, share, showTiles, steers, times, words } from "./common.js";
import { HOLLOW } from "./tree.js";

// --- state ---------------------------------------------------------------------------------------------------

export function showState(status, process, steer) {
  const shown = process.starting && status.state !== "running" ? "starting" : status.died ? "process died" : status.state;
  const pill = find("#state");
  setText(pill, shown);
  pill.className = `pill ${status.died && shown !== "starting" ? "died" : shown}`;
  const runs = status.state === "running";
  for (const kind of ["stop", "finish"]) find(`[data-do="${kind}"]`).hidden = !runs;
  find('[data-do="resume"]').hidden = status.state !== "finished" || process.starting; // in other states, the banner has this button
  const stopping = status.steering.pending.some((event) => event.event === "stop" && !event.finish);
  find('[data-do="stop"]').disabled = runs && stopping;

  const banner = find("#banner");
  const say = (kind, text, ...more) => replaceIfChanged(banner, `${kind}|${text}|${more.length}`, () => {
    banner.className = `banner ${kind}`;
    return [h("p", {}, text), ...more];
  });
  const resume = () => (steers ? [h("button", { class: "primary", click: () => steer("resume") }, "Resume")] : []);
  banner.hidden = false;
  if (process.error && !(status.state === "failed" && process.error.includes(status.reason))) say("bad", `The run could not be resumed: ${process.error}`, ...resume());
  else if (process.starting && !runs) say("info", "A process is starting …");
  else if (status.died) say("bad", `The process that worked on this run died at ${clock(status.last_event)}: it was killed, or the machine went down. Everything until then is saved. This page continues by itself when the run is resumed.`, ...resume());
  else if (status.state === "waiting") say("info", `The run is waiting: ${status.reason}.`, ...resume());
  else if (status.state === "failed") say("bad", `The run failed: ${status.reason}`, ...resume());
  else if (status.state === "stopped") say("info", `${status.reason ? `The run was stopped: ${status.reason}.` : "No process is working on this run."} It can be resumed.`, ...resume());
  else if (status.state === "finished") say("good", `The run is finished: ${status.reason}.${status.notes.length ? ` ${status.notes.join(". ")}.` : ""}`);
  else if (stopping) say("info", "The run is being stopped …");
  else if (status.steering.finish || status.steering.pending.some((event) => event.finish)) say("info", "The search is ending: open steps are completed, then the finalists are judged.");
  else banner.hidden = true;
}

/* The run was deleted, or its store is damaged. The page keeps what it has read so far. */
export function showGone(reason) {
  const [banner, pill] = [find("#banner"), find("#state")];
  banner.className = "banner bad";
  banner.hidden = false;
  banner.replaceChildren(h("p", {}, `This page is no longer updated: ${reason}.`), h("a", { class: "button", href: "/" }, "All runs"));
  pill.textContent = "gone";
  pill.className = "pill died";
}

// --- tiles ---------------------------------------------------------------------------------------------------

const spent = (title, value, limit, text) => [title, text(value), limit ? `of ${text(limit)}` : "no limit", limit ? value / limit : undefined];

export function showSummary(element, status, steps) {
  const { best, floor_ms: floor, limits, spent: used } = status;
  const all = [...steps.values()];
  const passed = all.filter((step) => step.ms).length;
  const settled = all.filter((step) => !step.ms && !step.open);
  const unjudged = settled.filter((step) => HOLLOW.has(step.s)).length;
  const failed = settled.length - unjudged;
  showTiles(element, [
    ["Best speed-up", best ? times(best.x) : "–", best ? `over ${words(best.base)}, step ${best.n}` : "no kernel passed yet"],
    ["Time of the best", ms(best?.ms), floor ? `floor ${ms(floor)}${best ? ` · ${share(floor / best.ms)}` : ""}` : "no floor", floor && best ? floor / best.ms : undefined],
    spent("Candidates", used.candidates, limits.candidates, count),
    ["Passed", count(passed), `${count(failed)} failed${unjudged ? `, ${count(unjudged)} not judged` : ""}`],
    spent("Time", used.wall_seconds, limits.wall_seconds, duration),
    used.dollars || limits.dollars ? spent("Money", used.dollars, limits.dollars, money) : ["Device", duration(used.device_seconds), "busy with jobs"],
  ]);
}

// --- current activity ----------------------------------------------------------------------------------------

export function showActivity(element, status, offset) {
  const rows = status.activity;
  replaceIfChanged(element, JSON.stringify([rows, status.state]), () =>
    rows.length
      ? rows.map((row) => {
          const number = /^step (\d+)$/.exec(row.job);
          const name = number ? h("a", { href: `#step-${number[1]}` }, row.job) : h("b", {}, row.job);
          return h("li", {}, h("i", { class: "dot" }), name, h("span", { class: "stage" }, row.stage), h("time", { "data-since": row.since }));
        })
      : [h("li", { class: "soft" }, status.state === "running" ? "between two steps" : "no process is working on this run")]);
  setText(find("#now-count"), rows.length ? `${rows.length} job${rows.length > 1 ? "s" : ""}` : "");
  showElapsed(offset);
}

export function showElapsed(offset) {
  const now = Date.now() / 1000 + offset;
  for (const element of document.querySelectorAll("time[data-since]")) setText(element, duration(Math.max(0, now - Number(element.dataset.since))));
}

export function showQuestions(status, answer) {
  find("#questions-card").hidden = !status.questions.length;
  replaceIfChanged(find("#questions"), JSON.stringify(status.questions), () =>
    status.questions.map((question) => h("li", {}, h("span", { class: "grow" }, h("b", {}, question.key), h("span", { class: "soft" }, ` ${question.role}`)),
      steers ? h("button", { class: "primary", click: () => answer(question.key) }, "Answer") : null)));
}

export function showSteering(status, steer) {
  const { pinned, closed, hints, pending } = status.steering;
  find("#steering-card").hidden = !(pinned || closed.length || hints.length || pending.length);
  replaceIfChanged(find("#steering"), JSON.stringify(status.steering), () => {
    const row = (mark, text, undo, act) => h("li", {}, h("span", { class: "mark", "aria-hidden": "true" }, mark), h("span", { class: "grow" }, text), steers && undo ? h("button", { class: "quiet", click: act }, undo) : null);
    return [
      ...(pinned ? [row("◉", `Pinned: step ${pinned}`, "Release", () => steer("pin", { step: 0 }))] : []),
      ...closed.map((step) => row("✕", `Closed: the branch of step ${step}`, "Open", () => steer("open", { step }))),
      ...hints.map((hint) => row("✎", hint.text, "Withdraw", () => steer("withdraw_hint", { hint: hint.id }))),
      ...pending.map((event) => row("…", `Requested: ${words(event.event)}${event.step ? ` step ${event.step}` : ""}${event.text ? ` “${event.text}”` : ""}`)),
    ];
  });
}

// --- the log -------------------------------------------------------------------------------------------------

export function watchLog(element) {
  element.addEventListener("scroll", () => {
    element.dataset.away = element.scrollHeight - element.scrollTop - element.clientHeight < 40 ? "no" : "yes";
  });
}

let scrolling = 0;
export function appendLog(element, lines, most) {
  if (!lines.length) return;
  const atEnd = element.dataset.away !== "yes"; // the user has not scrolled up
  const seen = Number(element.dataset.last || 0);
  for (const line of lines) {
    if (line.id <= seen) continue;
    const text = line.step ? h("a", { href: `#step-${line.step}` }, line.text) : line.text;
    element.append(h("li", { class: line.level }, h("time", {}, clock(line.time)), h("span", {}, text)));
    element.dataset.last = line.id;
  }
  while (element.children.length > most) element.firstElementChild.remove();
  if ((atEnd || !seen) && !scrolling) { // a hidden tab has no frames: request only one
    scrolling = requestAnimationFrame(() => {
      scrolling = 0;
      element.scrollTop = element.scrollHeight;
    });
  }
}

// --- account, costs, legend ----------------------------------------------------------------------------------

export function showAccount(element, status) {
  const { account, best, floor_ms: floor } = status;
  replaceIfChanged(element, JSON.stringify([account, best?.n, best?.ms, floor]), () => {
    if (!account.length) {
      const why = best ? `Step ${best.n} is not profiled yet. Steps are profiled before they are improved; to profile it now, open the step.` : "No kernel has passed yet.";
      const bar = best && floor ? [h("p", { class: "small" }, `Floor ${ms(floor)} of ${ms(best.ms)}`), h("div", { class: "account-bar" }, h("span", { style: { width: `${Math.min(100, (100 * floor) / best.ms)}%`, background: "var(--part-0)" } }))] : [];
      return [...bar, h("p", { class: "soft small" }, why)];
    }
    return [
      h("p", { class: "soft small" }, `Step ${best.n}, ${ms(best.ms)} a call${floor ? `; floor ${ms(floor)}` : ""}`),
      h("div", { class: "account-bar", "aria-hidden": "true" }, account.map((row, k) => h("span", { title: row.title, style: { width: `${(100 * row.share).toFixed(2)}%`, background: `var(--part-${k % 8})` } }))),
      h("ul", { class: "account" }, account.map((row, k) => h("li", {}, h("i", { style: { background: `var(--part-${k % 8})` } }), h("b", {}, share(row.share)), h("span", {}, row.title, row.lines.length ? h("span", { class: "soft small" }, row.lines.join(", ")) : null)))),
    ];
  });
}

export function showCosts(element, status) {
  const roles = Object.entries(status.costs);
  replaceIfChanged(element, JSON.stringify(roles), () => {
    if (!roles.length) return [h("p", { class: "soft small" }, "No model was used: this author costs nothing.")];
    const tokens = (cost) => cost.tokens_in + cost.tokens_out;
    const unit = [(cost) => cost.dollars, tokens, (cost) => cost.calls].find((each) => roles.some(([, cost]) => each(cost)));
    const most = Math.max(...roles.map(([, cost]) => unit(cost)));
    const free = roles.every(([, cost]) => !cost.dollars && !tokens(cost));
    return [h("ul", { class: "bars" }, roles.map(([role, cost]) => h("li", {}, h("b", {}, role), h("span", { class: "meter" }, h("i", { style: { width: `${(100 * unit(cost)) / most}%` } })),
      h("span", { class: "number" }, free ? count(cost.calls) : money(cost.dollars)), free ? null : h("span", { class: "soft small" }, `${count(tokens(cost))} tokens, ${cost.calls} calls`)))),
      free ? h("p", { class: "soft small" }, "Answers by role. They cost nothing: this model reports neither tokens nor dollars.") : null].filter(Boolean);
  });
}

export function showLegend(element, steps, status) {
  const all = [...steps.values()];
  const states = [...new Set(all.filter((step) => !step.ms && !step.open).map((step) => step.s))].sort();
  const marks = { open: status.state === "running", compiler: all.some((step) => step.compiler), pasted: all.some((step) => step.pasted) };
  const colour = (state) => `var(--state-${state.replaceAll("_", "-").replaceAll(" ", "-")}, var(--soft))`;
  const item = (kind, text, style = {}) => h("li", { class: kind, style }, h("i", {}), h("b", {}, text));
  replaceIfChanged(element, JSON.stringify([states, marks, Boolean(status.best)]), () => [
    h("li", { class: "ramp" }, h("b", {}, "speed-up"), h("span", {}, "0.5×"), h("i", { class: "ramp" }), h("span", {}, "8×")),
    status.best ? h("li", {}, h("b", {}, "★ best")) : "",
    marks.open ? item("ring", "open", { color: "var(--accent)" }) : "",
    marks.compiler ? item("diamond", "compiler's own", { color: "var(--speed-2)" }) : "",
    marks.pasted ? h("li", {}, h("b", {}, "✎ pasted by you")) : "",
    ...states.map((state) => item(HOLLOW.has(state) ? "ring" : "square", words(state), { color: colour(state) })),
  ].filter(Boolean));
}

/* A step in the format of the report's charts. */
export function asReportStep(step, status) {
  return {
    number: step.n, parent: step.p || 0, state: step.s, ms: step.ms ? { value: step.ms } : null, hardest_baseline: step.base || null,
    speedup: step.base ? { [step.base]: { value: step.x } } : {}, plan: step.plan || "", note: "", is_compiler: Boolean(step.compiler),
    is_winner: status.best?.n === step.n, on_path: false,
  };
}
