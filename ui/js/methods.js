  // The picker of a lane's method. A choice is told as every change of the editor is, by its hidden input.
  const pickerOf = (element) => element?.closest?.("details.methods");
  const searchOf = (picker) => picker.querySelector("[type=search]");
  const methodsOf = (picker) => [...picker.querySelectorAll("[data-method]")];
  const showMethod = (picker) => {
    const { value } = picker.previousElementSibling;
    for (const button of methodsOf(picker)) {
      const chosen = button.dataset.method === value;
      if (chosen) picker.querySelector("summary b").textContent = button.firstElementChild.textContent;
      if (chosen) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
  };
  const leaveMethods = (picker) => {
    picker.open = false;
    picker.querySelector("summary").focus({ preventScroll: true });
    picker.scrollIntoView({ block: "nearest" });
  };
  const chooseMethod = (picker, name) => {
    const told = picker.previousElementSibling;
    leaveMethods(picker);
    if (told.value === name) return;
    told.value = name;
    showMethod(picker);
    told.dispatchEvent(new Event("input", { bubbles: true }));
    focus = "in-lane-method"; // the editor comes anew
  };
  // What is named so comes before what is only described so: Enter takes the first of the best.
  const rankOf = ({ dataset, firstElementChild: title }, query, hasAll) => {
    const names = [title.textContent.toLowerCase(), dataset.method.toLowerCase()];
    return 3 - (names.includes(query) ? 3 : names.some((name) => name.startsWith(query)) ? 2 : hasAll(names.join(" ")) ? 1 : 0);
  };
  const seekMethods = (picker) => {
    const query = searchOf(picker).value.trim().toLowerCase();
    const hasAll = (text) => query.split(/\s+/).every((word) => text.toLowerCase().includes(word));
    const all = methodsOf(picker);
    for (const button of all) button.hidden = !hasAll(`${button.textContent} ${button.dataset.method}`);
    for (const group of picker.querySelectorAll(".method-group")) {
      group.hidden = !group.querySelector("[data-method]:not([hidden])");
      if (group.tagName !== "DETAILS") continue;
      group.open = query !== "";
      const [some, left] = [methodsOf(group), methodsOf(group).filter((button) => !button.hidden)];
      group.querySelector("summary small").textContent = left.length < some.length ? `${left.length} of ${some.length}` : some.length;
    }
    const found = all.filter((button) => !button.hidden);
    const ranks = found.map((button) => rankOf(button, query, hasAll));
    const best = query && found[ranks.indexOf(Math.min(...ranks))];
    for (const button of all) button.classList.toggle("best", button === best);
    picker.classList.toggle("seeking", query !== ""); // descriptions are whole: a match may lie anywhere in them
    const list = picker.querySelector(".methods-list");
    list.scrollTop = 0;
    if (best) list.scrollTop = Math.max(0, best.getBoundingClientRect().bottom - list.getBoundingClientRect().bottom);
    const said = best ? `${found.length} of ${all.length}; Enter takes ${best.firstElementChild.textContent}.` : `No method like ${quoted(searchOf(picker).value.trim())}.`;
    picker.querySelector("[role=status]").textContent = query ? said : "";
  };
  document.addEventListener("input", ({ target }) => {
    if (target.type === "search" && pickerOf(target)) seekMethods(pickerOf(target));
  });
  document.addEventListener("click", ({ target }) => {
    const button = target.closest?.("[data-method]");
    if (button) chooseMethod(pickerOf(button), button.dataset.method);
  });
  // A group that somebody opens, at the end of the list, comes up in it.
  document.addEventListener("toggle", ({ target: group }) => {
    const list = group.matches?.("details.method-group[open]") && !group.closest(".seeking") && group.closest(".methods-list");
    if (list) list.scrollTop += group.getBoundingClientRect().top - list.getBoundingClientRect().top;
  }, true);
  document.addEventListener("toggle", ({ target: picker }) => {
    if (!picker.matches?.("details.methods") || !picker.open) return;
    searchOf(picker).value = "";
    seekMethods(picker);
    // where there is no pointer that hovers, a keyboard would come up over the list
    if (matchMedia("(hover: hover)").matches) searchOf(picker).focus({ preventScroll: true });
    picker.scrollIntoView({ block: "nearest" });
  }, true);
  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    const picker = pickerOf(target);
    const step = { ArrowDown: 1, ArrowUp: -1 }[key];
    const best = picker?.querySelector("[data-method].best");
    if (!picker || event.isComposing || event.altKey || event.ctrlKey || event.metaKey) return;
    if (key === "Escape" && picker.open) leaveMethods(picker);
    else if (key === "Enter" && target === searchOf(picker)) best?.click();
    else if (step && !picker.open) picker.open = true;
    else if (step && best && step > 0 && target === searchOf(picker)) best.focus();
    else if (step) {
      const stops = [...picker.querySelectorAll("[type=search], .method-group > summary, [data-method]")].filter((stop) => stop.checkVisibility());
      stops[Math.min(stops.length - 1, Math.max(0, stops.indexOf(target) + step))].focus();
    } else return;
    event.preventDefault();
  });
