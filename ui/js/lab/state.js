// The lab's controls: what each may be, the lane that they describe, and how that lane stores keys and values.
const BITS = [1, 2, 3, 4, 8, 16];

// Of each control its values; of a choice also their words.
export const CONTROLS = {
  format: { label: "Format", words: { groups: "Groups", kivi: "KIVI", innerq: "InnerQ", q4_0: "q4_0", q8_0: "q8_0" } },
  keys: { label: "Key bits", values: BITS },
  values: { label: "Value bits", values: BITS },
  axis: { label: "A scale for each", words: { token: "Token", channel: "Channel" } },
  group: { label: "Group size", values: [8, 16, 32, 64] },
  rotate: { label: "Rotation", words: { none: "None", hadamard: "Hadamard" } },
  center: { label: "Subtract the mean key", words: { none: "No", mean: "Before RoPE", mean_after_rope: "After RoPE" } },
  fold: { label: "Fold channel scales", words: { none: "No", keys: "Fold" } },
  sink: { label: "First tokens in fp16", values: [0, 4, 16, 32] },
  recent: { label: "Newest tokens in fp16", values: [0, 32, 64, 96, 128] },
};
for (const one of Object.values(CONTROLS)) one.values ??= Object.keys(one.words);

export const isBlocks = ({ format }) => format.startsWith("q");
const stored = (s) => ["keys", "values"].filter((tensor) => isBlocks(s) || s[tensor] < 16);

// Whether a control says anything in a state.
export const speaks = (name, s) => {
  const quiet = {
    axis: s.format !== "groups",
    group: isBlocks(s),
    keys: isBlocks(s),
    values: isBlocks(s),
    center: !stored(s).includes("keys"),
    fold: !stored(s).includes("keys"),
    rotate: !stored(s).length,
    sink: !["kivi", "innerq"].includes(s.format),
    recent: isBlocks(s),
  };
  return !quiet[name];
};

const whole = ({ recent, group }) => Math.ceil(Math.max(recent, group) / group) * group; // a residual of whole groups

// The lane of a comparison that stores what the lab shows; null where all stays fp16.
export const laneOf = (s) => {
  const tensors = stored(s);
  if (!tensors.length) return null;
  const lane = { method: { groups: `per_${s.axis}` }[s.format] ?? s.format };
  if (isBlocks(s)) lane.knobs = { rotate: s.rotate !== "none" };
  else {
    const own = s.keys === s.values || tensors.length < 2;
    lane.knobs = own ? { bits: s[tensors[0]] } : { key_bits: s.keys, value_bits: s.values };
    lane.knobs.group_size = s.group;
    if (s.format === "innerq") Object.assign(lane.knobs, { sink_tokens: s.sink, recent_tokens: s.recent });
    else lane.knobs.residual_length = lane.method === "per_token" ? s.recent : whole(s);
    if (s.format === "kivi") lane.knobs.sink_tokens = s.sink;
  }
  if (tensors.length < 2) lane.tensors = tensors[0];
  for (const name of ["center", "fold"]) if (s[name] !== "none" && speaks(name, s)) lane[name] = s[name];
  if (s.rotate !== "none" && !isBlocks(s)) lane.rotate = s.rotate;
  return lane;
};

// How a tensor is stored, for `store`: of keys with `interleaved`, whether llama.cpp holds the model's channels so.
export const planOf = (s, tensor, interleaved) => {
  if (!stored(s).includes(tensor)) return { grid: null, window: {} };
  const [isKey, turned] = [tensor === "keys", s.rotate !== "none"];
  const of = isKey ? { center: s.center, fold: s.fold } : {};
  const [now, one] = [{ sink: 0, recent: 0, step: 1 }, { sink: s.sink, recent: s.recent, step: 1 }];
  if (isBlocks(s)) {
    const own = { grid: s.format, bits: s.format === "q8_0" ? 8 : 4, group: 32, axis: "channels" };
    return { ...own, ...of, turned, interleaved: isKey && interleaved, window: now };
  }
  const residual = { sink: s.sink, recent: 0, step: whole(s) };
  const [grouped, window] = {
    token: ["channels", { ...one, sink: 0 }],
    channel: ["tokens", { ...residual, sink: 0 }],
    kivi: isKey ? ["tokens", residual] : ["channels", { ...one, recent: whole(s) }],
    innerq: isKey ? ["channels", one] : ["tokens", { ...one, step: s.group }],
  }[s.format === "groups" ? s.axis : s.format];
  const grid = s.format === "innerq" ? "hybrid" : "asymmetric";
  return { grid, bits: s[tensor], group: s.group, axis: grouped, ...of, turned, window };
};

// A state as an address says it, where that says something that is allowed.
export const read = (text, base, models) => {
  const [given, s] = [new URLSearchParams(text), { ...base }];
  for (const [name, value] of given) {
    const found = CONTROLS[name]?.values.find((one) => String(one) === value);
    if (found !== undefined) s[name] = found;
  }
  const model = models.find(({ id }) => id === (given.get("model") ?? s.model)) ?? models[0];
  const within = (name, values) => values.find((one) => one === Number(given.get(name) ?? s[name])) ?? values[0];
  const heads = Array.from({ length: model.kv_heads }, (_, head) => head);
  const readers = Array.from({ length: 32 }, (_, reader) => reader);
  return { ...s, model: model.id, layer: within("layer", model.layers), head: within("head", heads), reader: within("reader", readers) };
};

export const address = (s) => new URLSearchParams(s).toString();
