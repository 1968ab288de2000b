// Plots by uPlot, with keys, in the colours of the page.

/** Axes in the page's colours; `values` names the ticks of x. The y axis is as wide as its longest tick. */
function axes(xLabel, yLabel, values) {
  const look = { stroke: colour("quiet"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line"), width: 1 }, font: "11px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif", labelSize: 18 };
  const power = (_, ticks) => ticks.map((v) => (v === null ? "" : Number(v).toExponential(0)));
  const whole = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000];
  const wide = (_, ticks) => 24 + 6.5 * Math.max(3, ...(ticks ?? []).map((tick) => String(tick).length));
  return [
    { ...look, label: xLabel, values, size: 36, incrs: whole, grid: { show: false } },
    { ...look, label: yLabel, size: wide, values: power, splits: (u) => tens(u.scales.y.min, u.scales.y.max), filter: (_, splits) => splits },
  ];
}

/** Powers of ten from one to the other, at most eight of them. */
function tens(low, high) {
  const [first, last] = [Math.ceil(Math.log10(low) - 1e-9), Math.floor(Math.log10(high) + 1e-9)];
  const step = Math.ceil((last - first + 1) / 8);
  return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => 10 ** (first + i * step));
}

/** Whole decades around the values: [low, high]. */
function decades(...columns) {
  const values = columns.flat().filter((v) => v > 0);
  if (!values.length) return [1e-1, 1];
  const low = 10 ** Math.floor(Math.log10(values.reduce((a, b) => Math.min(a, b))));
  const high = 10 ** Math.ceil(Math.log10(values.reduce((a, b) => Math.max(a, b))));
  return [low, high > low ? high : low * 10];
}

/** A plot at `plot-name` that draws itself again; `options(width)` and `series()` give uPlot what it needs, `words(index)`
 * the lines for a point, `pick` what Enter does. */
function plotAt(name, height, options, series, words, pick = () => {}) {
  const place = byId(`plot-${name}`);
  let plot = null;
  let index = -1;
  const move = (to) => {
    index = to;
    const x = plot.data[0][index];
    if (x === undefined) return;
    plot.setCursor({ left: plot.valToPos(x, "x"), top: plot.bbox.height / devicePixelRatio / 2 }, false);
    say(name, words(index));
    place.dataset.index = String(index);
  };
  const draw = () => {
    const width = Math.max(240, place.clientWidth - 14);
    plot?.destroy();
    const given = options(width);
    plot = new uPlot({ width, height, legend: { show: false }, ...given, cursor: { drag: { x: false, y: false }, ...given.cursor } }, series(), place);
    plot.over.addEventListener("mousemove", (event) => {
      if (plot.cursor.idx === null || plot.cursor.idx === undefined) return;
      index = plot.cursor.idx;
      const lines = words(index);
      hover(lines, event.clientX, event.clientY);
      say(name, lines);
    });
    plot.over.addEventListener("mouseleave", () => hover([]));
    plot.over.addEventListener("click", () => index >= 0 && pick(index));
    place.dataset.drawn = String(plot.data[0].length);
  };
  place.addEventListener("keydown", (event) => {
    const last = plot.data[0].length - 1;
    const to = { ArrowRight: index + 1, ArrowLeft: index - 1, Home: 0, End: last }[event.key];
    if (event.key === "Enter" && index >= 0) pick(index);
    if (to === undefined) return;
    event.preventDefault();
    move(Math.max(0, Math.min(last, to)));
  });
  drawings.push(draw);
  draw();
  return { draw, move };
}
