/* The charts of a run: plain data in, ECharts options out; no state.
 *
 *   KernelProCharts.progress(data, look, "step" | "time" | "money")   every candidate's time, the best so far, baselines and floor
 *   KernelProCharts.tree(data, look, view)                  the search tree; size(data, view) returns its size in pixels
 *   KernelProCharts.offPath(data)                           steps to fold so that a large tree first shows the path to the winner
 *   KernelProCharts.roofline(data, look)                    the path from the reference to the winner, under measured roofs
 *   KernelProCharts.look()                                  the colours of the page, for the charts
 *
 * data: { progress, steps, baselines, floor_ms, roofline } as the JSON report has them.
 * view: { onlyPassed: steps that passed and what led to them, folded: a set of steps whose descendants are hidden }.
 * look: { ink, soft, grid, card, accent, states: {passed, wrong, ...}, narrow, height and width: pixels of a chart,
 *         speed: the colour of a speed-up; without it, steps that passed have the colour of their state }.
 * Texts of candidates are untrusted: whatever reaches a tooltip goes through `text`.
 */
const KernelProCharts = (() => {
  "use strict";

  const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
  const text = (value) => String(value).replace(/[&<>"']/g, (c) => ENTITIES[c]);
  const short = (value, length) => (value.length > length ? value.slice(0, length - 1) + "…" : value);
  const ms = (value) => `${Number(value.toPrecision(4))} ms`;
  const scaled = (value) => {
    const units = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
    const found = units.find(([size]) => value >= size) || [1, ""];
    return `${Number((value / found[0]).toPrecision(3))} ${found[1]}`;
  };
  const rate = (value) => `${scaled(value)}FLOP/s`;
  const words = (state) => state.replace(/_/g, " ");
  const ratio = (step) => (step.hardest_baseline ? step.speedup[step.hardest_baseline].value : null);
  const faded = ["duplicate", "lost race", "no idea", "out of ideas", "no answer", "unreachable", "internal error", "chosen", "drafted", "judged"];

  const STATES = ["passed", "wrong", "cheating", "build_failed", "crashed", "timed_out", "refused", "not_scorable"];
  const colour = (style, name) => style.getPropertyValue(`--${name}`).trim();
  function look() {
    const style = getComputedStyle(document.documentElement);
    return {
      ink: colour(style, "ink"), soft: colour(style, "soft"), grid: colour(style, "line"), card: colour(style, "card"),
      accent: colour(style, "accent"), narrow: innerWidth < 640,
      states: Object.fromEntries(STATES.map((name) => [name, colour(style, `state-${name.replaceAll("_", "-")}`)])),
    };
  }


  const base = (look) => ({
    animation: false,
    textStyle: { color: look.ink, fontFamily: "system-ui, sans-serif" },
    aria: { enabled: true },
  });
  const hint = (look) => ({
    confine: true,
    backgroundColor: look.card,
    borderColor: look.grid,
    textStyle: { color: look.ink, fontSize: 12 },
    extraCssText: "max-width: 320px; white-space: normal;",
  });
  const axis = (look, name, gap) => ({
    name,
    nameLocation: "middle",
    nameGap: gap,
    nameTextStyle: { color: look.soft },
    axisLabel: { color: look.soft, hideOverlap: true },
    axisLine: { show: true, lineStyle: { color: look.grid } },
    splitLine: { lineStyle: { color: look.grid, opacity: 0.6 } },
    minorSplitLine: { show: false },
  });

  const MARGIN = { top: 18, bottom: 46 };
  const LEFT = 62;
  const RIGHT = 18;
  const LINE = 14;
  const LETTER = 6.6; // pixels of one in a label, on the average

  /* Values worth a line on a log axis: 1, 2 and 5 of each decade where they have room, else decades, else its ends. */
  function ticks(low, high) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const digit of [1, 2, 5]) found.push(Number((digit * 10 ** power).toPrecision(1)));
    }
    const inside = found.filter((value) => value >= low && value <= high);
    const decades = inside.filter((value) => Math.abs(Math.log10(value) - Math.round(Math.log10(value))) < 1e-9);
    const chosen = inside.length <= 7 ? inside : decades;
    return chosen.length > 1 ? chosen : [low, high];
  }

  /* Pixels by which each label moves so that none covers another: highest first, each at least a line below the one above. */
  function apart(values, low, high, look) {
    const pixels = (look.height - MARGIN.top - MARGIN.bottom) / Math.log(high / low);
    const places = values.map((value, index) => ({ index, at: pixels * Math.log(high / value) })).sort((a, b) => a.at - b.at);
    const shifts = new Array(values.length).fill(0);
    let cluster = [];
    const settle = () => {
      const middle = cluster.reduce((sum, place) => sum + place.at, 0) / cluster.length;
      cluster.forEach((place, k) => (shifts[place.index] = middle + (k - (cluster.length - 1) / 2) * LINE - place.at));
      cluster = [];
    };
    for (const place of places) {
      const middle = cluster.reduce((sum, each) => sum + each.at, 0) / (cluster.length || 1);
      if (cluster.length && place.at > middle + ((cluster.length + 1) / 2) * LINE) settle();
      cluster.push(place);
    }
    if (cluster.length) settle();
    return shifts;
  }

  /* A series of nothing but labels: [x, y, text, shift, style] each. */
  const labels = (items) => ({
    name: "labels",
    type: "scatter",
    silent: true,
    symbolSize: 0.1,
    clip: false,
    z: 6,
    itemStyle: { opacity: 1 },
    tooltip: { show: false },
    data: items.map(([x, y, said, shift, style]) => ({
      value: [x, y],
      label: { show: true, formatter: () => said, fontSize: 11, position: "right", offset: [0, shift], ...style },
    })),
  });

  function about(step) {
    const lines = [`<b>step ${step.number}</b>: ${text(words(step.state))}${step.is_compiler ? ", the compiler's own work" : ""}`];
    if (step.ms) lines.push(`${ms(step.ms.value)}, ${ratio(step).toFixed(2)}x over the hardest baseline`);
    if (step.plan) lines.push(text(short(step.plan, 160)));
    else if (step.note) lines.push(text(short(step.note, 160)));
    return lines.join("<br>");
  }

  // --- best so far ---------------------------------------------------------------------------------------

  function progress(data, look, by) {
    const steps = new Map(data.steps.map((step) => [step.number, step]));
    const points = data.progress.filter((p) => by !== "time" || p.seconds !== null);
    const longest = Math.max(...points.map((p) => p.seconds || 0), 0);
    const [unit, size] = longest > 7200 ? ["h", 3600] : longest > 180 ? ["min", 60] : ["s", 1];
    const x = (p) => (by === "step" ? p.step : by === "money" ? p.dollars : p.seconds / size);
    const across = { step: "step", time: `working time, ${unit}`, money: "cost of models, dollars" }[by];
    const lines = data.baselines.map((b) => ({ name: b.label, value: b.comparable_ms, colour: look.soft }));
    if (data.floor_ms) lines.push({ name: "floor", value: data.floor_ms, colour: look.accent });
    const values = points.filter((p) => p.ms).map((p) => p.ms).concat(lines.map((line) => line.value));
    const low = Math.min(...values) / 1.25;
    const high = Math.max(...values) * 1.6;
    const end = points.length ? Math.max(...points.map(x)) : 1;
    const start = by === "step" ? 1 : 0;
    const finish = end > start ? end : start + (by === "money" ? 0.01 : 1);
    const shifts = apart(lines.map((line) => line.value), low, high, look);
    const side = Math.min(160, 20 + LETTER * Math.max(0, ...lines.map((line) => line.name.length)));
    const best = points.filter((p) => p.best_ms).map((p) => [x(p), p.best_ms]);
    if (best.length) best.push([end, best[best.length - 1][1]]);
    const many = points.length > 100;
    const dots = points.map((p) => {
      const step = steps.get(p.step);
      return {
        value: [x(p), p.ms || high / 1.12],
        number: p.step,
        symbol: step.is_compiler ? "diamond" : p.ms ? "circle" : "triangle",
        symbolSize: step.is_winner ? 16 : many ? 6 : p.ms ? 10 : 9,
        itemStyle: {
          color: step.is_winner ? look.accent : (p.ms && look.speed?.(ratio(step))) || look.states[p.state] || look.soft,
          opacity: faded.includes(p.state) ? 0.5 : 1,
          borderColor: look.card,
          borderWidth: 1,
        },
      };
    });
    return {
      ...base(look),
      grid: { left: LEFT, right: look.narrow ? 14 : side, ...MARGIN },
      tooltip: { ...hint(look), trigger: "item", formatter: (item) => about(steps.get(item.data.number)) },
      xAxis: {
        ...axis(look, across, 28),
        type: "value",
        min: start,
        max: finish,
        minInterval: by === "step" ? 1 : 0,
        axisLabel: { color: look.soft, hideOverlap: true, showMaxLabel: by === "step", formatter: (value) => String(Number(value.toPrecision(4))) },
        splitLine: { show: false },
      },
      yAxis: {
        ...axis(look, "ms per call (log scale)", 46),
        type: "log",
        min: low,
        max: high,
        axisTick: { customValues: ticks(low, high) },
        axisLabel: { color: look.soft, customValues: ticks(low, high), formatter: (value) => String(Number(value.toPrecision(2))) },
      },
      series: [
        {
          name: "best so far",
          type: "line",
          step: "end",
          data: best,
          showSymbol: false,
          silent: true,
          lineStyle: { color: look.accent, width: 2.5 },
          markLine: {
            silent: true,
            symbol: "none",
            data: lines.map((line) => ({
              yAxis: line.value,
              lineStyle: { color: line.colour, type: "dashed", width: 1.2 },
              label: { show: false },
            })),
          },
        },
        labels(
          lines.map((line, k) => [
            finish,
            line.value,
            line.name,
            look.narrow ? shifts[k] - 8 : shifts[k],
            { color: line.colour, ...(look.narrow ? { position: "left", backgroundColor: look.card } : { width: side - 10, overflow: "truncate" }) },
          ]),
        ),
        { name: "candidates", type: "scatter", data: dots, clip: false, z: 5 },
      ],
    };
  }

  // --- the tree ------------------------------------------------------------------------------------------

  const ROW = 42; // between two children of one node; the layout puts twice as much between cousins
  const DENSE = 26;
  const LEVEL = 104;

  function kept(data, view) {
    const steps = new Map(data.steps.map((step) => [step.number, step]));
    const above = (step) => {
      const line = [];
      for (let at = steps.get(step.parent); at && line.length <= steps.size; at = steps.get(at.parent)) line.push(at.number);
      return line;
    };
    const wanted = new Set();
    for (const step of data.steps) {
      if (view.onlyPassed && !step.ms) continue;
      for (const number of [step.number, ...above(step)]) wanted.add(number);
    }
    return data.steps.filter((step) => wanted.has(step.number) && !above(step).some((number) => view.folded.has(number)));
  }

  function size(data, view) {
    const steps = kept(data, view);
    const parents = new Set(steps.map((step) => step.parent));
    const depth = new Map([[0, 0]]);
    for (const step of steps) depth.set(step.number, (depth.get(step.parent) || 0) + 1);
    const leaves = steps.filter((step) => !parents.has(step.number));
    const families = new Set(leaves.map((step) => step.parent)).size;
    const rows = leaves.length + families;
    return { height: Math.max(150, (leaves.length > 20 ? DENSE : ROW) * rows + 46), width: LEVEL * Math.max(...depth.values()) + 172 };
  }

  const offPath = (data) => data.steps.filter((step) => !step.on_path).map((step) => step.number);

  function label(step, folded) {
    const maker = step.is_compiler ? " compiler" : "";
    const said = step.ms ? `${ratio(step).toFixed(2)}x` : words(step.state);
    return `${step.is_winner ? "★ " : ""}${step.number}${maker}: ${said}${folded ? " ▸" : ""}`;
  }

  function node(step, look, leaf, folded) {
    const speed = step.ms ? Math.max(0.25, Math.min(16, ratio(step))) : 0;
    const hollow = faded.includes(step.state);
    const colour = step.is_winner ? look.accent : look.states[step.state] || look.soft;
    return {
      name: label(step, folded),
      number: step.number,
      symbol: step.is_compiler ? "diamond" : step.ms || hollow ? "circle" : "rect",
      symbolSize: step.ms ? 12 + 3.5 * Math.log2(speed * 4) / 1.5 : 9,
      itemStyle: { color: hollow ? look.card : colour, borderColor: colour, borderWidth: 1.5 },
      lineStyle: step.on_path ? { color: look.accent, width: 2.5 } : { color: look.soft, width: 1.2, opacity: 0.55 },
      label: { position: leaf ? "right" : "top", fontWeight: step.on_path ? "bold" : "normal", color: step.on_path ? look.ink : look.soft },
      children: [],
    };
  }

  function tree(data, look, view) {
    const steps = new Map(data.steps.map((step) => [step.number, step]));
    const nodes = new Map();
    const root = {
      name: "reference",
      number: 0,
      symbol: "roundRect",
      symbolSize: 13,
      itemStyle: { color: look.ink, borderColor: look.ink },
      label: { position: "top" },
      children: [],
    };
    nodes.set(0, root);
    const shown = kept(data, view);
    const parents = new Set(shown.map((step) => step.parent));
    for (const step of shown) {
      const folded = view.folded.has(step.number) && data.steps.some((other) => other.parent === step.number);
      nodes.set(step.number, node(step, look, !parents.has(step.number), folded));
    }
    for (const [number, made] of nodes) if (number) (nodes.get(steps.get(number).parent) || root).children.push(made);
    return {
      ...base(look),
      tooltip: {
        ...hint(look),
        trigger: "item",
        triggerOn: "mousemove",
        formatter: (item) => (item.data.number ? about(steps.get(item.data.number)) : "the reference"),
      },
      series: [
        {
          type: "tree",
          data: [root],
          left: 36,
          right: 136,
          top: 30,
          bottom: 16,
          orient: "LR",
          roam: false,
          expandAndCollapse: false,
          initialTreeDepth: -1,
          edgeShape: "curve",
          lineStyle: { curveness: 0.5 },
          label: { position: "right", distance: 6, color: look.ink, fontSize: 12 },
          emphasis: { focus: "ancestor" },
        },
      ],
    };
  }

  // --- the roofline --------------------------------------------------------------------------------------

  const decade = (value, round) => 10 ** round(Math.log10(value));

  /* On a long way: baselines, the first kernel, the three largest steps up, and the winner. */
  function worthNaming(stops) {
    const steps = stops.filter((stop) => stop.kind === "step");
    if (steps.length <= 5) return stops;
    const gains = steps.slice(1).map((stop, k) => [steps[k].ms / stop.ms, stop]).sort((a, b) => b[0] - a[0]);
    const kept = new Set([steps[0], ...gains.slice(0, 3).map(([, stop]) => stop)]);
    return stops.filter((stop) => stop.kind !== "step" || kept.has(stop));
  }

  function roofline(data, look) {
    const roof = data.roofline;
    const top = roof.rates[roof.unit];
    const rates = roof.stops.map((stop) => stop.flops_per_second);
    const left = decade(Math.min(roof.intensity, roof.ridge) / 3, Math.floor);
    const right = decade(Math.max(roof.intensity, roof.ridge) * 3, Math.ceil);
    const low = decade(Math.min(...rates, roof.attainable) / 1.5, Math.floor);
    const high = decade(Math.max(...Object.values(roof.rates)) * 1.05, Math.ceil);
    const slope = (x) => x * roof.bandwidth;
    const begin = Math.max(left, low / roof.bandwidth);
    const along = (share) => begin * (roof.ridge / begin) ** share;
    const clear = (x) => Math.abs(Math.log(x / roof.intensity));
    const middle = clear(along(0.3)) > clear(along(0.75)) ? along(0.3) : along(0.75); // away from the stops' labels
    const colour = { baseline: look.soft, step: look.states.passed, winner: look.accent };
    const named = worthNaming(roof.stops);
    const shifts = apart(named.map((stop) => stop.flops_per_second), low, high, look);
    const spot = (stop) => ({
      value: [roof.intensity, stop.flops_per_second],
      stop,
      symbol: stop.kind === "baseline" ? "rect" : "circle",
      symbolSize: stop.kind === "winner" ? 15 : 9,
      itemStyle: { color: colour[stop.kind], borderColor: look.card, borderWidth: 1 },
    });
    const wide = look.width - LEFT - RIGHT;
    const pixel = (x) => (wide * Math.log(x / left)) / Math.log(right / left);
    const beside = pixel(middle) < 12 * LETTER; // no room before the roof: below it
    const after = wide - pixel(roof.intensity);
    const side = after > wide / 3 ? "right" : "left";
    const room = (side === "right" ? after : wide - after) - 12;
    const said = (stop, k) => {
      const winner = stop.kind === "winner";
      const label = `${winner ? "★ " : ""}${stop.label}: ${ms(stop.ms)}`;
      const fits = label.length * LETTER < room;
      const style = { color: winner ? look.accent : look.ink, fontWeight: winner ? "bold" : "normal", distance: 12, position: side };
      if (!fits) Object.assign(style, { width: room, overflow: "truncate" });
      return [roof.intensity, stop.flops_per_second, fits ? label : label.replace(/PyTorch | \(compiler\)/, ""), shifts[k], style];
    };
    const plain = (name, points, style) => ({ name, type: "line", data: points, showSymbol: false, silent: true, lineStyle: style });
    const others = Object.entries(roof.rates).filter(([unit]) => unit !== roof.unit);
    return {
      ...base(look),
      grid: { left: LEFT, right: RIGHT, ...MARGIN },
      tooltip: {
        ...hint(look),
        trigger: "item",
        formatter: (item) =>
          item.data.stop
            ? `<b>${text(item.data.stop.label)}</b><br>${ms(item.data.stop.ms)}<br>${rate(item.data.stop.flops_per_second)}, ` +
              `${scaled(item.data.stop.bytes_per_second)}B/s of bytes that must move`
            : "",
      },
      xAxis: {
        ...axis(look, "operations per byte (log scale)", 28),
        type: "log",
        min: left,
        max: right,
        axisLabel: { color: look.soft, hideOverlap: true, alignMinLabel: "left", alignMaxLabel: "right" },  // clear of the other axis's
      },
      yAxis: {
        ...axis(look, "FLOP/s (log scale)", 46),
        type: "log",
        min: low,
        max: high,
        axisLabel: { color: look.soft, formatter: (value) => scaled(value).trim() },
      },
      series: [
        plain("roof", [[begin, slope(begin)], [roof.ridge, top], [right, top]], { color: look.ink, width: 2 }),
        ...others.map(([unit, value]) =>
          plain(unit, [[value / roof.bandwidth, value], [right, value]], { color: look.soft, width: 1.2, type: "dashed" }),
        ),
        labels([
          [right, top, `${roof.unit} ${rate(top)}`, -9, { color: look.ink, position: "left" }],
          [middle, slope(middle), `${scaled(roof.bandwidth)}B/s`, beside ? 8 : -9, { color: look.ink, position: beside ? "right" : "left" }],
          ...others.map(([unit, value]) => [right, value, `${unit} ${rate(value)}`, -9, { color: look.soft, position: "left" }]),
          ...named.map(said),
        ]),
        {
          name: "path to the winner",
          type: "line",
          data: roof.stops.map((stop) => [roof.intensity, stop.flops_per_second]),
          showSymbol: false,
          silent: true,
          lineStyle: { color: look.accent, width: 1.5, opacity: 0.6 },
        },
        {
          name: "attainable",
          type: "scatter",
          data: [[roof.intensity, roof.attainable]],
          silent: true,
          symbol: "circle",
          symbolSize: 10,
          itemStyle: { color: look.card, borderColor: look.ink, borderWidth: 2 },
          label: { show: true, position: "left", formatter: () => "floor", color: look.ink, fontSize: 11 },
        },
        { name: "stops", type: "scatter", data: roof.stops.map(spot), z: 5 },
      ],
    };
  }

  return { progress, tree, roofline, size, offPath, look, colour, text, base, hint, axis };
})();
