for (const figure of document.querySelectorAll("figure:has(.marks)")) {
  const marks = JSON.parse(figure.querySelector(".marks").textContent);
  const picture = figure.querySelector("svg");
  const said = figure.querySelector(".said") ?? document.getElementById("said");
  const whole = said.textContent;
  const ring = document.createElementNS("http://www.w3.org/2000/svg", "circle");
  const NEAR = 30; // of the picture's units
  let at = -1;

  ring.setAttribute("r", "6");
  ring.setAttribute("fill", "none");
  ring.setAttribute("stroke", "currentColor");
  ring.setAttribute("stroke-width", "2");
  picture.setAttribute("tabindex", "0");

  const show = (index) => {
    at = index;
    if (index < 0) {
      ring.remove();
      said.textContent = whole;
      return;
    }
    ring.setAttribute("cx", marks[index][0]);
    ring.setAttribute("cy", marks[index][1]);
    picture.append(ring);
    said.textContent = marks[index][2];
  };

  const nearest = (event) => {
    const box = picture.getBoundingClientRect();
    const scale = picture.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale;
    const y = (event.clientY - box.top) * scale;
    let found = -1;
    let least = NEAR * NEAR;
    marks.forEach(([mx, my], index) => {
      const far = (mx - x) ** 2 + (my - y) ** 2;
      if (far < least) [least, found] = [far, index];
    });
    return found;
  };

  picture.addEventListener("pointermove", (event) => show(nearest(event)));
  picture.addEventListener("pointerleave", () => show(-1));
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (step) show(Math.min(Math.max(at + step, 0), marks.length - 1));
    else if (event.key === "Escape") show(-1);
    else return;
    event.preventDefault();
  });
}
