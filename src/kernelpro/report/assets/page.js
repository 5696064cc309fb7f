/* Draws the charts in the colours of the page, shows the step that is clicked, copies and saves. */
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (selector) => document.querySelector(selector);
  const all = (selector) => [...document.querySelectorAll(selector)];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const LARGE = 60; // with more steps, the tree opens on the path to the winner only
  const view = {
    by: "step",
    onlyPassed: false,
    folded: new Set(data.steps.length > LARGE ? KernelProCharts.offPath(data) : []),
  };

  // --- charts --------------------------------------------------------------------------------------------

  const charts = new Map();

  function draw(name, build) {
    const place = document.getElementById(`chart-${name}`);
    let chart = charts.get(name);
    if (!chart) {
      chart = echarts.init(place, null, { renderer: "svg" });
      charts.set(name, chart);
      chart.on("click", (event) => {
        const number = event.data && (event.data.number || (event.data.stop && event.data.stop.step));
        if (number) show(number, name !== "tree");
      });
      if (name === "tree") chart.on("dblclick", (event) => event.data && fold(event.data.number));
    }
    chart.resize();
    chart.setOption(build({ ...KernelProCharts.look(), height: place.clientHeight, width: place.clientWidth }), true);
  }

  function drawAll() {
    if (data.progress.length) draw("progress", (colours) => KernelProCharts.progress(data, colours, view.by));
    if (data.roofline) draw("roofline", (colours) => KernelProCharts.roofline(data, colours));
    if (data.steps.length) drawTree();
  }

  function drawTree() {
    const place = document.getElementById("chart-tree");
    const room = KernelProCharts.size(data, view);
    place.style.height = `${room.height}px`;
    place.style.minWidth = `${room.width}px`;
    draw("tree", (colours) => KernelProCharts.tree(data, colours, view));
  }

  function fold(number) {
    if (!data.steps.some((step) => step.parent === number) || !number) return;
    if (!view.folded.delete(number)) view.folded.add(number);
    drawTree();
  }

  // --- steps ---------------------------------------------------------------------------------------------

  function show(number, scroll) {
    const body = find(`#step-${number} > .step-body`);
    const panel = find("#panel");
    if (!body || !panel) return;
    const title = document.createElement("h3");
    title.textContent = `Step ${number}`;
    const facts = find(`#step-${number} > summary .badges`).cloneNode(true);
    panel.replaceChildren(title, facts, body.cloneNode(true));
    panel.dataset.step = number;
    panel.scrollTop = 0;
    if (scroll) panel.scrollIntoView({ block: "nearest" });
  }

  function openTarget() {
    const target = location.hash.startsWith("#step-") && document.getElementById(location.hash.slice(1));
    if (target) target.open = true;
  }

  // --- buttons -------------------------------------------------------------------------------------------

  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea"); // a page opened from a file may have no clipboard access
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  function save(name, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/x-python" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  function wire() {
    for (const button of all("[data-copy]")) {
      button.addEventListener("click", async () => {
        await copy(document.getElementById(button.dataset.copy).textContent);
        const before = button.textContent;
        button.textContent = "Copied";
        setTimeout(() => (button.textContent = before), 1200);
      });
    }
    for (const button of all("[data-save]")) {
      button.addEventListener("click", () => save(button.dataset.name, document.getElementById(button.dataset.save).textContent));
    }
    for (const button of all("[data-by]")) {
      button.addEventListener("click", () => {
        view.by = button.dataset.by;
        for (const other of all("[data-by]")) other.setAttribute("aria-pressed", String(other === button));
        drawAll();
      });
    }
    const only = find("#only-passed");
    if (only) {
      only.addEventListener("change", () => {
        view.onlyPassed = only.checked;
        drawTree();
      });
    }
    for (const button of all(".needs-script")) button.hidden = false;
  }

  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });
  addEventListener("hashchange", openTarget);
  dark.addEventListener("change", drawAll);
  // Print is always light and has the width of the paper: draw the charts again before and after it.
  matchMedia("print").addEventListener("change", drawAll);

  wire();
  drawAll();
  openTarget();
  if (data.shown) show(data.shown, false);
})();
