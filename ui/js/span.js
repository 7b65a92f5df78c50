  // What tests/support/span_figures.py computes of some tokens of the answer, from what ui/html/along.py sends of a run.
  const NUMBERS = { f4: Float32Array, u1: Uint8Array, u2: Uint16Array };
  const unpacked = ({ dtype, bdata }) => new NUMBERS[dtype](Uint8Array.from(atob(bdata), (byte) => byte.charCodeAt(0)).buffer);
  // Runs of equal values: [value, count, value, count, ...].
  const spread = (runs) => {
    const found = [];
    for (let at = 0; at < runs.length; at += 2) for (let left = runs[at + 1]; left > 0; left -= 1) found.push(runs[at]);
    return found;
  };
  // As ui/html/escape.py's visible().
  const shownAs = (text) => text.replace(/^ +| +$/g, "").replaceAll("\n", "⏎") || "␣";
  const COLUMNS = ["kld", "same", "nll", "delta_p", "acceptance"];
  const readAlong = (json) => {
    const run = JSON.parse(json);
    const empty = new Float32Array(0);
    run.texts = run.pieces.flatMap(([text, tokens]) => [text, ...Array(tokens - 1).fill("")]);
    run.tokens = run.pieces.flatMap(([text, tokens]) => Array(tokens).fill(shownAs(text)));
    const column = (given) => (given ? unpacked(given) : empty);
    for (const name of ["nll", "margin"]) run[name] = column(run[name]);
    for (const row of [...run.lanes, ...run.floors]) {
      for (const name of COLUMNS) row[name] = column(row[name]);
      for (const name of ["key_bits", "value_bits"]) row[name] = spread(row[name]);
    }
    for (const { where } of run.lanes) for (const name of Object.keys(where ?? {})) where[name] = unpacked(where[name]);
    return run;
  };
  // Mean over a span's steps of values (bins, rows, columns), each bin of the steps between two edges; a bin that the span
  // cuts counts whole. null where no bin is in it.
  const meanOfSteps = ({ edges, shape, scale, values }, first, last) => {
    const [from, to] = [Math.max(0, first - 1), Math.max(0, last)];
    const [, rows, columns] = shape;
    const sums = Array.from({ length: rows }, () => new Float64Array(columns));
    let weight = 0;
    for (let bin = 0; bin < edges.length; bin += 1) {
      const [start, end] = edges[bin];
      if (end <= from || start >= to) continue;
      weight += end - start;
      for (let row = 0, at = bin * rows * columns; row < rows; row += 1) for (let column = 0; column < columns; column += 1, at += 1) sums[row][column] += values[at] * (end - start);
    }
    return weight ? sums.map((row) => Array.from(row, (sum) => (sum * scale) / weight)) : null;
  };
  const meanOrNull = (values) => (values.length ? meanOf(values) : null);
  const tierOf = (value, figure, { tiers }) => tiers.findIndex((tier) => value <= (tier[figure] ?? Infinity));
  const draftedOf = (accepted, drafted) => {
    if (accepted.length < drafted) return null;
    let sum = 0;
    for (let at = 0; at + drafted <= accepted.length; at += 1) {
      for (let k = 0, product = 1; k < drafted; k += 1) {
        product *= accepted[at + k];
        sum += product;
      }
    }
    return 1 + sum / (accepted.length - drafted + 1);
  };
  const judgedAs = (row, found, kld, rule) => {
    if (row.failed) return { word: "failed", tone: "bad" };
    if (row.broken || !kld.every(Number.isFinite)) return { word: "not a number", tone: "bad" };
    if (row.idle) return { word: "never engaged", tone: "warn" };
    if (found.scored < rule.least) return { word: "no verdict", tone: "quiet" };
    const [best, worst] = [found.low, found.high].map((end) => tierOf(end, "kld", rule));
    const apart = Math.min(found.scored, Math.max(0, found.flips - found.near_tie_flips));
    const byFlips = tierOf(surely(apart, found.scored, rule.confidence), "flips", rule);
    const byTail = found.scored >= rule.p99_from ? tierOf(quantile(Float64Array.from(kld).sort(), 0.99), "p99", rule) : 0;
    const byText = tierOf(Number(row.repeats), "repeats", rule); // of the whole text, whatever tokens are brushed
    const [above, below] = [best, worst].map((tier) => Math.max(tier, byFlips, byTail, byText));
    const words = [above, below].map((tier) => rule.tiers[tier].word);
    if (above !== below) return { word: words.join(below === above + 1 ? " or " : " to "), tone: "quiet" };
    return { word: words[0], tone: rule.tiers[below].tone };
  };
  // Figures of every lane and floor over tokens first to last: { lanes: [...], floors: [...] }.
  const figuresOf = (run, first, last) => {
    const [from, to] = [Math.max(0, first - 1), Math.max(0, last)];
    const rows = [...run.lanes, ...run.floors];
    const klds = rows.map((row) => Array.from(row.kld.subarray(from, to)));
    const ends = intervals(klds.slice(0, run.lanes.length), run.rule); // floors have no verdict
    const edge = run.floors.find((floor) => floor.larger)?.kld.subarray(from, to) ?? [];
    const [base, margin] = [run.nll.subarray(from, to), run.margin.subarray(from, to)];
    const found = rows.map((row, at) => {
      const [kld, part] = [klds[at], (name) => row[name].subarray(from, to)];
      const [same, delta, nll, accepted] = ["same", "delta_p", "nll", "acceptance"].map(part);
      const flips = [...same.keys()].filter((step) => !same[step]);
      const ties = margin.length === same.length ? flips.filter((step) => margin[step] <= Math.fround(row.tie)) : [];
      // the answer's last token was never stored
      const [keys, values] = ["key_bits", "value_bits"].map((name) => row[name].slice(first, Math.min(last, run.count - 2) + 1));
      const bits = [meanOrNull(keys), meanOrNull(values)];
      const stored = keys.length && keys.length === values.length && row.token_bytes !== null;
      const plain = stored ? row.token_bytes * keys.length : null;
      const whole = {
        scored: kld.length,
        kld_mean: meanOrNull(kld),
        low: ends[at]?.[0] ?? null,
        high: ends[at]?.[1] ?? null,
        tail: kld.every(Number.isFinite) ? tailOf(kld, run.rule) : null,
        flips: flips.length,
        near_tie_flips: ties.length,
        flip_rate: kld.length ? flips.length / kld.length : null,
        above_floor: at < run.lanes.length && kld.length && edge.length === kld.length ? kld.filter((value, step) => value > edge[step]).length / kld.length : null,
        acceptance: meanOrNull(Array.from(accepted)),
        tokens_a_step: draftedOf(accepted, run.rule.drafted),
        rms_dp: delta.length ? 100 * Math.sqrt(meanOf(Array.from(delta, (value) => value * value))) : null,
        ppl_ratio: nll.length && nll.length === base.length ? Math.exp(meanOf(Array.from(nll, (value, step) => value - base[step]))) : null,
        key_bits: bits[0],
        value_bits: bits[1],
        stored_bytes: stored ? (plain * (bits[0] + bits[1])) / 32 : null,
        fp16_bytes: plain,
      };
      return { ...whole, verdict: judgedAs(row, whole, kld, run.rule) };
    });
    return { lanes: found.slice(0, run.lanes.length), floors: found.slice(run.lanes.length) };
  };
