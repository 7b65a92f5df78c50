  // Intervals as kvq_core/analysis/verdict.py and scored.py have them; what they are made of comes with the run as data.
  const HALF = 2 ** 32;
  // numpy's PCG64, 128 bits as four limbs of 32, the lowest first. What it draws does not depend on the span: it is drawn
  // once and kept.
  const limbs = (hex) => [24, 16, 8, 0].map((at) => parseInt(hex.slice(at, at + 8), 16));
  const upper = (a, b) => {
    const al = a & 0xffff;
    const ah = a >>> 16;
    const bl = b & 0xffff;
    const bh = b >>> 16;
    const low = ah * bl + ((al * bl) >>> 16);
    return ah * bh + (low >>> 16) + ((al * bh + (low & 0xffff)) >>> 16);
  };
  const lower = (a, b) => Math.imul(a, b) >>> 0;
  const stepped = (s, m, c) => {
    const at0 = lower(s[0], m[0]) + c[0];
    const at1 = Math.floor(at0 / HALF) + c[1] + upper(s[0], m[0]) + lower(s[0], m[1]) + lower(s[1], m[0]);
    const at2 = Math.floor(at1 / HALF) + c[2] + upper(s[0], m[1]) + upper(s[1], m[0]) + lower(s[0], m[2]) + lower(s[1], m[1]) + lower(s[2], m[0]);
    const at3 = Math.floor(at2 / HALF) + c[3] + upper(s[0], m[2]) + upper(s[1], m[1]) + upper(s[2], m[0]) + lower(s[0], m[3]) + lower(s[1], m[2]) + lower(s[2], m[1]) + lower(s[3], m[0]);
    s[0] = at0 >>> 0;
    s[1] = at1 >>> 0;
    s[2] = at2 >>> 0;
    s[3] = at3 >>> 0;
  };
  const streams = new Map(); // by its state: what was drawn so far
  const drawn = ({ state, increment, multiplier }, count) => {
    const stream = streams.get(state) ?? { s: limbs(state), values: new Uint32Array(0) };
    streams.set(state, stream);
    if (stream.values.length >= count) return stream.values;
    const found = new Uint32Array(2 * count + 2);
    found.set(stream.values);
    const [m, c, s] = [limbs(multiplier), limbs(increment), stream.s];
    for (let at = stream.values.length; at < found.length; at += 2) {
      stepped(s, m, c);
      const turned = s[3] >>> 26;
      const turn = turned & 31;
      const low = turned < 32 ? s[0] ^ s[2] : s[1] ^ s[3];
      const high = turned < 32 ? s[1] ^ s[3] : s[0] ^ s[2];
      found[at] = turn ? (low >>> turn) | (high << (32 - turn)) : low;
      found[at + 1] = turn ? (high >>> turn) | (low << (32 - turn)) : high;
    }
    stream.values = found;
    return found;
  };
  // Means of resamples of several rows of values, all as long: a sorted Float64Array a row. A resample's places are drawn
  // once for all rows; each adds up with four sums that do not wait for each other.
  const sumAt = (values, places, n) => {
    let one = 0;
    let two = 0;
    let three = 0;
    let four = 0;
    let at = 0;
    for (; at + 4 <= n; at += 4) {
      one += values[places[at]];
      two += values[places[at + 1]];
      three += values[places[at + 2]];
      four += values[places[at + 3]];
    }
    for (; at < n; at += 1) one += values[places[at]];
    return one + two + three + four;
  };
  const resampled = (rows, resampling) => {
    const [n, { resamples }] = [rows[0].length, resampling];
    const values = rows.map((row) => Float64Array.from(row));
    const found = rows.map(() => new Float64Array(resamples));
    const places = new Int32Array(n);
    const refused = (HALF - n) % n; // Lemire: what would make some places likelier
    let stream = drawn(resampling, resamples * n);
    for (let sample = 0, next = 0; sample < resamples; sample += 1) {
      for (let at = 0; at < n; next += 1) {
        if (next === stream.length) stream = drawn(resampling, 2 * next);
        const product = stream[next] * n;
        const place = Math.floor(product / HALF);
        if (product - place * HALF >= refused) places[at++] = place;
      }
      for (let of = 0; of < values.length; of += 1) found[of][sample] = sumAt(values[of], places, n) / n;
    }
    return found.map((means) => means.sort());
  };
  const normal = (x) => {
    if (Math.abs(x) > 8) return x > 0 ? 1 : 0;
    let [sum, before, part] = [x, NaN, x];
    for (let odd = 3; sum !== before; odd += 2) {
      before = sum;
      part *= (x * x) / odd;
      sum += part;
    }
    return 0.5 + (sum * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI);
  };
  const normalAt = (p) => {
    let [low, high] = [-8, 8];
    for (let halved = 0; halved < 60; halved += 1) {
      const middle = (low + high) / 2;
      if (normal(middle) < p) low = middle;
      else high = middle;
    }
    return (low + high) / 2;
  };
  const quantile = (sorted, part) => {
    const at = part * (sorted.length - 1);
    const low = Math.min(Math.floor(at), sorted.length - 1);
    const high = Math.min(low + 1, sorted.length - 1);
    return sorted[low] + (sorted[high] - sorted[low]) * (at - low);
  };
  // The bias-corrected and accelerated interval of a mean, from its resamples' means.
  const corrected = (values, means, confidence) => {
    const [n, mean] = [values.length, meanOf(values)];
    const [below, upTo] = [means.filter((each) => each < mean).length, means.filter((each) => each <= mean).length];
    const bias = normalAt((below + upTo) / (2 * means.length));
    const pulls = values.map((value) => value - mean); // (n - 1) times what leaving it out takes from the mean
    const [cubes, squares] = [3, 2].map((power) => pulls.reduce((sum, pull) => sum + pull ** power, 0) / n ** power);
    const speed = cubes / squares ** 1.5 / 6;
    const end = (z) => quantile(means, normal(bias + (bias + z) / (1 - speed * (bias + z))));
    const z = normalAt((1 - confidence) / 2);
    return [end(z), end(-z)];
  };
  // Of several lanes at once: [low, high] each; null where a value is not finite or there is one alone.
  const intervals = (rows, { resampling, confidence }) => {
    const spreads = rows.map((row) => row.length > 1 && row.every(Number.isFinite) && row.some((value) => value !== row[0]));
    const varying = rows.filter((_, at) => spreads[at]);
    const means = varying.length ? resampled(varying, resampling) : [];
    return rows.map((row, at) => {
      if (spreads[at]) return corrected(row, means[varying.indexOf(row)], confidence);
      return row.length > 1 && Number.isFinite(row[0]) && row.every((value) => value === row[0]) ? [row[0], row[0]] : null;
    });
  };
  // The lower end of the Wilson interval of a share.
  const surely = (count, n, confidence) => {
    if (!count) return 0;
    const z = normalAt((1 + confidence) / 2);
    const [share, q] = [count / n, (z * z) / n];
    return (share + q / 2 - z * Math.sqrt((share * (1 - share)) / n + q / (4 * n))) / (1 + q);
  };
  // A high percentile with the ends of its interval, by order statistics.
  const tailOf = (values, { ranks: [usual, far], tail_from: from, confidence }) => {
    if (!values.length) return null;
    const n = values.length;
    const rank = n >= from ? far : usual;
    const [share, outside] = [rank / 100, (1 - confidence) / 2];
    let [log, sum, first, last] = [n * Math.log(1 - share), 0, 0, 1];
    for (let k = 0; k <= n; k += 1) {
      sum += Math.exp(log); // of at most k positions below
      if (k === n) sum = 1;
      if (sum <= outside) first = k + 1;
      if (sum < 1 - outside) last = k + 2;
      log += Math.log(((n - k) / (k + 1)) * (share / (1 - share)));
    }
    const sorted = Float64Array.from(values).sort();
    return { rank, value: quantile(sorted, share), low: first >= 1 ? sorted[first - 1] : null, high: last <= n ? sorted[last - 1] : null };
  };
