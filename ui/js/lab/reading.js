// What attention makes of keys and values, and the keys' spectrum along positions.

// The newest queries (n x dim) over keys and values (tokens x dim), causally: scores before the softmax and weights
// (n x tokens), outputs (n x dim).
export const attend = (queries, keys, values, dim) => {
  const [n, tokens, scaling] = [queries.length / dim, keys.length / dim, dim ** -0.5];
  const [scores, weights] = [new Float64Array(n * tokens), new Float64Array(n * tokens)];
  const outputs = new Float64Array(n * dim);
  for (let q = 0; q < n; q++) {
    const seen = tokens - n + q + 1;
    let most = -Infinity;
    for (let t = 0; t < seen; t++) {
      let sum = 0;
      for (let c = 0, i = q * dim, j = t * dim; c < dim; c++) sum += queries[i + c] * keys[j + c];
      scores[q * tokens + t] = sum * scaling;
      most = Math.max(most, sum * scaling);
    }
    let total = 0;
    for (let t = 0; t < seen; t++) total += weights[q * tokens + t] = Math.exp(scores[q * tokens + t] - most);
    for (let t = 0; t < seen; t++) {
      const weight = (weights[q * tokens + t] /= total);
      for (let c = 0, i = q * dim, j = t * dim; c < dim; c++) outputs[i + c] += weight * values[j + c];
    }
  }
  return { scores, weights, outputs };
};

// |a - b| over |b|, as norms.
export const relative = (a, b) => {
  let [off, all] = [0, 0];
  for (let i = 0; i < b.length; i++) {
    off += (a[i] - b[i]) ** 2;
    all += b[i] ** 2;
  }
  return Math.sqrt(off / all);
};

// Of n newest queries: the root mean square of score errors, and the share of attention that goes to other tokens.
export const errors = (read, exact, n) => {
  const tokens = exact.scores.length / n;
  let [square, pairs, moved] = [0, 0, 0];
  for (let q = 0; q < n; q++) {
    for (let t = 0; t <= tokens - n + q; t++, pairs++) {
      square += (read.scores[q * tokens + t] - exact.scores[q * tokens + t]) ** 2;
      moved += Math.abs(read.weights[q * tokens + t] - exact.weights[q * tokens + t]);
    }
  }
  return { score: Math.sqrt(square / pairs), moved: moved / (2 * n) };
};

const tables = new Map();
const tableOf = (n) => {
  if (!tables.has(n)) {
    const turn = (k) => (2 * Math.PI * k) / n;
    const bits = Math.log2(n);
    const swap = Uint16Array.from({ length: n }, (_, i) => {
      let found = 0;
      for (let b = 0; b < bits; b++) found |= ((i >> b) & 1) << (bits - 1 - b);
      return found;
    });
    const of = (make) => Float64Array.from({ length: n }, (_, k) => make(k));
    tables.set(n, { swap, cos: of((k) => Math.cos(turn(k))), sin: of((k) => -Math.sin(turn(k))), hann: of((k) => 0.5 - 0.5 * Math.cos(turn(k))) });
  }
  return tables.get(n);
};
const fft = (re, im, { cos, sin }) => {
  const n = re.length;
  for (let size = 2; size <= n; size *= 2) {
    for (let start = 0; start < n; start += size) {
      for (let k = 0; k < size / 2; k++) {
        const [a, b, at] = [start + k, start + k + size / 2, (k * n) / size];
        const x = re[b] * cos[at] - im[b] * sin[at];
        const y = re[b] * sin[at] + im[b] * cos[at];
        re[b] = re[a] - x;
        im[b] = im[a] - y;
        re[a] += x;
        im[a] += y;
      }
    }
  }
};

// Power in decibels of each channel of x (tokens x dim) by its frequency along positions, behind a Hann window: (bins x
// dim), bin k at 2 pi k / tokens radians a token. Two channels are one complex signal.
export const spectrum = (x, dim, bins) => {
  const n = x.length / dim;
  const table = tableOf(n);
  const [re, im, out] = [new Float64Array(n), new Float64Array(n), new Float32Array(bins * dim)];
  for (let c = 0; c < dim; c += 2) {
    for (let t = 0; t < n; t++) {
      const at = table.swap[t];
      re[at] = x[t * dim + c] * table.hann[t];
      im[at] = x[t * dim + c + 1] * table.hann[t];
    }
    fft(re, im, table);
    for (let k = 0; k < bins; k++) {
      const j = (n - k) % n;
      const first = ((re[k] + re[j]) ** 2 + (im[k] - im[j]) ** 2) / 4;
      const second = ((im[k] + im[j]) ** 2 + (re[j] - re[k]) ** 2) / 4;
      out[k * dim + c] = 10 * Math.log10(first / n + 1e-12);
      out[k * dim + c + 1] = 10 * Math.log10(second / n + 1e-12);
    }
  }
  return out;
};
