/* The list of benches, with the result of each. */
import { ago, find, h, read, share, times } from "./common.js";

const geomean = (values) => (values.length ? Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length) : 0);

async function show() {
  const { benches } = await read("/api/suites");
  find("#none").hidden = benches.length > 0;
  find("#benches").replaceChildren(...benches.map((bench) => h("a", { class: "card-link", href: `/suites/${encodeURIComponent(bench.name)}` },
    h("h2", {}, bench.name), h("p", { class: "soft small" }, `${bench.evaluated || "in progress"}${bench.target ? ` on ${bench.target}` : ""} · ${ago(Date.now() / 1000 - bench.changed)}`),
    h("dl", { class: "figures" }, [["geomean", times(geomean(bench.speedups))], ["fast₁", share(bench.fast_1)], ["correct", bench.scored ? share(bench.passed / bench.scored) : "–"], ["problems", String(bench.problems)]]
      .map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value)))))));
  document.body.dataset.ready = "yes";
}
show();
