// Values over an axis: lines or points, their intervals, a bound across.
const SERIES = [["orange", []], ["blue", [7, 4]], ["green", [2, 3]], ["mauve", [10, 3, 2, 3]], ["amber", [14, 4]], ["quiet", [3, 6]]];

/** The range of y: whole decades on a log axis, which 0 has a place on; else all that is drawn, with some room. */
function reach(part, at) {
  if (part.reach) return part.reach;
  const values = part.lines.flatMap((line) => [...line.values, ...line.low, ...line.high]).concat(part.bound).filter((v) => v !== null);
  if (part.zero !== null) return decades(values.map(at).filter((v) => v >= part.zero));
  const [low, high] = values.length ? [Math.min(...values), Math.max(...values)] : [0, 1];
  const room = 0.08 * (high - low || Math.abs(high) || 1);
  return [low >= 0 && low < 8 * room ? 0 : low - room, high + room];
}

/** A number beside a tick: without zeros that say nothing. */
const tick = (value) => short(value).replace(/\.?0+e/, "e");

function series(name, part) {
  const log = part.zero !== null, last = part.x[part.x.length - 1], first = part.x[0];
  const at = (value) => (value === 0 && log ? part.zero : value);
  const range = reach(part, at);
  const room = part.ticks.length ? 0.5 : 0.03 * (last - first || 1);
  // A bar of nothing is not drawn.
  const columns = part.lines.map((line) => line.values.map((v) => (v === null || (v === 0 && line.look === "bars") ? null : at(v))));
  const withZero = log && part.lines.some((line) => line.values.includes(0));
  const yTicks = (_, ticks) => ticks.map((v) => (v === null ? "" : log ? (withZero && v === part.zero ? "0" : Number(v).toExponential(0)) : tick(v)));
  const axisPair = () => {
    const [x, y] = axes(...part.labels, (_, ticks) => ticks.map((t) => (part.ticks.length ? part.ticks[t] ?? "" : tick(t))));
    if (part.ticks.length) x.space = 60;
    else if (!part.x.every(Number.isInteger)) delete x.incrs;
    y.values = yTicks;
    if (!log) { delete y.splits; delete y.filter; }
    return [x, y];
  };
  const marks = (u) => {
    const ink = u.ctx, edge = (v) => u.valToPos(Math.min(range[1], Math.max(range[0], v)), "y", true);
    ink.save();
    ink.lineWidth = 1.4 * devicePixelRatio;
    part.lines.forEach((line, row) => {
      ink.strokeStyle = colour(SERIES[row % SERIES.length][0]);
      part.x.forEach((place, i) => {
        const [low, high] = [line.low[i] ?? null, line.high[i] ?? null];
        if (columns[row][i] === null || (low === null && high === null)) return;
        const x = u.valToPos(place, "x", true), cap = 4 * devicePixelRatio;
        const [bottom, top] = [low === null ? range[0] : at(low), high === null ? range[1] : at(high)].map(edge);
        ink.beginPath();
        ink.moveTo(x, bottom); ink.lineTo(x, top);
        if (low !== null) { ink.moveTo(x - cap, bottom); ink.lineTo(x + cap, bottom); }
        if (high !== null) { ink.moveTo(x - cap, top); ink.lineTo(x + cap, top); }
        ink.stroke();
      });
    });
    if (part.bound !== null) {
      ink.strokeStyle = colour("ink");
      ink.setLineDash([3, 3].map((n) => n * devicePixelRatio));
      ink.beginPath();
      ink.moveTo(u.bbox.left, edge(part.bound)); ink.lineTo(u.bbox.left + u.bbox.width, edge(part.bound));
      ink.stroke();
    }
    ink.restore();
  };
  const look = (line, row) => {
    const [hue, dash] = SERIES[row % SERIES.length];
    const drawn = { stroke: colour(hue), width: 2, dash, points: { show: true, size: 7, fill: colour(hue) } };
    if (line.look === "bars") return { ...drawn, width: 1, dash: [], fill: colour(hue), points: { show: false }, paths: uPlot.paths.bars({ size: [0.9, 60] }), fillTo: () => range[0] };
    if (line.look === "line") return { ...drawn, points: { ...drawn.points, show: part.x.length <= 100 } };
    return { ...drawn, width: 0, paths: () => null, points: { ...drawn.points, size: line.look === "spikes" ? 12 : 6, fill: colour(line.look === "spikes" ? "panel" : hue), width: 2 } };
  };
  const options = () => ({
    scales: { x: { time: false, range: [first - room, last + room] }, y: { distr: log ? 3 : 1, range } },
    axes: axisPair(),
    series: [{}, ...part.lines.map(look)],
    hooks: { draw: [marks] },
  });
  plotAt(name, 260, options, () => [part.x, ...columns], (i) => part.words[i]);
}
