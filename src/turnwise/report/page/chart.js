// Draw charts with ECharts once they come into view, with a title and a description for screen readers.
"use strict";

(() => {
  const charts = new Set();
  const seen = new IntersectionObserver(
    (entries) => {
      for (const entry of entries) if (entry.isIntersecting) entry.target.chart.show();
    },
    { rootMargin: "300px" },
  );

  /** Add a chart to a section. `options()` returns ECharts' options, or null without data; `wide` spans the row. */
  turnwise.addChart = (section, { title, note = "", wide = false, options, describe = () => "" }) => {
    const canvas = turnwise.make("div", { class: "canvas", role: "img" });
    const caption = turnwise.make(
      "figcaption",
      {},
      turnwise.make("strong", {}, title),
      turnwise.make("span", { class: "quiet" }, note),
    );
    const figure = turnwise.make("figure", { class: wide ? "wide" : null }, caption, canvas);
    document.querySelector(`#${section} .charts`).append(figure);
    const chart = {
      show() {
        const made = options();
        figure.hidden = made === null;
        if (made === null) return;
        this.drawing ??= echarts.init(canvas);
        this.drawing.setOption({ ...frame(), ...made, animation: false }, { notMerge: true });
        canvas.setAttribute("aria-label", `${title}. ${describe()}`);
      },
    };
    canvas.chart = chart;
    charts.add(chart);
    figure.hidden = options() === null;
    seen.observe(canvas);
  };

  /** Redraw all charts; show or hide those without data. */
  turnwise.redraw = () => charts.forEach((chart) => chart.show());

  addEventListener("resize", () => charts.forEach((chart) => chart.drawing?.resize()));
  turnwise.onTheme(() => turnwise.redraw());

  function frame() {
    return {
      textStyle: { fontFamily: turnwise.colour("--font"), color: turnwise.colour("--quiet") },
      grid: { left: 6, right: 14, top: 14, bottom: 6, containLabel: true },
    };
  }

  turnwise.valueAxis = ({ percent = false, ...more } = {}) => ({
    type: "value",
    axisLine: { show: false },
    axisTick: { show: false },
    splitLine: { lineStyle: { color: turnwise.colour("--line") } },
    axisLabel: {
      hideOverlap: true,
      color: turnwise.colour("--quiet"),
      formatter: percent ? (value) => `${Math.round(100 * value)} %` : undefined,
    },
    ...more,
  });

  turnwise.tooltip = (more = {}) => ({
    trigger: "axis",
    confine: true,
    transitionDuration: 0,
    backgroundColor: turnwise.colour("--card"),
    borderColor: turnwise.colour("--line"),
    textStyle: { color: turnwise.colour("--ink"), fontSize: 12 },
    axisPointer: { lineStyle: { color: turnwise.colour("--quiet") } },
    ...more,
  });

  /** Draw a line with its interval as a band: `points` are [x, y] or [x, y, low, high]. */
  turnwise.line = ({ name, colour, points, dashed = false, faint = false, marks = false }) => {
    const main = {
      name,
      type: "line",
      data: points,
      encode: { x: 0, y: 1 },
      symbol: "circle",
      symbolSize: 6,
      z: faint ? 2 : 4,
      showSymbol: marks || points.length < 2,
      itemStyle: { color: colour },
      emphasis: { disabled: true },
      lineStyle: {
        color: colour,
        width: faint ? 1.2 : 2.2,
        type: dashed ? "dashed" : "solid",
        opacity: faint ? 0.55 : 1,
      },
    };
    if (!points.some((point) => point.length > 2)) return [main];
    const band = (values, area) => ({
      name: `${name} interval`,
      type: "line",
      stack: `band ${name}`,
      data: values,
      symbol: "none",
      silent: true,
      z: 1,
      lineStyle: { opacity: 0 },
      areaStyle: area,
      tooltip: { show: false },
      emphasis: { disabled: true },
      stackStrategy: "all",
    });
    return [
      band(
        points.map(([x, , low]) => [x, low]),
        undefined,
      ),
      band(
        points.map(([x, , low, high]) => [x, high - low]),
        { color: colour, opacity: 0.16 },
      ),
      main,
    ];
  };

  /** Draw lines over one horizontal axis. */
  turnwise.lines = (lines, { percent = false, digits = 3, xName = "step", yAxis = {} } = {}) => {
    const filled = lines.filter((line) => line.points.length);
    if (!filled.length) return null;
    const shown = (value) => (percent ? turnwise.percent(value, 1) : turnwise.number(value, digits));
    return {
      grid: { left: 6, right: 14, top: 14, bottom: 22, containLabel: true },
      xAxis: turnwise.valueAxis({
        name: xName,
        nameLocation: "middle",
        nameGap: 26,
        min: "dataMin",
        max: "dataMax",
        splitLine: { show: false },
      }),
      yAxis: turnwise.valueAxis({ percent, scale: !percent, ...yAxis }),
      tooltip: turnwise.tooltip({
        formatter: (items) => {
          const kept = items.filter((item) => !item.seriesName.endsWith(" interval"));
          if (!kept.length) return "";
          const rows = kept.map(
            ({ marker, seriesName, data: [, y, low, high] }) =>
              `${marker}${echarts.format.encodeHTML(seriesName)}&ensp;<b>${shown(y)}</b>` +
              (low === undefined ? "" : ` (${shown(low)} to ${shown(high)})`),
          );
          return [`${xName} ${turnwise.number(kept[0].data[0], xName === "minutes" ? 1 : 0)}`, ...rows].join("<br>");
        },
      }),
      series: filled.flatMap(turnwise.line),
    };
  };
})();
