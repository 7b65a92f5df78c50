// What a codec sees in place of keys and values: centred, folded, rotated (kvq_core/engine/centering.py, rotation.py).
import { encode, f, half, packedOf } from "./codecs.js";

// RoPE of x (n x dim) at positions from `start` on: channel i is paired with channel i + dim / 2.
export const rotate = (x, dim, { cos, sin }, start = 0) => {
  const [out, pairs] = [new Float32Array(x.length), dim / 2];
  for (let t = 0; t < x.length / dim; t++) {
    for (let i = 0; i < pairs; i++) {
      const [a, b, at] = [x[t * dim + i], x[t * dim + i + pairs], (start + t) * pairs + i];
      out[t * dim + i] = f(f(a * cos[at]) + f(-b * sin[at]));
      out[t * dim + i + pairs] = f(f(b * cos[at]) + f(a * sin[at]));
    }
  }
  return out;
};

// The normalised Hadamard transform of every row, which is its own inverse; summed in double, rounded once.
const sums = new Float64Array(256);
export const hadamard = (x, dim) => {
  const [out, norm] = [new Float32Array(x.length), dim ** -0.5];
  for (let start = 0; start < x.length; start += dim) {
    for (let i = 0; i < dim; i++) sums[i] = x[start + i];
    for (let h = 1; h < dim; h *= 2) {
      for (let i = 0; i < dim; i += 2 * h) {
        for (let j = i; j < i + h; j++) {
          const [a, b] = [sums[j], sums[j + h]];
          sums[j] = a + b;
          sums[j + h] = a - b;
        }
      }
    }
    for (let i = 0; i < dim; i++) out[start + i] = sums[i] * norm;
  }
  return out;
};

const columns = (x, dim, of) =>
  Float32Array.from({ length: dim }, (_, c) => {
    let found = 0;
    for (let at = c; at < x.length; at += dim) found = of(found, x[at]);
    return found;
  });
const largest = (x, dim) => columns(x, dim, (most, value) => Math.max(most, Math.abs(value)));
const mean16 = (x, dim) =>
  Float32Array.from({ length: dim }, (_, c) => {
    let sum = 0; // in double, where the program sums in float32: once in a while fp16 rounds it the other way
    for (let at = c; at < x.length; at += dim) sum += x[at];
    return half(f(sum / (x.length / dim)));
  });
const spread = (row, length) => Float32Array.from({ length }, (_, at) => row[at % row.length]);
const each = (x, y, of) => x.map((value, at) => of(value, y[at % y.length]));
const over = (x, scale) => each(x, scale, (a, b) => f(a / b));
const times = (x, scale) => each(x, scale, (a, b) => f(a * b));

// sqrt of the largest magnitude of each channel, of a RoPE pair where `tied`, in fp16.
const roots = (x, dim, tied) => {
  const most = largest(x, dim);
  return most.map((own, c) => half(f(Math.sqrt(tied ? Math.max(own, most[(c + dim / 2) % dim]) : own))) || 1);
};

// A basis change with its inverse: rotation, and the order of channels that GGUF files of some models have.
const basis = (dim, turned, interleaved) => {
  const order = Array.from({ length: dim }, (_, c) => (interleaved ? (c % 2) * (dim / 2) + (c >> 1) : c));
  const moved = (x, back) => {
    if (!interleaved) return x;
    const out = new Float32Array(x.length);
    for (let at = 0; at < x.length; at++) {
      const from = at - (at % dim) + order[at % dim];
      if (back) out[from] = x[at];
      else out[at] = x[from];
    }
    return out;
  };
  return {
    there: (x) => (turned ? hadamard(moved(x), dim) : moved(x)),
    back: (x) => moved(turned ? hadamard(x, dim) : x, true),
  };
};

// Stores a tensor under a plan: what the codec saw, what it stored, what attention reads, and bytes by part. `before`
// are keys before RoPE. A plan without a grid keeps all in fp16.
export const store = (x, dim, plan, rope, before) => {
  const tokens = x.length / dim;
  const { center = "none", fold = "none", turned, interleaved, window } = plan;
  const constant =
    center === "mean" ? rotate(spread(mean16(before, dim), x.length), dim, rope) : center === "none" ? null : mean16(x, dim);
  const own = basis(dim, turned, interleaved);
  let seen = constant ? each(x, constant, (a, b) => f(a - b)) : x;
  const scales = fold === "none" ? null : roots(seen, dim, true);
  seen = own.there(scales ? over(seen, scales) : seen);
  const norms = plan.grid === "hybrid" && before ? roots(seen, dim, false) : null;
  const packed = plan.grid ? packedOf(window, tokens) : 0;
  const read = x.map(half);
  const bytes = { window: 2 * dim * (tokens - packed) };
  if (!packed) return { seen, read, bytes, packed, start: 0 };
  const [start, end] = [window.sink * dim, (window.sink + packed) * dim];
  const due = seen.subarray(start, end);
  const stored = encode(norms ? over(due, norms) : due, dim, plan);
  let back = own.back(norms ? times(stored.read, norms) : stored.read);
  if (scales) back = times(back, scales);
  if (constant) back = each(back, constant.subarray(center === "mean" ? start : 0), (a, b) => f(a + b));
  read.set(back, start);
  const constants = { center: constant, fold: scales, norms };
  for (const name in constants) if (constants[name]) bytes[name] = 2 * dim;
  return { ...stored, seen, read, packed, start: window.sink, norms, bytes: { ...stored.bytes, ...bytes } };
};

// Queries as llama.cpp's kernels round them, in the basis of the keys they meet.
export const roundedQueries = (queries, dim, { turned, interleaved }) => {
  const own = basis(dim, turned, interleaved);
  return own.back(encode(own.there(queries), dim, { grid: "q8_0", axis: "channels", group: 32, bits: 8 }).read);
};
