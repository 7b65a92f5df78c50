// The lab: a state of the controls, what it stores, and the figures of it.
import { attend, errors, relative, spectrum } from "./reading.js";
import { rotate, roundedQueries, store } from "./transforms.js";
import { bars, decibels, onGround, signed, tint } from "./figures.js";
import { CONTROLS, address, isBlocks, laneOf, planOf, read, speaks } from "./state.js";

const [DIM, BINS, MOST_SCORE] = [64, 65, 8];
const at = (id) => document.getElementById(id);
const { models, base, stories, scales } = JSON.parse(at("lab-words").textContent);
const letters = atob(at("lab-tensors").textContent);
const octets = new Uint8Array(letters.length);
for (let i = 0; i < octets.length; i++) octets[i] = letters.charCodeAt(i);
const file = octets.buffer;
const begin = 8 + Number(new DataView(file).getBigUint64(0, true));
const header = JSON.parse(new TextDecoder().decode(new Uint8Array(file, 8, begin - 8)));
const tensor = (name) => {
  const { dtype, shape, data_offsets } = header[name];
  const kind = { I8: Int8Array, F32: Float32Array }[dtype];
  return { shape, data: new kind(file.slice(begin + data_offsets[0], begin + data_offsets[1])) };
};

// Keys, values and queries of a head as the file has them, and what attention makes of them in full precision.
const heads = new Map();
const headOf = (s) => {
  const name = `${s.model} ${s.layer} ${s.head}`;
  if (!heads.has(name)) {
    const index = models.findIndex(({ id }) => id === s.model);
    const of = (field) => tensor(`${index}/${field}`);
    const part = (field) => {
      const place = models[index].layers.indexOf(s.layer) * of(`${field}/codes`).shape[1] + s.head;
      const [codes, step, mean] = ["codes", "step", "mean"].map((own) => {
        const { shape, data } = of(`${field}/${own}`);
        const size = data.length / (shape[0] * shape[1]);
        return data.subarray(place * size, (place + 1) * size);
      });
      return Float32Array.from(codes, (code, i) => Math.fround(code * step[i % DIM]) + mean[i % DIM]);
    };
    const [rope, before, values, asked] = [{ cos: of("cos").data, sin: of("sin").data }, part("keys"), part("values"), part("queries")];
    const [keys, tokens] = [rotate(before, DIM, rope), values.length / DIM];
    const queries = rotate(asked, DIM, rope, tokens - asked.length / DIM);
    const most = keys.reduce((found, value) => Math.max(found, Math.abs(value)), 0);
    const power = spectrum(keys, DIM, BINS);
    const loudest = power.reduce((found, value) => Math.max(found, value), -Infinity);
    const exact = attend(queries, keys, values, DIM);
    heads.set(name, { model: models[index], rope, before, keys, values, queries, tokens, most, power, loudest, exact });
  }
  return heads.get(name);
};

// All that a state stores and reads; what is stored as before is kept.
const kept = {};
const held = (head, tensor, plan) => {
  const same = JSON.stringify(plan);
  if (kept[tensor]?.head !== head || kept[tensor].same !== same) {
    const before = tensor === "keys" ? head.before : undefined;
    kept[tensor] = { head, same, stored: store(head[tensor], DIM, plan, head.rope, before) };
  }
  return kept[tensor].stored;
};
const look = (s) => {
  const head = headOf(s);
  const plan = planOf(s, "keys", head.model.interleaved);
  const keys = held(head, "keys", plan);
  const values = held(head, "values", planOf(s, "values"));
  const asked = isBlocks(s) ? roundedQueries(head.queries, DIM, plan) : head.queries;
  const now = attend(asked, keys.read, values.read, DIM);
  return { head, keys, values, now, ...errors(now, head.exact, asked.length / DIM) };
};

const short = (x) => (x >= 100 ? x.toFixed(0) : x >= 10 ? x.toFixed(1) : x >= 0.01 || x === 0 ? x.toFixed(2) : x.toPrecision(1));
const percent = (x) => `${short(100 * x)} %`;
const bitsOf = ({ bytes }, { keys }) => (8 * Object.values(bytes).reduce((a, b) => a + b)) / keys.length;
const say = (id, text) => {
  const place = at(id);
  if (place.said !== text) place.textContent = place.said = text;
};
const PARTS = { codes: "codes", scales: "scales", zeros: "zero-points", words: "signs or minima", mask: "mask", center: "mean key", fold: "channel scales", norms: "norms", window: "tokens in fp16" };

let state = read(location.hash.slice(1), { ...base, ...stories[0].steps[0].state }, models);
let seen = null;
let words = [];

