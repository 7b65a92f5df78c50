  // The worst tokens of a lane, one after the other: each is selected with the layer and head that its damage is
  // largest in, and a line says why. n and p go on and back.
  const WHERE = { 1: ["attention KL", "nats"], 0: ["mean |Δ score|", ""] };
  let rank = null; // { of, run, lane, at, said }: which list, the place in it, and the line about it
  const worstLane = () => Number(document.getElementById("worst-lane")?.value || NaN);
  // Its choices are written anew with every lane that joins the run: what was chosen, or is walked, stays. A lane that is
  // switched off is none of them.
  let worstChosen = null; // { run, lane, kind }
  const worstReady = () => {
    const [pick, kind] = ["worst-lane", "worst-kind"].map((id) => document.getElementById(id));
    if (!read || !pick?.options.length) return;
    for (const option of pick.options) option.hidden = option.disabled = off.has(Number(option.value));
    const lanes = [...pick.options].filter(({ hidden }) => !hidden).map(({ value }) => Number(value));
    if (rank?.run !== read.run || off.has(rank.lane)) rank = null;
    const chosen = worstChosen?.run === read.run && lanes.includes(worstChosen.lane) ? worstChosen : null;
    pick.value = lanes.length ? (chosen?.lane ?? rank?.lane ?? worstOf(lanes)) : "";
    if (chosen) kind.value = chosen.kind;
    const told = document.querySelector(".along-why");
    if (told.textContent !== (rank?.said ?? "")) told.textContent = rank?.said ?? "";
  };
  document.addEventListener("change", ({ target }) => {
    if (!read || !target.matches?.("#worst-lane, #worst-kind")) return;
    worstChosen = { run: read.run, lane: worstLane(), kind: document.getElementById("worst-kind").value };
  });
  const worstTokens = (lane, kind) => {
    const { kld, same, tie } = read.lanes[lane];
    const flipped = (token) => !same[token - 1];
    const kinds = read.kinds[kind] && new Set(read.kinds[kind]);
    const counts = {
      flip: flipped,
      sure: (token) => flipped(token) && read.margin[token - 1] > Math.fround(tie),
    };
    const counted = counts[kind] ?? (kinds ? (token) => kinds.has(token) : () => true);
    const inside = (token) => !span || (token >= span[0] && token <= span[1]);
    const found = Array.from(kld, (_, at) => at + 1).filter((token) => Number.isFinite(kld[token - 1]) && inside(token) && counted(token));
    return found.sort((one, other) => kld[other - 1] - kld[one - 1] || one - other);
  };
  const ordinal = (at) => `${at}${at % 100 > 10 && at % 100 < 14 ? "th" : (["th", "st", "nd", "rd"][at % 10] ?? "th")}`;
  // Why a token is here: its loss, what it flips to, and where in the model.
  const whyWorst = (lane, token, place, of) => {
    const { label, kld, same, tie, tops, where } = read.lanes[lane];
    const total = kld.reduce((sum, value) => sum + value, 0);
    const first = `${ordinal(place)} worst of ${of} in ${label}: token ${token} ${quoted(read.tokens[token])}, KLD ${significant(kld[token - 1], 2)} nats, ${percent(total ? kld[token - 1] / total : null)} of the answer's sum`;
    const parts = [first];
    if (!same[token - 1] && tops[token]) {
      const [own, p, theirs, q] = tops[token];
      const near = read.margin[token - 1] <= Math.fround(tie) ? ", which was near a tie" : "";
      parts.push(`it would write ${quoted(own)} (${percent(p)}) for the reference's ${quoted(theirs)} (${percent(q)}${near})`);
    }
    if (where) {
      const [what, unit] = WHERE[where.looked[token - 1]];
      parts.push(`most moved is layer ${where.layer[token - 1]}, query head ${where.head[token - 1]}: ${[what, significant(where.value[token - 1], 2), unit].filter(Boolean).join(" ")}`);
    } else parts.push("where in the model was not kept");
    return `${parts.join("; ")}.`.replaceAll(" %", "\u00a0%");
  };
  const goWorst = (by) => {
    if (!read) return;
    const [lane, kind] = [worstLane(), document.getElementById("worst-kind").value];
    const told = document.querySelector(".along-why");
    if (!read.lanes[lane]) {
      told.textContent = "Every lane is switched off: switch one on.";
      return;
    }
    const list = worstTokens(lane, kind);
    if (!list.length) {
      told.textContent = `No such token in ${read.lanes[lane].label}${span ? ` from ${tokenWords(...span)}` : ""}: choose others.`;
      return;
    }
    const of = `${read.run} ${lane} ${kind} ${spanOf()}`;
    const at = rank?.of === of ? (rank.at + by + list.length) % list.length : by > 0 ? 0 : list.length - 1;
    const token = list[at];
    const { where } = read.lanes[lane];
    rank = { of, run: read.run, lane, at, said: whyWorst(lane, token, at + 1, list.length) };
    told.textContent = rank.said;
    window.kvq.mark(token);
    outline();
    send(where ? { layer: where.layer[token - 1], head: where.head[token - 1], token } : { token });
  };
  document.addEventListener("click", (event) => {
    const by = event.target.closest?.("[data-worst]")?.dataset.worst;
    if (by) goWorst(Number(by));
  });
  const WRITES = "input:not([type=range], [type=radio], [type=checkbox]), textarea, select, [contenteditable=true], [role=combobox]";
  document.addEventListener("keydown", (event) => {
    const by = { n: 1, p: -1 }[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey || event.target.matches?.(WRITES)) return;
    if (!document.querySelector("#along [data-worst]")?.checkVisibility()) return;
    event.preventDefault();
    goWorst(by);
  });
