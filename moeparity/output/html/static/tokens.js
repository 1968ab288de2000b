// k3 of each token of one sequence, and the sequence itself.
const MOST = 1024;

/** Everything known of one token, in lines. */
function tokenWords(table, row, position) {
  const token = row * table.T + position;
  const lines = [`sequence ${table.sequences[row]}, position ${position}`];
  if (table.pieces) lines[0] += `: ${table.pieces[row][position]}`;
  if (!(table.flags[token] & 1)) return [...lines, "padding"];
  if (!(table.flags[token] & 2)) lines.push("not scored");
  else if (Number.isNaN(table.k3[token])) lines.push("not finite");
  else lines.push(`k3 ${short(table.k3[token])}, delta ${short(table.delta[token])}, KL ${short(table.kl[token])}`);
  const layers = [];
  for (let layer = 0; layer < table.L; layer++) if (table.map[layer * table.N + token] & FLIPPED) layers.push(table.layers[layer]);
  lines.push(layers.length ? `its own routes flip in layer ${layers.join(", ")}` : "its own routes flip nowhere");
  if (position > 0 && table.any[token - 1]) lines.push("the position that scores it flips");
  return lines;
}

function tokens(table) {
  const chooser = byId("sequence"), text = byId("text"), sort = byId("worst");
  const sum = (row) => table.k3.subarray(row * table.T, (row + 1) * table.T).reduce((a, b) => a + (Number.isNaN(b) ? Infinity : b), 0);
  const sums = Array.from({ length: table.B }, (_, row) => sum(row));
  let row = 0, here = -1;
  const list = (order) => {
    chooser.replaceChildren(...order.map((r) => {
      const flips = table.any.subarray(r * table.T, (r + 1) * table.T).reduce((a, b) => a + b, 0);
      return new Option(`${table.sequences[r]}: k3 ${short(sums[r])} in all, ${flips} tokens flip`, r);
    }));
    chooser.value = row;
  };
  const plain = Array.from({ length: table.B }, (_, r) => r);
  row = plain.reduce((a, b) => (sums[b] > sums[a] ? b : a), 0);
  const scoredBy = (position) => position > 0 && table.any[row * table.T + position - 1];
  const column = (flips) => plainPositions().map((p) => {
    const token = row * table.T + p;
    const drawn = table.flags[token] & 2 && table.k3[token] >= range[0] && Number.isFinite(table.k3[token]) && Boolean(scoredBy(p)) === flips;
    return drawn ? table.k3[token] : null;
  });
  const plainPositions = () => Array.from({ length: table.T }, (_, p) => p);
  const words = (p) => tokenWords(table, row, p);
  const dots = (shape) => (u, series) => {
    const ink = u.ctx, size = 3.6 * devicePixelRatio;
    ink.fillStyle = colour(shape === "diamond" ? "orange" : "blue");
    const values = u.data[series];
    for (let i = 0; i < values.length; i++) {
      if (values[i] === null) continue;
      const x = u.valToPos(u.data[0][i], "x", true), y = u.valToPos(values[i], "y", true);
      ink.beginPath();
      if (shape === "diamond") { ink.moveTo(x, y - 1.5 * size); ink.lineTo(x + 1.5 * size, y); ink.lineTo(x, y + 1.5 * size); ink.lineTo(x - 1.5 * size, y); }
      else ink.arc(x, y, size, 0, 7);
      ink.fill();
    }
    return null;
  };
  // Of a k3 below 1e-16 nothing but rounding is left.
  const range = decades(Array.from(table.k3).filter((value) => value >= 1e-16 && Number.isFinite(value)));
  const options = () => ({
    scales: { x: { time: false, range: [-1, table.T] }, y: { distr: 3, range } },
    axes: axes("position", "k3, nats", (_, ticks) => ticks.map((t) => (Number.isInteger(t) ? t : ""))),
    series: [{}, { paths: dots("disc"), points: { show: false } }, { paths: dots("diamond"), points: { show: false } }],
  });
  const plot = plotAt("tokens", 230, options, () => [plainPositions(), column(false), column(true)], (p) => { mark(p); return words(p); }, (p) => mark(p, true));
  const level = (token) => {
    const value = table.k3[token];
    if (Number.isNaN(value)) return 5;
    return value > 0 ? Math.max(0, Math.min(5, Math.floor(Math.log10(value)) + 6)) : 0;
  };
  const spell = () => {
    const page = Math.floor(Math.max(here, 0) / MOST) * MOST;
    const parts = [];
    for (let p = page; p < Math.min(table.T, page + MOST); p++) {
      const token = row * table.T + p;
      if (!(table.flags[token] & 1)) continue;
      const span = document.createElement("span");
      span.textContent = table.pieces ? table.pieces[row][p] : String(p);
      span.className = table.flags[token] & 2 ? `q${level(token)}` : "unscored";
      if (table.any[token]) span.classList.add("flip");
      if (p === here) span.classList.add("here");
      span.dataset.p = p;
      parts.push(span);
    }
    text.replaceChildren(...parts);
    text.dataset.page = page;
  };
  const mark = (p, scroll = false) => {
    here = p;
    if (Number(text.dataset.page) !== Math.floor(p / MOST) * MOST) spell();
    text.querySelector(".here")?.classList.remove("here");
    const span = text.querySelector(`[data-p="${p}"]`);
    span?.classList.add("here");
    if (scroll) span?.scrollIntoView({ block: "nearest" });
  };
  const show = (next, position, focus) => {
    row = next;
    chooser.value = row;
    here = -1;
    spell();
    plot.draw();
    plot.move(position);
    if (focus) byId("plot-tokens").focus();
  };
  text.tabIndex = 0;
  text.setAttribute("role", "application");
  text.setAttribute("aria-label", "Tokens of the sequence. Arrow keys move.");
  text.addEventListener("mousemove", (event) => {
    const p = event.target.dataset?.p;
    if (p === undefined || event.target === text) return hover([]);
    hover(words(Number(p)), event.clientX, event.clientY);
  });
  text.addEventListener("mouseleave", () => hover([]));
  text.addEventListener("click", (event) => event.target.dataset?.p !== undefined && plot.move(Number(event.target.dataset.p)));
  text.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = Math.max(0, Math.min(table.T - 1, here + step));
    plot.move(next);
    mark(next, true);
  });
  chooser.addEventListener("change", () => show(Number(chooser.value), 0, false));
  sort.addEventListener("click", () => {
    const sorted = sort.getAttribute("aria-pressed") !== "true";
    sort.setAttribute("aria-pressed", String(sorted));
    list(sorted ? [...plain].sort((a, b) => sums[b] - sums[a]) : plain);
  });
  list(plain);
  spell();
  flipMap(table, show);
}
