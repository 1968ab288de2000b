// What every page needs: its data, its colours, the box that follows the pointer.
const DATA = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const KINDS = { u1: Uint8Array, i2: Int16Array, i4: Int32Array, f4: Float32Array };

/** An array that packing.py packed. */
function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed.base64), (mark) => mark.charCodeAt(0));
  return new KINDS[packed.kind](bytes.buffer);
}

/** A colour of the style sheet, as the page has it now. */
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** What is drawn, to be drawn again in other colours or another width. */
const drawings = [];
function redraw() {
  for (const draw of drawings) draw();
}

/** A number in few digits. */
function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "unknown";
  if (!Number.isFinite(value)) return value > 0 ? "infinite" : "-infinite";
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-3 || size >= 1e5) ? value.toExponential(2) : String(Number(value.toPrecision(3)));
}

/** Show lines beside a point of the window; none hides the box. */
function hover(lines, x = 0, y = 0) {
  const box = byId("hover");
  box.hidden = lines.length === 0;
  if (box.hidden) return;
  box.textContent = lines.join("\n");
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - width - 8))}px`;
  box.style.top = `${y + 18 + height > innerHeight ? Math.max(4, y - height - 10) : y + 18}px`;
}

/** Say below a plot what is pointed at, for those who read and those who listen. */
function say(name, lines) {
  byId(`say-${name}`).textContent = lines.join("; ");
}

function themes() {
  const button = byId("theme");
  const names = ["auto", "light", "dark"];
  const words = { auto: "as the system has them", light: "light", dark: "dark" };
  button.addEventListener("click", () => {
    const root = document.documentElement;
    const next = names[(names.indexOf(root.dataset.theme ?? "auto") + 1) % names.length];
    if (next === "auto") delete root.dataset.theme;
    else root.dataset.theme = next;
    button.textContent = next[0].toUpperCase() + next.slice(1);
    button.setAttribute("aria-label", `Colours: ${words[next]}`);
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // Paper is light: what is drawn is drawn again for it, and afterwards as it was.
  const light = (printing) => {
    const root = document.documentElement;
    if (printing === (root.dataset.printed !== undefined)) return;
    if (printing) {
      root.dataset.printed = root.dataset.theme ?? "";
      root.dataset.theme = "light";
    } else {
      if (root.dataset.printed) root.dataset.theme = root.dataset.printed;
      else delete root.dataset.theme;
      delete root.dataset.printed;
    }
    redraw();
  };
  addEventListener("beforeprint", () => light(true));
  addEventListener("afterprint", () => light(false));
  matchMedia("print").addEventListener("change", (event) => light(event.matches));
}

function contents() {
  const links = new Map([...document.querySelectorAll(".contents a")].map((a) => [a.hash.slice(1), a]));
  const seen = new Set();
  const watch = new IntersectionObserver((entries) => {
    for (const entry of entries) entry.isIntersecting ? seen.add(entry.target.id) : seen.delete(entry.target.id);
    const first = [...links.keys()].find((id) => seen.has(id));
    for (const [id, a] of links) id === first ? a.setAttribute("aria-current", "true") : a.removeAttribute("aria-current");
  }, { rootMargin: "-110px 0px -40% 0px" });
  for (const id of links.keys()) watch.observe(byId(id));
}
