  // A view that is no figure as a picture: laid out once more out of sight, as wide as a frame is, then its grounds,
  // canvases and texts are drawn one by one, for programs that know no HTML.
  const FRAME = 760; // px
  const READ = ".figure-menu:has([data-take=png][data-read])"; // menus of what is drawn here
  const EDGE = 16; // px, around it
  const drawnAs = (tag, attributes, text = "") => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, Number.isFinite(value) ? value.toFixed(1) : value);
    node.textContent = text;
    return node;
  };
  // The words of a text by the line they stand on; one that is broken is taken letter by letter.
  const linesOf = (node) => {
    const found = [];
    const range = document.createRange();
    const boxesOf = (start, end) => {
      range.setStart(node, start);
      range.setEnd(node, end);
      return [...range.getClientRects()].filter(({ width }) => width);
    };
    const take = (pattern, text, from) => {
      for (const { 0: piece, index } of text.matchAll(pattern)) {
        const [start, end] = [from + index, from + index + piece.length];
        const boxes = boxesOf(start, end);
        if (boxes.length > 1 && piece.length > 1 && boxes[0].top !== boxes.at(-1).top) take(/\S/gu, piece, start);
        else if (boxes.length && found.at(-1)?.top === boxes[0].top) found.at(-1).end = end;
        else if (boxes.length) found.push({ start, end, top: boxes[0].top });
      }
    };
    take(/\S+/g, node.data, 0);
    return found.map(({ start, end }) => {
      const boxes = boxesOf(start, end);
      const left = Math.min(...boxes.map((box) => box.left));
      return { text: node.data.slice(start, end), left, top: boxes[0].top, width: Math.max(...boxes.map((box) => box.right)) - left };
    });
  };
  const drawText = (node, pen) => {
    const { color, fontFamily, fontSize, fontStyle, fontWeight } = getComputedStyle(node.parentElement);
    pen.font = `${fontStyle} ${fontWeight} ${fontSize} ${fontFamily}`;
    const font = { "fill": color, "font-family": fontFamily, "font-size": fontSize, "font-weight": fontWeight };
    const { fontBoundingBoxAscent: ascent } = pen.measureText("x");
    return linesOf(node).map(({ text, left, top, width }) =>
      drawnAs("text", { x: left, y: top + ascent, textLength: width, lengthAdjust: "spacingAndGlyphs", style: "white-space:pre", ...font }, text));
  };
  const drawBox = (node) => {
    const { backgroundColor: fill, borderBottomColor: line, borderBottomWidth } = getComputedStyle(node);
    const thick = parseFloat(borderBottomWidth);
    return [...node.getClientRects()].flatMap(({ left: x, top: y, width, height, bottom }) => [
      ...(fill === "rgba(0, 0, 0, 0)" ? [] : [drawnAs("rect", { x, y, width, height, fill })]),
      ...(thick ? [drawnAs("rect", { x, y: bottom - thick, width, height: thick, fill: line })] : []),
      ...(node.localName === "canvas" ? [drawnAs("image", { x, y, width, height, preserveAspectRatio: "none", style: "image-rendering:pixelated", href: node.toDataURL() })] : []),
    ]);
  };
  const pictureOf = (stage) => {
    const pen = document.createElement("canvas").getContext("2d");
    const { left, top, height } = stage.getBoundingClientRect();
    const [across, down] = [FRAME + 2 * EDGE, Math.ceil(height) + 2 * EDGE];
    const svg = drawnAs("svg", { width: String(across), height: String(down), viewBox: `${left - EDGE} ${top - EDGE} ${across} ${down}` });
    svg.append(drawnAs("rect", { x: left - EDGE, y: top - EDGE, width: across, height: down, fill: getComputedStyle(document.body).getPropertyValue("--card").trim() }));
    const walk = document.createTreeWalker(stage, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) svg.append(...(walk.currentNode.nodeType === Node.TEXT_NODE ? drawText(walk.currentNode, pen) : drawBox(walk.currentNode)));
    return svg;
  };
  // What the words' or the replay's menu offers, with the lane, the token and what its colours mean.
  const laidOut = (menu) => {
    const [view, title] = [menu.dataset.figureMenu, menu.parentElement.querySelector("h3").textContent];
    const line = (text, style) => Object.assign(document.createElement("p"), { textContent: text, style });
    const shown = (name) => document.querySelector(`#reading ${name}`);
    const [layer, head] = reading.asked;
    const mode = document.getElementById("reading-mode");
    const where = {
      words: `${readingLane().label}, layer ${layer}, query head ${head}: ${mode.selectedOptions[0].text}. ${mode.value === "change" ? menu.dataset.colors : ""}`,
      replay: `Token ${shown(".replay output").textContent}. ${menu.dataset.colors}`,
    }[view];
    const parts = { words: [".reading-said", ".reading-text"], replay: [".replay-rows", ".replay-note"] }[view];
    const stage = Object.assign(document.createElement("div"), { style: `position:fixed;left:0;top:0;visibility:hidden;width:${FRAME}px` });
    stage.append(line(title, "font-weight:600"), line(where, "color:var(--mute);font-size:var(--text-small)"));
    for (const part of parts.map(shown)) {
      const copy = part.cloneNode(true);
      copy.style.maxHeight = "none";
      const canvases = part.querySelectorAll("canvas");
      copy.querySelectorAll("canvas").forEach((canvas, at) => canvas.getContext("2d").drawImage(canvases[at], 0, 0));
      stage.append(copy);
    }
    document.getElementById("reading").append(stage);
    return stage;
  };
  const takePicture = async (menu, as) => {
    const stage = laidOut(menu);
    const svg = pictureOf(stage);
    stage.remove();
    const text = new XMLSerializer().serializeToString(svg);
    const name = `${reading.run}-${menu.dataset.figureMenu}.${as}`;
    if (as === "svg") return window.kvq.save(text, name);
    const image = new Image();
    image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
    await image.decode();
    const canvas = Object.assign(document.createElement("canvas"), { width: 2 * image.width, height: 2 * image.height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    window.kvq.save(canvas.toDataURL().split(",")[1], name);
  };
