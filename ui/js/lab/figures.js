// Maps on canvases, and the words that attention reads.
const dark = matchMedia("(prefers-color-scheme: dark)");
const PLACE = { signed: "diverging", amount: "sequential" };
const ramps = {};
let ink = {};

const mixed = (stops, at) => {
  const place = at * (stops.length - 1);
  const low = Math.min(Math.floor(place), stops.length - 2);
  return [1, 3, 5].map((i) => {
    const [a, b] = [stops[low], stops[low + 1]].map((stop) => parseInt(stop.slice(i, i + 2), 16));
    return Math.round(a + (b - a) * (place - low));
  });
};

// Takes up the colours of the ground that is shown; `again` is called when that changes.
export const onGround = (scales, again) => {
  const take = () => {
    const own = scales[dark.matches ? "dark" : "light"];
    for (const kind in PLACE) {
      ramps[kind] = Uint32Array.from({ length: 256 }, (_, i) => {
        const [r, g, b] = mixed(own[PLACE[kind]], i / 255);
        return (255 << 24) | (b << 16) | (g << 8) | r;
      });
    }
    const style = getComputedStyle(document.documentElement);
    ink = Object.fromEntries(["accent", "reference"].map((name) => [name, style.getPropertyValue(`--${name}`)]));
    ink.tints = [own.diverging[1], own.diverging[3]];
  };
  take();
  dark.addEventListener("change", () => (take(), again()));
};

// Paints `shade(column, row)`, from 0 to 255 of a scale, pixel by pixel.
const paint = (canvas, columns, rows, kind, shade) => {
  if (canvas.width !== columns || canvas.height !== rows) [canvas.width, canvas.height] = [columns, rows];
  canvas.brush ??= canvas.getContext("2d");
  const image = (canvas.image ??= canvas.brush.createImageData(columns, rows));
  const [pixels, ramp] = [new Uint32Array(image.data.buffer), ramps[kind]];
  for (let y = 0, at = 0; y < rows; y++) for (let x = 0; x < columns; x++) pixels[at++] = ramp[shade(x, y) | 0];
  canvas.brush.putImageData(image, 0, 0);
};

// Signed numbers by the square root of their share of `most`.
export const signed = (canvas, columns, rows, most, of) =>
  paint(canvas, columns, rows, "signed", (x, y) => {
    const value = of(x, y) / most;
    return 127.5 + 127 * Math.sign(value) * Math.min(1, Math.sqrt(Math.abs(value)));
  });

export const decibels = (canvas, columns, rows, [low, high], of) =>
  paint(canvas, columns, rows, "amount", (x, y) => Math.min(255, Math.max(0, (255 * (of(x, y) - low)) / (high - low))));

// Attention over the positions, by its square root: filled as it is read, outlined as it is in full precision.
export const bars = (canvas, exact, read) => {
  const [step, height] = [4, 160];
  if (canvas.width !== step * exact.length) [canvas.width, canvas.height] = [step * exact.length, height];
  const brush = (canvas.brush ??= canvas.getContext("2d"));
  brush.clearRect(0, 0, canvas.width, height);
  brush.fillStyle = ink.accent;
  read.forEach((weight, t) => brush.fillRect(step * t, height, step - 1, -height * Math.sqrt(weight)));
  brush.beginPath();
  brush.strokeStyle = ink.reference;
  brush.lineWidth = 2;
  exact.forEach((weight, t) => {
    const y = 1 + (height - 2) * (1 - Math.sqrt(weight));
    brush.lineTo(step * t, y);
    brush.lineTo(step * (t + 1), y);
  });
  brush.stroke();
};

// Tints each word by the attention it gains or loses.
export const tint = (words, exact, read) => {
  words.forEach((word, t) => {
    const change = (read[t] ?? 0) - (exact[t] ?? 0);
    const part = Math.round(38 * Math.min(1, Math.sqrt(Math.abs(change)) * 1.4));
    const ground = part < 2 ? "" : `color-mix(in srgb, ${ink.tints[Number(change > 0)]} ${part}%, transparent)`;
    if (word.ground !== ground) word.style.background = word.ground = ground;
  });
};