const stack = (id, part, head) => {
  const all = bitsOf(part, head);
  const own = Object.entries(PARTS).filter(([name]) => part.bytes[name]);
  const bits = ([name]) => (8 * part.bytes[name]) / head.keys.length;
  say(`${id}-said`, `${short(all)} bits: ${own.map((one) => `${one[1]} ${short(bits(one))}`).join(", ")}`);
  [...at(id).children].forEach((bar, i) => (bar.style.flexGrow = (8 * (part.bytes[Object.keys(PARTS)[i]] ?? 0)) / head.keys.length));
  at(id).style.width = `${(100 * all) / 16}%`;
};

const numbers = () => {
  const { head, keys, values, now, score, moved } = seen;
  const all = (bitsOf(keys, head) + bitsOf(values, head)) / 2;
  say("moved", percent(moved));
  say("answer", `${percent(moved)} of the attention goes to other tokens, at ${short(all)} bits an element.`);
  say("bits", `${short(all)} bits`);
  say("bits-of", `${percent(all / 16)} of an fp16 cache`);
  say("key-error", percent(relative(keys.read, head.keys)));
  say("value-error", `values ${percent(relative(values.read, head.values))}`);
  say("score-error", short(score));
  say("score-means", `weights off by about ×${short(Math.exp(score))}`);
  say("output-error", percent(relative(now.outputs, head.exact.outputs)));
  stack("key-bytes", keys, head);
  stack("value-bytes", values, head);
  say("lane", JSON.stringify(laneOf(state)) ?? "");
};

const maps = () => {
  const { head, keys, now } = seen;
  const { tokens, most, exact } = head;
  const error = keys.read.map((value, i) => value - head.keys[i]);
  const widest = keys.seen.reduce((found, value) => Math.max(found, Math.abs(value)), 0);
  const map = (id, of) => signed(at(id), tokens, DIM, most, (t, c) => of[t * DIM + c]);
  map("map-computed", head.keys);
  map("map-seen", keys.seen);
  map("map-error", error);
  say("most-computed", `largest ${short(most)}`);
  say("most-seen", `largest ${short(widest)}`);
  say("most-error", `largest ${short(error.reduce((found, value) => Math.max(found, Math.abs(value)), 0))}`);
  const power = spectrum(error, DIM, BINS);
  const range = [head.loudest - 70, head.loudest];
  decibels(at("power-computed"), BINS, DIM, range, (k, c) => head.power[k * DIM + c]);
  decibels(at("power-error"), BINS, DIM, range, (k, c) => power[k * DIM + c]);
  const off = (t, q) => now.scores[q * tokens + t] - exact.scores[q * tokens + t];
  signed(at("map-scores"), tokens, exact.scores.length / tokens, MOST_SCORE, off);
};

const shown = (t) => JSON.stringify(seen.head.model.tokens[t]).slice(1, -1);
const reading = () => {
  const { head, now } = seen;
  const row = ({ weights }) => weights.subarray(state.reader * head.tokens, (state.reader + 1) * head.tokens);
  const [exact, own] = [row(head.exact), row(now)];
  const reader = head.tokens - 32 + state.reader;
  bars(at("bars"), exact, own);
  tint(words, exact, own);
  if (words.reader !== reader) {
    words[words.reader]?.classList.remove("reader");
    words[(words.reader = reader)].classList.add("reader");
  }
  const order = Array.from(own.keys()).sort((a, b) => Math.abs(own[b] - exact[b]) - Math.abs(own[a] - exact[a])).slice(0, 3);
  const told = order.map((t) => `“${shown(t)}” (${t}) ${percent(exact[t])} → ${percent(own[t])}`);
  say("reads", `Token ${reader}, “${shown(reader)}”, reads: ${told.join(", ")}.`);
};

const draw = () => {
  seen = look(state);
  numbers();
  maps();
  reading();
};

