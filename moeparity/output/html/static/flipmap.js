// Layers x tokens on a canvas: no element for each cell.
const FLIPPED = 2, SLOTS = 4, ROOT = 16, TIED = 128;

/** What stands in the data for every token, unpacked once. */
function tokenTable(data) {
  const table = { B: data.flags.shape[0], T: data.flags.shape[1], pieces: data.pieces };
  for (const key of Object.keys(data)) if (data[key]?.base64 !== undefined) table[key] = unpack(data[key]);
  table.L = table.layers.length;
  table.K = data.experts.shape[2];
  table.N = table.B * table.T;
  table.flipAt = new Map();
  for (let i = 0; i < table.flipped.length / 3; i++) {
    const [layer, row, position] = table.flipped.subarray(3 * i, 3 * i + 3);
    table.flipAt.set((layer * table.B + row) * table.T + position, i);
  }
  table.any = new Uint8Array(table.N);
  for (let cell = 0; cell < table.map.length; cell++) if (table.map[cell] & FLIPPED) table.any[cell % table.N] = 1;
  return table;
}

const power = (bin) => (bin === 255 ? "unknown" : bin === 0 ? "below 1 ulp" : `2^${bin - 1}..2^${bin} ulp`);

/** What one cell of the map says, in lines. */
function cellWords(table, layer, token) {
  const cell = layer * table.N + token;
  const bits = table.map[cell];
  const lines = [`layer ${table.layers[layer]}, sequence ${table.sequences[Math.floor(token / table.T)]}, position ${token % table.T}`];
  if (!bits) return [...lines, "not compared"];
  const i = table.flipAt.get(cell);
  if (i === undefined) {
    lines.push(bits & SLOTS ? "same experts, another order" : "same experts");
    lines.push(`margin ${power(table.margin[cell])}`, `perturbation ${power(table.perturbation[cell])}`);
  } else {
    const experts = table.experts.subarray(2 * table.K * i, 2 * table.K * (i + 1));
    const [ours, theirs] = [[...experts.subarray(0, table.K)], [...experts.subarray(table.K)]];
    const only = (side, other) => side.filter((expert) => !other.includes(expert)).join(", ");
    lines.push(bits & ROOT ? "flips: a root" : "flips: inherited");
    lines.push(`expert ${only(ours, theirs)} in the reference, ${only(theirs, ours)} in the candidate`);
    lines.push(`reference ${ours.join(" ")}`, `candidate ${theirs.join(" ")}`);
    lines.push(`margin ${short(table.flipMargin[i])} ulp, perturbation ${short(table.flipPerturbation[i])} ulp`);
  }
  if (bits & TIED) lines.push("an exact tie at the cut");
  return lines;
}

/** How strong a cell is shown: 0 the same, 1 another order, 2 a flip, 3 a root; -1 where nothing was compared. */
const strength = (bits) => (bits & ROOT && bits & FLIPPED ? 3 : bits & FLIPPED ? 2 : bits & SLOTS ? 1 : bits ? 0 : -1);

