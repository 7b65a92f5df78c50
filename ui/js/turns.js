  // The turns of a conversation, one below the other: what is changed in them is written into the box that holds them as
  // JSON, and what is written or pasted there is drawn here.
  const ROLES = ["system", "developer", "user", "assistant", "tool"];
  let turned = null; // the text of the box that is drawn
  const conversation = () => document.querySelector("#conversation textarea");
  const turnsIn = (text) => {
    if (!text.trim()) return { messages: [] };
    try {
      const found = JSON.parse(text);
      const told = Array.isArray(found) ? { messages: found } : found;
      const known = (message) => ROLES.includes(message?.role) && typeof (message.content ?? "") === "string"; // null: a call
      return Array.isArray(told?.messages) && told.messages.every(known) ? told : null;
    } catch {
      return null;
    }
  };
  const turnsText = ({ messages, ...rest }) => {
    if (!messages.length && !rest.tools) return "";
    return JSON.stringify(Object.keys(rest).length ? { messages, ...rest } : messages, null, 1);
  };
  const writeTurns = (told) => {
    turned = turnsText(told);
    write("#conversation", turned);
  };
  const made = (name, attributes, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const drawTurn = (message, at) => {
    const roles = made("select", { "data-turn-role": at, "aria-label": `Role of turn ${at + 1}` });
    for (const role of ROLES) roles.append(made("option", { value: role }, role));
    roles.value = message.role;
    const text = made("textarea", { "data-turn-text": at, rows: 2, "aria-label": `Text of turn ${at + 1}` });
    text.value = message.content ?? "";
    const gone = made("button", { type: "button", class: "plain-button", "data-turn-gone": at, "aria-label": `Remove turn ${at + 1}` }, "Remove");
    const calls = (message.tool_calls ?? []).map((call) => call.function?.name ?? call.name).join(", ");
    return made("li", {}, made("div", {}, roles, gone), text, ...(calls ? [made("small", {}, `calls ${calls}; the JSON holds how`)] : []));
  };
  const drawTurns = (told) => {
    const place = document.getElementById("turns");
    if (!told) {
      place.replaceChildren(made("small", {}, "The box holds no list of messages yet; mend it, or empty it to begin here."));
      return;
    }
    const every = made("input", { type: "checkbox", id: "turns-scored" });
    every.checked = told.score_turns === "all";
    const scored = made("label", {}, every, " Score the earlier answers as well");
    const answered = told.messages.some(({ role }) => role === "assistant");
    const add = made("button", { type: "button", class: "plain-button", id: "turns-add" }, "Add a turn");
    place.replaceChildren(made("ol", {}, ...told.messages.map(drawTurn)), made("div", {}, add, ...(answered ? [scored] : [])));
  };
  const turns = () => {
    const [box, place] = [conversation(), document.getElementById("turns")];
    if (!box || !place || (turned === box.value && place.firstElementChild)) return;
    turned = box.value;
    drawTurns(turnsIn(turned));
  };
  // A change in one turn, after which its controls stay as they are; ``again`` draws them anew.
  const changeTurns = (change, again) => {
    const told = turnsIn(conversation().value);
    if (!told) return;
    change(told);
    writeTurns(told);
    if (again) drawTurns(told);
  };
  document.addEventListener("input", ({ target }) => {
    if (target.closest?.("#conversation")) return turns();
    if (!target.closest?.("#turns")) return;
    const { turnText: text, turnRole: role } = target.dataset;
    if (text !== undefined) changeTurns(({ messages }) => (messages[text].content = target.value));
    if (role !== undefined) changeTurns(({ messages }) => (messages[role].role = target.value), true);
    if (role !== undefined) document.querySelector(`[data-turn-role="${role}"]`)?.focus();
    if (target.id !== "turns-scored") return;
    changeTurns((told) => {
      if (target.checked) told.score_turns = "all";
      else delete told.score_turns;
    });
  });
  // The first turn is the prompt that stands in the form, and the last that is removed is the prompt again: only one of
  // both is asked. The next turn is of whose turn it is.
  document.addEventListener("click", ({ target }) => {
    const gone = target.closest?.("[data-turn-gone]")?.dataset.turnGone;
    if (gone !== undefined) {
      changeTurns(({ messages }) => {
        const [{ content }] = messages.splice(gone, 1);
        if (!messages.length) write("#prompt", content ?? "");
      }, true);
      (document.querySelector(`[data-turn-gone="${gone}"]`) ?? document.getElementById("turns-add"))?.focus();
    }
    if (!target.closest?.("#turns-add")) return;
    changeTurns(({ messages }) => {
      const content = messages.length ? "" : document.querySelector("#prompt textarea").value;
      if (content) write("#prompt", "");
      messages.push({ role: messages.at(-1)?.role === "user" ? "assistant" : "user", content });
    }, true);
    [...document.querySelectorAll("[data-turn-text]")].at(-1)?.focus();
  });
