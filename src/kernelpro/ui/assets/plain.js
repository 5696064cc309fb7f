/* Options of ECharts for curves and bars, in the look of the report's charts. */
export const text = (value) => String(value).replace(/[&<>"']/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" })[c]);

const axis = (look, name, gap = 28) => ({
  name, nameLocation: "middle", nameGap: gap, nameTextStyle: { color: look.soft }, axisLabel: { color: look.soft, hideOverlap: true },
  axisLine: { show: true, lineStyle: { color: look.grid } }, splitLine: { lineStyle: { color: look.grid, opacity: 0.6 } },
});
const base = (look) => ({
  animation: false, textStyle: { color: look.ink, fontFamily: "system-ui, sans-serif" }, aria: { enabled: true },
  tooltip: { confine: true, backgroundColor: look.card, borderColor: look.grid, textStyle: { color: look.ink, fontSize: 12 } },
});

export function curves(look, series, x, y, { log = false, step = "end" } = {}) {
  return {
    ...base(look),
    grid: { left: 56, right: 18, top: series.length > 1 ? 44 : 18, bottom: 46 },
    legend: { show: series.length > 1, top: 0, textStyle: { color: look.ink }, icon: "roundRect", itemHeight: 4, type: "scroll" },
    xAxis: { ...axis(look, x), type: "value", scale: true, splitLine: { show: false }, min: "dataMin", max: "dataMax" },
    yAxis: { ...axis(look, y, 40), type: log ? "log" : "value" },
    series: series.map((item, k) => ({ name: item.name, type: "line", step, showSymbol: item.points.length < 2, data: item.points, lineStyle: { width: 2.5 }, color: series.length > 1 ? look.series[k % look.series.length] : look.accent,
      markLine: k || !item.mark ? undefined : { silent: true, symbol: "none", data: [{ yAxis: item.mark }], lineStyle: { color: look.soft, type: "dashed" }, label: { show: false } } })),
    tooltip: { ...base(look).tooltip, trigger: "axis", formatter: (items) => items.map((item) => `${text(item.seriesName)}: <b>${Number(item.value[1].toPrecision(3))}</b>`).join("<br>") },
  };
}

export function bars(look, names, values, x, y, colours) {
  return {
    ...base(look),
    grid: { left: 46, right: 12, top: 18, bottom: 46 },
    xAxis: { ...axis(look, x), type: "category", data: names, axisTick: { show: false } },
    yAxis: { ...axis(look, y, 32), type: "value", minInterval: 1 },
    series: [{ type: "bar", data: values.map((value, k) => ({ value, itemStyle: { color: colours[k], borderRadius: [3, 3, 0, 0] } })), barCategoryGap: "12%" }],
  };
}
