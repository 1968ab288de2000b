themes();
contents();
// How to read a plot is said once, below the first.
[...document.querySelectorAll(".say")].slice(1).forEach((line) => { line.textContent = ""; });
for (const [name, part] of Object.entries(DATA)) if (name.startsWith("series-")) series(name, part);
if (DATA.tokens) tokens(tokenTable(DATA.tokens));
if (byId("opgraph")) graph(byId("opgraph"));
let resized = 0;
addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(redraw);
});
document.documentElement.dataset.ready = String(Math.round(performance.now()));