// Controls follow the state; the words are the model's tokens.
const follow = () => {
  const model = models.find(({ id }) => id === state.model);
  const options = (values, of) => values.map((value) => `<option value="${value}">${of(value)}</option>`).join("");
  at("model").innerHTML = models.map(({ id, title }) => `<option value="${id}">${title}</option>`).join("");
  at("layer").innerHTML = options(model.layers, (layer) => `Layer ${layer}`);
  at("head").innerHTML = options([...Array(model.kv_heads).keys()], (head) => `KV head ${head}`);
  for (const name of ["model", "layer", "head", "reader"]) at(name).value = state[name];
  for (const [name, { words: choices, values }] of Object.entries(CONTROLS)) {
    const box = at(name);
    box.disabled = !speaks(name, state);
    if (choices) box.querySelector(`[value="${state[name]}"]`).checked = true;
    else box.value = values.indexOf(state[name]);
    if (!choices) say(`${name}-value`, state[name] === 16 && values.includes(1) ? "fp16" : String(state[name]));
    if (!choices) box.setAttribute("aria-valuetext", at(`${name}-value`).textContent);
  }
  if (words.model !== model) {
    at("words").replaceChildren(...model.tokens.map((text, t) => Object.assign(document.createElement("i"), { textContent: text, t })));
    words = Object.assign([...at("words").children], { model });
    say("fidelity", `As shipped, in 8 bits a channel, the model's keys are off by ${percent(model.key_error)} and ${percent(model.attention_moved)} of the attention moves.`);
  }
  const step = ({ state: own }) => address({ ...read("", { ...base, ...own }, models), reader: state.reader }) === address(state);
  for (const button of document.querySelectorAll("[data-step]")) {
    const [story, index] = button.dataset.step.split(".").map(Number);
    const on = step(stories[story].steps[index]);
    button.setAttribute("aria-pressed", on);
    if (on) at("story").textContent = stories[story].steps[index].text;
  }
  at("story").hidden = !document.querySelector("[data-step][aria-pressed=true]");
};

let told = 0;
const go = (changes) => {
  state = read(address({ ...state, ...changes }), base, models);
  follow();
  draw();
  clearTimeout(told);
  told = setTimeout(() => history.replaceState(null, "", `#${address(state)}`), 250); // browsers limit how often
};

const control = ([name, { label, words: choices, values }]) =>
  choices
    ? `<fieldset id="${name}"><legend>${label}</legend><div class="choice">${values
        .map((value) => `<label><input type="radio" name="${name}" value="${value}"><span>${choices[value]}</span></label>`)
        .join("")}</div></fieldset>`
    : `<label class="slider"><span>${label}<output id="${name}-value"></output></span>
       <input type="range" id="${name}" min="0" max="${values.length - 1}" step="1"></label>`;
at("controls").innerHTML = Object.entries(CONTROLS).map(control).join("");
at("steps").innerHTML = stories
  .map(({ title, steps }, i) => `<div><h2>${title}</h2>${steps.map((own, k) => `<button type="button" data-step="${i}.${k}">${own.title}</button>`).join("")}</div>`)
  .join("");
for (const id of ["key-bytes", "value-bytes"]) at(id).innerHTML = Object.keys(PARTS).map((name) => `<i class="${name}"></i>`).join("");

document.addEventListener("input", ({ target }) => {
  const name = target.name || target.id;
  const one = CONTROLS[name];
  go({ [name]: one ? (one.words ? target.value : one.values[target.value]) : target.value });
});
document.addEventListener("click", ({ target }) => {
  const step = target.closest("[data-step]")?.dataset.step.split(".");
  if (step) go({ ...base, ...stories[step[0]].steps[step[1]].state, reader: state.reader });
  const reader = target.t - (seen.head.tokens - 32);
  if (reader >= 0) go({ reader });
});
addEventListener("hashchange", () => go(read(location.hash.slice(1), base, models)));

// What is under the pointer, or one step further with the arrow keys.
const cursor = { t: 0, c: 0 };
const point = (t, c) => {
  Object.assign(cursor, { t: Math.max(0, Math.min(t, seen.head.tokens - 1)), c: Math.max(0, Math.min(c, DIM - 1)) });
  const i = cursor.t * DIM + cursor.c;
  const [computed, own] = [seen.head.keys[i], seen.keys.read[i]];
  const signs = (x) => `${x < 0 ? "−" : ""}${short(Math.abs(x))}`;
  say("pointed", `Token ${cursor.t} “${shown(cursor.t)}”, channel ${cursor.c}: ${signs(computed)}, read back as ${signs(own)}.`);
};
for (const canvas of document.querySelectorAll(".keys canvas")) {
  canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
    point(Math.floor((offsetX * seen.head.tokens) / canvas.clientWidth), Math.floor((offsetY * DIM) / canvas.clientHeight));
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!by) return;
    event.preventDefault();
    point(cursor.t + by[0], cursor.c + by[1]);
  });
}
document.documentElement.classList.toggle("framed", self !== top);
onGround(scales, draw);
go({});
// For a console: `lab.go({ keys: 2 })`, then `lab.stored()` has the codes and scales of what is shown.
globalThis.lab = { go, stored: () => ({ ...seen, state, lane: laneOf(state) }) };
