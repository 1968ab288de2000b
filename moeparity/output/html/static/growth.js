// The error after each layer, carried and local, on a log axis.
function growth(rows) {
  const column = (key) => rows.map((row) => row[key]);
  const layer = (name) => /^layers\[(\d+)\]$/.exec(name)?.[1] ?? name;
  const words = (i) => {
    const row = rows[i];
    const lines = [row.name, `carried ${row.size}`];
    if (row.at && row.local === null) lines.push(`largest local not finite, at ${row.at}`);
    if (row.local !== null) lines.push(`largest local ${short(row.local)} at ${row.at}`);
    if (row.factor !== null) lines.push(`x${row.factor.toFixed(2)} of the layer before`);
    if (row.flips !== null) lines.push(`${(100 * row.flips).toFixed(2)}% of tokens flip`);
    return lines;
  };
  const options = () => ({
    scales: { x: { time: false, range: [-0.5, rows.length - 0.5] }, y: { distr: 3, range: decades(column("carried"), column("local")) } },
    axes: axes("after layer", "relative L2 error", (_, ticks) => ticks.map((t) => (Number.isInteger(t) && rows[t] ? layer(rows[t].name) : ""))),
    series: [
      {},
      { label: "carried", stroke: colour("orange"), width: 2, points: { show: true, size: 7, fill: colour("orange") } },
      { label: "largest local", stroke: colour("blue"), width: 1.5, dash: [6, 4], points: { show: true, size: 6, fill: colour("panel") } },
    ],
  });
  plotAt("growth", 260, options, () => [rows.map((_, i) => i), column("carried"), column("local")], words);
}
