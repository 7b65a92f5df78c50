// Codecs in float32, as kvq_core/codecs/groups.py, methods/inner.py and methods/formats/ggml.py have them: the same
// codes, scales and zero-points, bit for bit. Float32 arithmetic is double arithmetic rounded after every operation.
export const f = Math.fround;
const EVEN = 1.5 * 2 ** 52;
const even = (x) => x + EVEN - EVEN; // to the nearest integer, halves to the even one
const clamp = (x, most) => Math.min(Math.max(x, 0), most);
const single = new Float32Array(1);
const word = new Uint32Array(single.buffer);

const STEPS = Float64Array.from({ length: 256 }, (_, exponent) => 2 ** (Math.max(exponent - 127, -14) - 10));

// The nearest fp16 number of a float32 one, halves to even.
export const half = (x) => {
  single[0] = x;
  const step = STEPS[(word[0] >>> 23) & 255];
  const found = even(x / step) * step;
  return Math.abs(found) > 65504 ? Math.sign(x) * Infinity : found;
};

const greatest = (x, n) => {
  let at = 0;
  for (let i = 1; i < n; i++) if (Math.abs(x[i]) > Math.abs(x[at])) at = i;
  return x[at];
};
const inverse = (scale) => (Math.abs(scale) > 2 ** -126 ? f(1 / scale) : 0);

// A group x of n numbers on a grid: writes codes and what is read of them, returns its scale and zero-point.
const GRIDS = {
  asymmetric(x, n, bits, codes, read, ofZero = half) {
    let low = x[0];
    let high = x[0];
    for (let i = 1; i < n; i++) {
      if (x[i] < low) low = x[i];
      if (x[i] > high) high = x[i];
    }
    const top = (1 << bits) - 1;
    const scale = half(f(f(high - low) / top)) || 1;
    const zero = ofZero(low);
    for (let i = 0; i < n; i++) {
      codes[i] = clamp(even(f(f(x[i] - zero) / scale)), top);
      read[i] = f(f(codes[i] * scale) + zero);
    }
    return { scale, zero };
  },
  symmetric(x, n, bits, codes, read) {
    const top = (1 << bits) - 1;
    const scale = half(f(Math.abs(greatest(x, n)) / top)) || 1;
    for (let i = 0; i < n; i++) {
      codes[i] = Math.min(even(f(Math.abs(x[i]) / scale)), top);
      read[i] = f((x[i] < 0 ? -codes[i] : codes[i]) * scale);
    }
    return { scale, zero: NaN }; // the signs take its place
  },
  // Whichever of the two is closer, with its minimum in float32.
  hybrid(x, n, bits, codes, read) {
    const [own, values] = [this.otherCodes, this.otherRead];
    const signed = this.symmetric(x, n, bits, codes, read);
    const plain = this.asymmetric(x, n, bits, own, values, f);
    let a = 0;
    let b = 0;
    for (let i = 0; i < n; i++) {
      a += f(f(read[i] - x[i]) ** 2);
      b += f(f(values[i] - x[i]) ** 2);
    }
    if (a <= b) return signed;
    codes.set(own.subarray(0, n));
    read.set(values.subarray(0, n));
    return plain;
  },
  otherCodes: new Uint8Array(256),
  otherRead: new Float32Array(256),
  q4_0(x, n, bits, codes, read) {
    const scale = f(greatest(x, n) / -8);
    const [by, stored] = [inverse(scale), half(scale)];
    for (let i = 0; i < n; i++) {
      codes[i] = Math.min(Math.trunc(f(f(x[i] * by) + 8.5)), 15);
      read[i] = f((codes[i] - 8) * stored);
    }
    return { scale: stored, zero: 0 };
  },
  q8_0(x, n, bits, codes, read) {
    const scale = f(Math.abs(greatest(x, n)) / 127);
    const [by, stored] = [inverse(scale), half(scale)];
    for (let i = 0; i < n; i++) {
      const scaled = f(x[i] * by);
      const code = Math.trunc(f(scaled + (scaled < 0 ? -f(0.49999997) : f(0.49999997))));
      codes[i] = code; // signed: a byte of two's complement
      read[i] = f(code * stored);
    }
    return { scale: stored, zero: 0 };
  },
};

const gcd = (a, b) => (b ? gcd(b, a % b) : a);
const packedBytes = (count, bits) => Math.ceil(count / (8 / gcd(8, bits))) * (bits / gcd(8, bits));

// Stores x (tokens x dim) by groups along channels or tokens: codes, scales and zeros with the grouped dimension last,
// `read` (tokens x dim), and the bytes of each part.
export const encode = (x, dim, { grid, axis, group, bits }) => {
  const tokens = x.length / dim;
  const [rows, count, row, step] = axis === "tokens" ? [dim, tokens, 1, dim] : [tokens, dim, dim, 1];
  const groups = Math.ceil(count / group);
  const [codes, read] = [new Uint8Array(x.length), new Float32Array(x.length)];
  const [scales, zeros] = [new Float32Array(rows * groups), new Float32Array(rows * groups)];
  const [own, ownCodes, ownRead] = [new Float32Array(group), new Int16Array(group), new Float32Array(group)];
  for (let r = 0; r < rows; r++) {
    for (let g = 0; g < groups; g++) {
      const n = Math.min(group, count - g * group);
      const start = r * row + g * group * step;
      for (let i = 0; i < n; i++) own[i] = x[start + i * step];
      const { scale, zero } = GRIDS[grid](own, n, bits, ownCodes, ownRead);
      scales[r * groups + g] = scale;
      zeros[r * groups + g] = zero;
      for (let i = 0; i < n; i++) {
        codes[r * count + g * group + i] = ownCodes[i];
        read[start + i * step] = ownRead[i];
      }
    }
  }
  const bytes = { codes: rows * packedBytes(count, bits), scales: 2 * scales.length };
  if (grid === "asymmetric") bytes.zeros = 2 * zeros.length;
  if (grid === "hybrid") bytes.words = Math.max(Math.ceil(group / 8), 4) * zeros.length;
  if (grid === "hybrid") bytes.mask = Math.ceil(zeros.length / 8);
  return { codes, scales, zeros, read, bytes };
};

// How many of `tokens` are held packed behind the first ones (kvq_core/codecs/window.py).
export const packedOf = ({ sink, recent, step }, tokens) => {
  const held = Math.max(0, tokens - sink);
  return held < recent + step ? 0 : Math.floor((held - recent) / step) * step;
};
