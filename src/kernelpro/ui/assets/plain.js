/* ECharts options for curves and bars, in the look of the report's charts. */
const { text, axis } = KernelProCharts;
const base = (look) => ({ ...KernelProCharts.base(look), tooltip: KernelProCharts.hint(look) });

export function curves(look, series, x, y, { log = false, step = "end" } = {}) {
  const across = axis(look, x, 28);
  return {
    ...base(look),
    grid: { left: 56, right: 18, top: series.length > 1 ? 44 : 18, bottom: 46 },
    legend: { show: series.length > 1, top: 0, textStyle: { color: look.ink }, icon: "roundRect", itemHeight: 4, type: "scroll" },
    xAxis: { ...across, axisLabel: { ...across.axisLabel, formatter: (value) => String(Number(value.toPrecision(3))) }, type: "value", scale: true, splitLine: { show: false }, min: "dataMin", max: "dataMax" },
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
    xAxis: { ...axis(look, x, 28), type: "category", data: names, axisTick: { show: false } },
    yAxis: { ...axis(look, y, 32), type: "value", minInterval: 1 },
    series: [{ type: "bar", data: values.map((value, k) => ({ value, itemStyle: { color: colours[k], borderRadius: [3, 3, 0, 0] } })), barCategoryGap: "12%" }],
  };
}