function flipMap(table, show) {
  const place = byId("plot-flipmap");
  if (!place || !table.L) return;
  const canvas = place.appendChild(document.createElement("canvas"));
  const left = 34, bottom = 20;
  let from = 0, count = table.N, at = { layer: 0, token: 0 }, pointed = false;
  let width = 0, height = 0, row = 0;
  const strengths = Int8Array.from(table.map, strength);

  const draw = () => {
    width = Math.max(240, place.clientWidth - 14);
    row = Math.max(4, Math.min(26, Math.floor(420 / table.L)));
    height = row * table.L + bottom;
    const ratio = devicePixelRatio || 1;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const ink = canvas.getContext("2d");
    ink.scale(ratio, ratio);
    ink.clearRect(0, 0, width, height);
    cells(ink);
    frame(ink);
    if (pointed) cursor(ink);
    place.dataset.drawn = String(count);
  };
  const inner = () => width - left;
  const x = (token) => left + ((token - from) / count) * inner();
  const cells = (ink) => {
    const colours = [0, 1, 2, 3].map((i) => colour(`cell${i}`));
    const columns = Math.min(count, inner());
    const step = count / columns, wide = inner() / columns;
    const gap = wide > 5 ? 1 : 0;
    for (let layer = 0; layer < table.L; layer++) {
      for (let column = 0; column < columns; column++) {
        let strongest = -1;
        const end = Math.max(Math.floor((column + 1) * step), Math.floor(column * step) + 1);
        for (let token = Math.floor(column * step); token < end; token++) {
          strongest = Math.max(strongest, strengths[layer * table.N + from + token]);
        }
        if (strongest < 0) continue;
        ink.fillStyle = colours[strongest];
        const rise = strongest > 0 || row < 8 ? 0 : Math.floor(row / 8);
        ink.fillRect(left + column * wide, layer * row + rise, Math.max(wide - gap, 1), row - 1 - 2 * rise);
      }
    }
  };
  const frame = (ink) => {
    ink.fillStyle = colour("quiet");
    ink.font = "11px system-ui, sans-serif";
    ink.textAlign = "right";
    const every = Math.ceil(14 / row);
    for (let layer = 0; layer < table.L; layer += every) ink.fillText(String(table.layers[layer]), left - 6, layer * row + row / 2 + 4);
    ink.textAlign = "center";
    const [start, end] = [Math.ceil(from / table.T), Math.floor((from + count) / table.T)];
    const few = Math.max(1, Math.ceil(((end - start) * 60) / inner()));
    ink.strokeStyle = colour("panel");
    for (let sequence = start; sequence <= end; sequence++) {
      const at = x(sequence * table.T);
      if (end - start < 80 && sequence > 0) ink.strokeRect(at, 0, 0, row * table.L);
      if (sequence < table.B && (sequence - start) % few === 0 && at < width - 30) {
        ink.textAlign = "left";
        ink.fillText(`seq ${table.sequences[sequence]}`, at + 2, height - 5);
      }
    }
    if (end < start) ink.fillText(`seq ${table.sequences[Math.floor(from / table.T)]}, positions ${from % table.T} to ${(from + count - 1) % table.T}`, left + 2, height - 5);
  };
  const cursor = (ink) => {
    ink.strokeStyle = colour("focus");
    ink.lineWidth = 2;
    const wide = Math.max(4, inner() / count);
    ink.strokeRect(x(at.token + 0.5) - wide / 2, at.layer * row, wide, row);
  };
  const zoom = (factor) => {
    const middle = pointed ? at.token : from + count / 2;
    count = Math.max(Math.min(16, table.N), Math.min(table.N, Math.round(count * factor)));
    from = Math.round(Math.max(0, Math.min(table.N - count, middle - count / 2)));
    draw();
  };
  const move = (layer, token) => {
    at = { layer: Math.max(0, Math.min(table.L - 1, layer)), token: Math.max(0, Math.min(table.N - 1, token)) };
    pointed = true;
    if (at.token < from || at.token >= from + count) from = Math.max(0, Math.min(table.N - count, at.token - Math.floor(count / 2)));
    draw();
    say("flipmap", cellWords(table, at.layer, at.token));
  };
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const layer = Math.floor((event.clientY - box.top) / row), column = (event.clientX - box.left - left) / inner();
    if (column < 0 || column >= 1 || layer < 0 || layer >= table.L) return null;
    // Of the tokens that share this column, the strongest: what is seen there.
    const start = from + Math.floor(column * count), end = Math.max(start + 1, from + Math.floor((column + 1 / inner()) * count));
    let best = start;
    for (let token = start; token < Math.min(end, table.N); token++) if (strengths[layer * table.N + token] > strengths[layer * table.N + best]) best = token;
    return { layer, token: best };
  };
  canvas.addEventListener("mousemove", (event) => {
    const cell = under(event);
    hover(cell ? cellWords(table, cell.layer, cell.token) : [], event.clientX, event.clientY);
  });
  canvas.addEventListener("mouseleave", () => hover([]));
  canvas.addEventListener("click", (event) => {
    const cell = under(event);
    if (!cell) return;
    move(cell.layer, cell.token);
    show(Math.floor(cell.token / table.T), cell.token % table.T, false);
  });
  const nextFlip = (direction) => {
    let token = at.token;
    do token += direction; while (token >= 0 && token < table.N && strengths[at.layer * table.N + token] < 2);
    return token >= 0 && token < table.N ? token : at.token;
  };
  place.addEventListener("keydown", (event) => {
    const jump = event.shiftKey ? (d) => nextFlip(d) - at.token : (d) => d;
    const steps = { ArrowRight: [0, jump(1)], ArrowLeft: [0, jump(-1)], ArrowDown: [1, 0], ArrowUp: [-1, 0], Home: [0, -table.N], End: [0, table.N] };
    if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (event.key === "Enter") show(Math.floor(at.token / table.T), at.token % table.T, true);
    else if (steps[event.key]) {
      event.preventDefault();
      move(at.layer + steps[event.key][0], at.token + steps[event.key][1]);
    }
  });
  byId("tools-flipmap").addEventListener("click", (event) => {
    const kind = event.target.dataset.tool;
    if (kind) zoom({ in: 0.5, out: 2, all: Infinity }[kind]);
  });
  drawings.push(draw);
  draw();
}
