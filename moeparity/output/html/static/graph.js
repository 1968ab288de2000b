// The node that is chosen shows its choices; arrow keys go from node to node.
function graph(place) {
  const buttons = [...place.querySelectorAll(".lanes button")];
  let seen = false;
  const choose = (chosen) => {
    for (const button of buttons) {
      const open = button === chosen && button.getAttribute("aria-expanded") !== "true";
      button.setAttribute("aria-expanded", String(open));
      byId(button.getAttribute("aria-controls")).hidden = !open;
    }
    const panel = byId(chosen.getAttribute("aria-controls"));
    if (seen && !panel.hidden) panel.scrollIntoView({ block: "nearest" });
    seen = true;
    place.querySelector(".hint").hidden = buttons.some((b) => b.getAttribute("aria-expanded") === "true");
  };
  place.addEventListener("click", (event) => {
    const button = event.target.closest(".lanes button");
    if (button) choose(button);
  });
  place.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const index = buttons.indexOf(event.target);
    if (!step || index < 0) return;
    event.preventDefault();
    buttons[Math.max(0, Math.min(buttons.length - 1, index + step))].focus();
  });
  const first = place.querySelector(".c-first")?.closest("button");
  if (first) choose(first);
}
